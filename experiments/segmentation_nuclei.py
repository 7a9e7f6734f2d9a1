"""Cell nuclei (Data Science Bowl 2018): instance masks by a pixel decoder over a small ViT from scratch.

The metric counts as many predictions per image as it has nuclei, at least COCO's 100. The data has no test
split: the validation split is measured, and nothing is chosen by it.
"""

from __future__ import annotations

from experiments.paths import Workspace
from experiments.vision_training import extract, run_recipe

ROW, SECONDS = "segmentation-nuclei", 400.0


def run(workspace: Workspace, name: str) -> None:
    """Train and measure one model."""
    folder = extract(workspace, ROW, "nuclei/nuclei.tar")
    recipe = {
        "job": "segment",
        "data": {
            "train": [str(folder)],
            "valid": [str(folder)],
            "segmentation": "instance",
            "image_size": [320, 320],  # the largest side; smaller images would lose the smallest nuclei
            "vertical_flip_prob": 0.5,
            "scale_jitter": 0.5,
            "color_jitter": 0.3,
        },
        "model": {
            "preset": "vit",
            "patch_size": 16,
            "d_model": 256,
            "num_heads": 4,
            "d_ff": 1024,
            "num_layers": 6,
        },
        "training": {"lr": 1e-3, "compile": "off", "batch_size": 32, "weight_decay": 0.05, "ema": 0.999},
    }

    run_recipe(workspace, ROW, name, recipe, of="ap50", seconds=SECONDS, split="val")
