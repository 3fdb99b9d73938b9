"""plait: one model made of many. Merge fine-tuned checkpoints in a stream; take any out again, byte for byte."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plait.line import Line as Line
    from plait.line import merge_files as merge_files
    from plait.line import merge_state_dicts as merge_state_dicts

    __version__: str

__all__ = ["Line", "__version__", "merge_files", "merge_state_dicts"]


def __getattr__(name: str) -> Any:
    if name in ("Line", "merge_files", "merge_state_dicts"):
        return getattr(import_module("plait.line"), name)
    if name == "__version__":  # looked up when asked for
        from plait.methods.installed import version

        return version("plait") or "0+unknown"  # a source tree that was never installed
    raise AttributeError(f"module 'plait' has no attribute {name!r}")
