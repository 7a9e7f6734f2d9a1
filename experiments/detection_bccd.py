"""Blood cells (BCCD): three ways to start, each measured on the test split.

"scenes/1" fine-tunes the shipped `pocket-detector`, a YOLOS trained on composed scenes. "dinov2/1" adds
object queries to DINOv2-small; the folder dinov2-small, which `experiments.dinov2_small` writes, is expected
among the data sets. "detr/1" is a small DETR from scratch.
"""

from __future__ import annotations

from experiments.paths import Workspace
from experiments.vision_training import extract, run_recipe
from glassformer.pretrained import HERE as PRETRAINED

ROW, SECONDS = "detection-bccd", 1100.0
SIZES = {"scenes": [288, 384], "dinov2": [420, 560], "detr": [480, 640]}
# pretrained parts learn more slowly than new ones; the object queries of DINOv2 are new
LR_FACTORS: dict[str, dict[str, float]] = {
    "scenes": {},
    "dinov2": {"embed": 0.2, "encoder": 0.2, "embed.suffix": 1.0},
    "detr": {},
}


def run(workspace: Workspace, name: str) -> None:
    """Train and measure one model."""
    kind = name.split("/")[0]
    folder = extract(workspace, ROW, "bccd/BCCD.tar.gz")
    models = {
        "scenes": {"folder": str(PRETRAINED / "pocket-detector")},
        "dinov2": {"folder": str(workspace.data / "dinov2-small")},
        "detr": {"preset": "detr-tiny"},
    }
    recipe = {
        "job": "detect",
        "data": {
            "train": [str(folder)],
            "valid": [str(folder)],
            "image_size": SIZES[kind],
            "vertical_flip_prob": 0.5,
            "scale_jitter": 0.4,
            "copy_paste_prob": 0.5,
        },
        "model": models[kind],
        "training": {
            "lr": 2e-4,
            "batch_size": 41,  # divides the 205 images, so that only one shape is compiled
            "lr_factors": LR_FACTORS[kind],
            "weight_decay": 0.05,
            "ema": 0.999,
        },
    }

    run_recipe(workspace, ROW, name, recipe, of="ap50", seconds=SECONDS, split="test")
