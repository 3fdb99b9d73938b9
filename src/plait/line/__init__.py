"""The user's one object: a line, its members and the model that is made of them."""

from __future__ import annotations

from plait.line.line import Line
from plait.line.once import merge_files, merge_state_dicts

__all__ = ["Line", "merge_files", "merge_state_dicts"]
