"""Making experts: a plain, seeded loop that fine-tunes a base on a task."""

from __future__ import annotations

from plait.training.finetune import finetune
from plait.training.recipe import Recipe

__all__ = ["Recipe", "finetune"]
