"""Fashion-MNIST with the published split: Swin and a Vision Transformer, from scratch, for equal time.

Runs are "swin/1" and "vit/1". Both have the augmentation of the recipe `images-fashion` and train for the
same number of seconds.
"""

from __future__ import annotations

from typing import Any

from experiments.paths import Workspace
from experiments.pictures import accuracy_of, prepare
from experiments.vision_training import record, train_recipe
from glassformer.recipes import recipe_path
from glassformer.training.recipe import read_recipe_dict

ROW, SECONDS = "fashion", 1180.0
HELD_OUT = 1000  # of the training images, for the curve
# about as many parameters as the Swin
VIT: dict[str, Any] = {
    "preset": "vit",
    "patch_size": 2,
    "d_model": 192,
    "num_heads": 6,
    "d_ff": 768,
    "num_layers": 6,
    "dropout": 0.0,
}


def run(workspace: Workspace, name: str) -> None:
    """Train one model with one seed, and record its accuracy on the 10,000 test images."""
    folder = prepare(workspace.data / "fashion-mnist", HELD_OUT, workspace, ROW)
    recipe = read_recipe_dict(recipe_path("images-fashion"))
    recipe["data"] |= {"train": [str(folder / "train")], "valid": [str(folder / "valid")]}
    if name.startswith("vit"):
        recipe["model"] = VIT
    trained = train_recipe(workspace, ROW, name, recipe, of="accuracy", seconds=SECONDS).run
    accuracy = accuracy_of(workspace.run(ROW, name) / "model", folder / "test", workspace)
    record(workspace, ROW, name, trained, "accuracy", {"accuracy": accuracy, "steps": float(trained.steps)})
