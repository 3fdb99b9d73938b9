"""Runs merges: plans as data, threads, files read and written in place. Naming it loads neither torch nor
numpy."""

from __future__ import annotations

from plait.engine.drive import holds
from plait.engine.fold import Folded, fold
from plait.engine.journal import Sums
from plait.engine.model import Modelled, run_model
from plait.engine.move import Intake, copy, intake
from plait.engine.plan import Settings
from plait.engine.progress import Progress, Silent
from plait.engine.source import Incoming
from plait.engine.state import size_of
from plait.engine.steps import Steps

__all__ = [
    "Folded",
    "Incoming",
    "Intake",
    "Modelled",
    "Progress",
    "Settings",
    "Silent",
    "Steps",
    "Sums",
    "copy",
    "fold",
    "holds",
    "intake",
    "run_model",
    "size_of",
]
