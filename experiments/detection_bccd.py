"""Blood cells (BCCD): DINOv2-small with object queries ("dinov2/1"), and a small DETR ("detr/1").

The folder dinov2-small, which `experiments.dinov2_small` writes, is expected among the data sets.
"""

from __future__ import annotations

from typing import Any

from experiments.paths import Workspace
from experiments.vision_training import extract, run_recipe
from glassformer.data.annotations import find_annotations

ROW, SECONDS = "detection-bccd", 420.0
TRAINING: dict[str, dict[str, Any]] = {
    "dinov2": {"lr": 3e-4, "batch_size": 16, "lr_factors": {"embed": 0.2, "encoder": 0.2}},
    "detr": {"lr": 3e-4, "batch_size": 16},
}


def run(workspace: Workspace, name: str) -> None:
    """Train and measure one model."""
    kind = name.split("/")[0]
    folder = extract(workspace, ROW, "bccd/BCCD.tar.gz")
    model = {"folder": str(workspace.data / "dinov2-small")} if kind == "dinov2" else {"preset": "detr-tiny"}
    recipe = {
        "job": "detect",
        "data": {
            "train": [str(folder)],
            "valid": [str(folder)],
            "image_size": [420, 560] if kind == "dinov2" else [480, 640],
            "vertical_flip_prob": 0.5,
            "scale_jitter": 0.4,
        },
        "model": model,
        "training": {**TRAINING[kind], "compile": "off", "weight_decay": 0.05, "ema": 0.999},
    }

    def use_test_split(job: Any) -> None:
        job.valid_set, job.valid_rows = find_annotations(folder, "test"), None

    run_recipe(workspace, ROW, name, recipe, of="ap50", seconds=SECONDS, test=use_test_split)
