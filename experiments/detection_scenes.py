"""Detection in composed scenes: 60 kinds of emoji on 128 x 128 pixels, composed on the device.

Runs are "yolos/1" (object queries among the patches) and "detr/1" (a decoder over a small ResNet). Every
training step sees new arrangements; the test scenes have arrangements that no training step saw.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.paths import Workspace
from experiments.scenes import NO_LABEL, SceneComposer, SceneLayout, SceneOptions, read_emoji
from experiments.vision_training import record, train_for
from glassformer.bundle import Bundle, save
from glassformer.data.examples import Arrays
from glassformer.data.image_processing import ImageProcessor
from glassformer.families.registry import preset_spec
from glassformer.families.sidecars import IMAGE_PROCESSOR_FILE
from glassformer.metrics.detection import AveragePrecision, Objects
from glassformer.training.hardware import device_for
from glassformer.training.jobs.detect import detected_objects
from glassformer.training.labels import with_classes
from glassformer.training.model_setup import build_initialized
from glassformer.training.object_job import IMAGENET_MEAN, IMAGENET_STD
from glassformer.training.object_learner import ObjectLearner
from glassformer.training.recipe import TrainingOptions, parse_section
from glassformer.training.task import TrainingPlan, ValidationResult

ROW, KINDS, SIZE = "detection-scenes", 60, 128
SECONDS = 420.0
FIRST_TEST = 1 << 40  # numbers of test scenes; training scenes have smaller ones
VALID_SCENES, TEST_SCENES, BATCH = 256, 2000, 250
MODELS: dict[str, dict[str, Any]] = {
    "yolos": {
        "preset": "yolos-tiny",
        "image_size": (SIZE, SIZE),
        "patch_size": 8,
        "d_model": 256,
        "num_heads": 8,
        "d_ff": 1024,
        "num_layers": 8,
        "num_queries": 25,
        "mid_positions": False,
    },
    "detr": {"preset": "detr-tiny", "num_queries": 25},
}
TRAINING = {
    "yolos": {"lr": 5e-4, "batch_size": 256, "weight_decay": 0.05, "ema": 0.999, "max_grad_norm": 0.5},
    "detr": {"lr": 3e-4, "batch_size": 256, "weight_decay": 0.01, "ema": 0.999, "max_grad_norm": 0.5},
}
ARRAYS = ("cutout", "center", "scale", "angle", "mirror", "color", "background")


class SceneExamples:
    """Layouts of scenes, drawn on the CPU ahead of the steps that render them."""

    def __init__(self, composer: SceneComposer) -> None:
        self.composer = composer

    def __len__(self) -> int:
        return FIRST_TEST

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.ones((len(rows), 1), np.int64)

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
        layout = self.composer.layout(rows)
        return {name: getattr(layout, name) for name in ARRAYS}


def count(batch: Arrays) -> int:
    """Return the number of objects of a batch."""
    return int((batch["cutout"] != NO_LABEL).sum())


class SceneLearner(ObjectLearner):
    """Render a batch of layouts and learn its boxes."""

    def __init__(self, model: torch.nn.Module, composer: SceneComposer) -> None:
        super().__init__(model, mean=IMAGENET_MEAN, std=IMAGENET_STD)
        self.composer = composer

    def forward(self, **layout: Tensor) -> Tensor:  # type: ignore[override]
        scenes = self.composer.render(SceneLayout(**layout))  # type: ignore[arg-type]
        return self.loss(self.model(self.normalize(scenes.images)), scenes.labels, scenes.boxes, None)


@torch.no_grad()
def measure(learner: SceneLearner, scenes: int) -> dict[str, float]:
    """Return the average precision on unseen arrangements."""
    precision = AveragePrecision(len(learner.composer.cutouts.names))
    learner.eval()
    for start in range(0, scenes, BATCH):
        rows = np.arange(start, min(start + BATCH, scenes)) + FIRST_TEST
        batch = learner.composer.batch(rows)
        output = learner.model(learner.normalize(batch.images))
        found = detected_objects(output, [(SIZE, SIZE)] * len(rows))
        center, half = batch.boxes[..., :2], batch.boxes[..., 2:] / 2
        boxes = (torch.cat((center - half, center + half), -1) * SIZE).double().cpu().numpy()
        labels = batch.labels.cpu().numpy()
        for n, objects in enumerate(found):
            known = labels[n] != NO_LABEL
            precision.add(objects, Objects(labels=labels[n][known], boxes=boxes[n][known]))
    return precision.scores()


def run(workspace: Workspace, name: str) -> None:
    """Train and measure one model."""
    kind, seed = name.split("/")
    device = device_for(workspace.device)
    cutouts = read_emoji(workspace.data / "emoji-captions", kinds=KINDS)
    composer = SceneComposer(cutouts, SceneOptions(size=SIZE), seed=int(seed), device=device)
    torch.manual_seed(int(seed))
    settings = dict(MODELS[kind])
    changes = dict(change.split("=", 1) for change in workspace.changes)
    settings |= {key.removeprefix("model."): int(v) for key, v in changes.items() if key.startswith("model.")}
    spec = preset_spec(settings.pop("preset"), **settings, num_labels=KINDS)
    learner = SceneLearner(build_initialized(spec), composer)
    processor = ImageProcessor(
        image_processor_type="DetrImageProcessor",
        size={"height": SIZE, "width": SIZE},
        image_mean=IMAGENET_MEAN,
        image_std=IMAGENET_STD,
    )
    bundle = Bundle(model=learner.model, files={IMAGE_PROCESSOR_FILE: processor.to_dict()})
    bundle = with_classes(bundle, "detect", cutouts.classes, size=(SIZE, SIZE))
    task = TrainingPlan(
        learner=learner,
        train=SceneExamples(composer),
        unit="objects",
        count=count,
        metric="ap",
        validate=lambda _: ValidationResult(metrics=measure(learner, VALID_SCENES)),
        save=lambda folder: save(bundle, folder),
    )
    training = {key.removeprefix("training."): v for key, v in changes.items() if key.startswith("training.")}
    numbers = {key: int(v) if v.isdigit() else float(v) for key, v in training.items()}
    options = parse_section(TrainingOptions, {**TRAINING[kind], **numbers})
    limit = workspace.seconds or SECONDS
    try:
        trained = train_for(task, options, seconds=limit, seed=int(seed), device=device, of="ap")
    finally:
        task.save(workspace.run(ROW, name) / "model")
    figures = measure(learner, workspace.most or TEST_SCENES)
    figures["scenes per second"] = trained.steps * (options.batch_size or 1) / trained.seconds
    record(workspace, ROW, name, trained, "ap", figures)
