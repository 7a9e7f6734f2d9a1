"""Street scenes (CamVid, 11 classes): a light decoder over DINOv2-small, measured on the test split.

As usual for CamVid, the model is trained on the training and the validation split. The curve is that of the
test split; nothing is chosen by it. The folder dinov2-small, which `experiments.dinov2_small` writes, is
expected among the data sets.
"""

from __future__ import annotations

from pathlib import Path

from experiments.paths import Workspace
from experiments.vision_training import extract, run_recipe

ROW, SECONDS = "segmentation-camvid", 900.0


def join_splits(camvid: Path) -> Path:
    """Return a folder whose `train` has the training and validation split, and whose `val` the test split."""
    folder = camvid.with_name("camvid-joined")
    for new, olds in {"train": ("train", "val"), "val": ("test",)}.items():
        for kind in ("", "_mask"):
            (folder / f"{new}{kind}").mkdir(parents=True, exist_ok=True)
            for file in (file for old in olds for file in (camvid / f"{old}{kind}").iterdir()):
                (folder / f"{new}{kind}" / file.name).write_bytes(file.read_bytes())
    for file in camvid.glob("classes.*"):
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def run(workspace: Workspace, name: str) -> None:
    """Train and measure one model."""
    folder = join_splits(extract(workspace, ROW, "camvid/camvid.tar"))
    recipe = {
        "job": "segment",
        "data": {
            "train": [str(folder)],
            "valid": [str(folder)],
            "segmentation": "semantic",
            "image_size": [504, 672],
            "scale_jitter": 0.5,
            "color_jitter": 0.4,
            "mask_loss": "lovasz",
        },
        "model": {"folder": str(workspace.data / "dinov2-small")},
        "training": {
            "lr": 5e-4,
            "batch_size": 9,  # divides the 468 images, so that only one shape is compiled
            "lr_factors": {"embed": 0.1, "encoder": 0.1},
            "weight_decay": 0.05,
            "drop_path_rate": 0.2,
            "ema": 0.999,
        },
    }

    run_recipe(workspace, ROW, name, recipe, of="miou", seconds=SECONDS, split="val")
