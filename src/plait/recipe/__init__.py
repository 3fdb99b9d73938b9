"""Recipes: one merge written down in YAML, in plait's own words or in mergekit's. No torch.

plait's own keys, paths relative to the recipe's folder:

    base: models/base            method: ties             options: {density: 0.2}
    members: [{checkpoint: models/a, task: a, weight: 1}]
    private: ['classifier.*']    dtype: bfloat16          seed: 0

mergekit's are told by `merge_method`; paths are relative to the working directory, as mergekit takes them.
Whatever a recipe says is either done or refused: no key is skipped.
"""

from __future__ import annotations

from plait.recipe.merge import Member, Recipe
from plait.recipe.reader import parse_recipe, read_recipe

__all__ = ["Member", "Recipe", "parse_recipe", "read_recipe"]
