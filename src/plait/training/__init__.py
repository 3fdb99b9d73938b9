"""Making experts: a plain, seeded loop that fine-tunes a base on a task; and loops of yours that merge each task."""

from __future__ import annotations

from plait.training.each import MergeEachTask
from plait.training.finetune import finetune
from plait.training.recipe import Recipe
from plait.training.trainer import merge_callback

__all__ = ["MergeEachTask", "Recipe", "finetune", "merge_callback"]
