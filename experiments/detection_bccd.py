"""Blood cells (BCCD): the shipped `pocket-detector`, a YOLOS trained on composed scenes, is fine-tuned.

The settings are those of the recipe `detect-bccd`; the test split is measured.
"""

from __future__ import annotations

from experiments.paths import Workspace
from experiments.vision_training import extract, run_recipe
from glassformer.recipes import recipe_path
from glassformer.training.recipe import read_recipe_dict

ROW, SECONDS = "detection-bccd", 1180.0


def run(workspace: Workspace, name: str) -> None:
    """Train and measure one model."""
    folder = extract(workspace, ROW, "bccd/BCCD.tar.gz")
    recipe = read_recipe_dict(recipe_path("detect-bccd"))
    recipe["data"] |= {"train": [str(folder)], "valid": [str(folder)]}
    run_recipe(workspace, ROW, name, recipe, of="ap50", seconds=SECONDS, split="test")
