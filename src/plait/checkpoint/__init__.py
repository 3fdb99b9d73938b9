"""Bytes on disk to named tensors and back. Imports neither torch nor numpy."""

from plait.checkpoint.digest import root_digest
from plait.checkpoint.format import FileWriter, fsync_folder, hash_tensor, read_bytes, read_header
from plait.checkpoint.keys import Accounting, account, matcher, untied
from plait.checkpoint.layout import Checkpoint, Shard, open_checkpoint
from plait.checkpoint.output import Output, plan_output

__all__ = [
    "Accounting",
    "Checkpoint",
    "FileWriter",
    "Output",
    "Shard",
    "account",
    "fsync_folder",
    "hash_tensor",
    "matcher",
    "open_checkpoint",
    "plan_output",
    "read_bytes",
    "read_header",
    "root_digest",
    "untied",
]
