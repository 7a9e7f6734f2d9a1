"""Street scenes (CamVid, 11 classes): a light decoder over DINOv2-small, measured on the test split.

The folder dinov2-small, which `experiments.dinov2_small` writes, is expected among the data sets.
"""

from __future__ import annotations

from experiments.paths import Workspace
from experiments.vision_training import extract, run_recipe

ROW, SECONDS = "segmentation-camvid", 900.0


def run(workspace: Workspace, name: str) -> None:
    """Train and measure one model."""
    folder = extract(workspace, ROW, "camvid/camvid.tar")
    recipe = {
        "job": "segment",
        "data": {
            "train": [str(folder)],
            "valid": [str(folder)],
            "segmentation": "semantic",
            "image_size": [504, 672],
            "scale_jitter": 0.5,
            "color_jitter": 0.3,
        },
        "model": {"folder": str(workspace.data / "dinov2-small")},
        "training": {
            "lr": 5e-4,
            "compile": "off",
            "batch_size": 8,
            "lr_factors": {"embed": 0.1, "encoder": 0.1},
            "weight_decay": 0.05,
            "drop_path_rate": 0.1,
            "ema": 0.999,
        },
    }

    run_recipe(workspace, ROW, name, recipe, of="miou", seconds=SECONDS, split="test")
