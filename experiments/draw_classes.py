"""Draw digits, clothes and small photographs by class: DiT, and a UNet of equal cost, trained for equal time.

    python -m experiments draw-digits --only dit
    python -m experiments draw-fashion --only classifier      then: --only dit

Both models predict the velocity of flow matching on pixels. The rows draw-fashion and draw-cifar first train
the classifier that judges (`classifier/1`); the digits are read by the shipped pocket-digits. A run draws
10,000 images, equally many of each class, with several strengths of guidance. Beside its figures it writes a
sheet of samples, and one of the drawings that are most similar to a training image.

A drawing counts as a copy below the `copy_distance` of its data set, which about one in a thousand test
images would reach. The digits are not padded: 28 is a multiple of all patches and levels. draw-cifar has
7,600 training and 2,000 test images, with as many drawings; its figures stand for that part alone.

To try it within a minute on a CPU:

    python -m experiments draw-digits --only dit --device cpu --seconds 20 --most 40 --set model.d_model=64 \\
        --set model.num_layers=2 --set model.patch_size=4 --set training.batch_size=32
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from experiments.drawings import (
    DigitReader,
    Judge,
    JudgeLearner,
    RandomRows,
    ResNetJudge,
    Scores,
    count_rows,
    draw,
    random_flip,
    read,
    save_nearest,
    save_sheet,
)
from experiments.image_folders import Arrays
from experiments.paths import Workspace
from experiments.pictures import split
from experiments.vision_training import record, train_for
from glassformer.bundle import Bundle, save
from glassformer.core import spec
from glassformer.core.inputs import LatentInputs
from glassformer.diffusion import FlowMatchEuler, write_scheduler_config
from glassformer.errors import FileMissingError
from glassformer.families.registry import preset_spec
from glassformer.families.sidecars import SCHEDULER_FILE, JobInfo
from glassformer.training.hardware import device_for
from glassformer.training.learner import Learner
from glassformer.training.model_setup import build_initialized
from glassformer.training.recipe import TrainingOptions, parse_section, with_overrides
from glassformer.training.task import TrainingPlan, ValidationResult

STEPS, GUIDANCE = 40, (1.0, 1.5, 2.5)
NOISE_LEVELS = (0.2, 0.5, 0.8)  # at which the validation loss is measured
VALID = 1000  # images of the validation loss
TRAINING: dict[str, Any] = {
    **{"batch_size": 512, "lr": 6e-4, "weight_decay": 0.01, "betas": (0.9, 0.99)},
    **{"ema": 0.999, "max_grad_norm": 1.0},
}
JUDGE: dict[str, Any] = {"batch_size": 256, "lr": 2e-3, "weight_decay": 0.05, "ema": 0.995}


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """A data set with classes, and how it is learned.

    source: its folder among the data sets. held_out: training images for the validation.
    copy_distance: a drawing that differs by less from a training image is a copy.
    guidance: the strength whose figures are the row's. judge_seconds: training time of the classifier.
    drawn: number of drawings. models: preset and options of each kind of denoiser.
    """

    source: str
    held_out: int
    classes: tuple[str, ...]
    copy_distance: float
    guidance: float
    seconds: float
    judge_seconds: float = 90.0
    drawn: int = 10_000
    flip: bool = False
    max_shift: int = 2
    models: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {"dit": {"preset": "dit-mini"}, "unet": {"preset": "unet-mini"}}
    )


PHOTOGRAPHS = {"image_size": 32, "channels": 3, "out_channels": 3, "num_classes": 10}
SETS = {
    "draw-digits": ImageSet(
        source="mnist",
        held_out=5000,
        classes=tuple("0123456789"),
        copy_distance=0.04,
        guidance=1.5,
        seconds=170.0,
    ),
    "draw-fashion": ImageSet(
        source="fashion-mnist",
        held_out=1000,
        classes=(
            *("T-shirt", "trouser", "pullover", "dress", "coat"),
            *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
        ),
        copy_distance=0.04,
        guidance=1.5,
        seconds=170.0,
    ),
    "draw-cifar": ImageSet(
        source="cifar10-10k",
        held_out=400,
        classes=(
            *("airplane", "automobile", "bird", "cat", "deer"),
            *("dog", "frog", "horse", "ship", "truck"),
        ),
        copy_distance=0.07,
        guidance=1.5,
        seconds=400.0,
        judge_seconds=170.0,
        drawn=2000,
        flip=True,
        max_shift=4,
        models={
            "dit": {"preset": "dit-s-2", **PHOTOGRAPHS},
            "unet": {"preset": "unet-mini", **PHOTOGRAPHS, "widths": (192, 384, 384), "num_heads": 6},
        },
    ),
}


def to_tensors(arrays: Arrays) -> tuple[Tensor, Tensor]:
    """Return bytes (N, C, H, W) and labels (N,)."""
    images, labels = (torch.from_numpy(np.ascontiguousarray(one)) for one in arrays)
    return images[:, None] if images.ndim == 3 else images.movedim(-1, 1).contiguous(), labels


class FlowMatchingLearner(Learner):
    """Predict noise - clean from a mixture of both; the model drops a tenth of the labels, for guidance.

    images: bytes (N, C, H, W) of training, which stay on the device.
    """

    images: Tensor
    labels: Tensor

    def __init__(self, model: Any, images: Tensor, labels: Tensor, *, flip: bool) -> None:
        super().__init__(model)
        self.flip, self.timesteps = flip, FlowMatchEuler().num_train_timesteps
        self.register_buffer("images", images, persistent=False)
        self.register_buffer("labels", labels, persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        clean, labels = self.images[rows].float() / 127.5 - 1, self.labels[rows]
        if self.flip:
            clean = random_flip(clean)
        amount = torch.randn_like(clean[:, 0, 0, 0]).sigmoid()  # mostly around one half
        return self.loss(clean, labels, amount, torch.randn_like(clean)).sum()

    def loss(self, clean: Tensor, labels: Tensor, amount: Tensor, noise: Tensor) -> Tensor:
        """Return the mean squared error (B,) for amounts of noise (B,) from 0, clean, to 1."""
        share = amount[:, None, None, None]
        inputs = LatentInputs((1 - share) * clean + share * noise, amount * self.timesteps, labels=labels)
        return (self.model(inputs).float() - (noise - clean)).square().mean((1, 2, 3))


@torch.no_grad()
def validation_loss(learner: FlowMatchingLearner, images: Tensor, labels: Tensor) -> float:
    """Return the mean loss of held-out images at some levels of noise, with the same noise each time."""
    device, losses = learner.images.device, []
    generator = torch.Generator().manual_seed(0)
    for level in NOISE_LEVELS:
        for part, wanted in zip(images[:VALID].split(250), labels[:VALID].split(250), strict=True):
            clean = part.float() / 127.5 - 1
            noise = torch.randn(clean.shape, generator=generator)
            inputs = (one.to(device) for one in (clean, wanted, torch.full((len(part),), level), noise))
            losses.append(learner.loss(*inputs).cpu())
    return float(torch.cat(losses).mean())


def build(options: dict[str, Any], classes: tuple[str, ...]) -> Bundle:
    """Return a new model that draws on pixels, with the schedule of flow matching."""
    denoiser: Any = preset_spec(options["preset"], **{k: v for k, v in options.items() if k != "preset"})
    model = build_initialized(spec.DiffusionModelSpec(denoiser=denoiser))
    files = {SCHEDULER_FILE: write_scheduler_config(FlowMatchEuler())}
    return Bundle(model=model, files=files, job=JobInfo(classes=classes))


def judge_file(workspace: Workspace, row: str) -> Path:
    """The weights of the classifier that a row trains."""
    return workspace.run(row, "classifier/1") / "model" / "classifier.safetensors"


def load_judge(workspace: Workspace, row: str) -> Judge:
    """Load the classifier that judges the drawings of a row."""
    if SETS[row].source == "mnist":
        return DigitReader()
    path, judge = judge_file(workspace, row), ResNetJudge()
    if not path.exists():
        raise FileMissingError(path, f"classifier; run `python -m experiments {row} --only classifier` first")
    judge.load_state_dict(load_file(path))
    return judge


def run(workspace: Workspace, name: str, row: str) -> None:
    """Train and measure one model, or the classifier."""
    kind, _, seed = name.partition("/")
    data, device = SETS[row], device_for(workspace.device)
    torch.manual_seed(int(seed))
    parts = split(workspace.data / data.source, data.held_out)
    train, valid, test = (to_tensors(parts[part]) for part in ("train", "valid", "test"))
    changes = with_overrides({}, workspace.changes)
    if kind == "classifier":
        train_judge(workspace, row, name, train, valid, test)
        return
    judge = load_judge(workspace, row)
    bundle = build({**data.models[kind], **changes.get("model", {})}, data.classes)
    learner = FlowMatchingLearner(bundle.model, *train, flip=data.flip)
    plan = TrainingPlan(
        learner=learner,
        train=RandomRows(len(train[0])),
        unit="images",
        count=count_rows,
        metric="loss",
        validate=lambda _: ValidationResult(metrics={"loss": validation_loss(learner, *valid)}),
        save=partial(save, bundle),
    )
    options = parse_section(TrainingOptions, {**TRAINING, **changes.get("training", {})})
    limit, folder = workspace.seconds or data.seconds, workspace.run(row, name)
    try:
        trained = train_for(plan, options, seconds=limit, seed=int(seed), device=device, of="loss")
    finally:
        plan.save(folder / "model")
    labels = torch.arange(len(data.classes)).repeat((workspace.most or data.drawn) // len(data.classes))
    images, real = train[0].float() / 255, test[0][: len(labels)].float() / 255
    scores = Scores(judge, images, copy_distance=data.copy_distance, compared=len(real), device=device)
    figures = {"images per second": trained.steps * (options.batch_size or 1) / trained.seconds}
    figures |= {f"{key} of real images": value for key, value in scores(real, test[1][: len(real)]).items()}
    for guidance in GUIDANCE:
        drawn = draw(bundle, labels.tolist(), steps=STEPS, guidance=guidance, seed=int(seed) * len(labels))
        at = "" if guidance == data.guidance else f", guidance {guidance:g}"
        figures |= {f"{key}{at}": value for key, value in scores(drawn, labels).items()}
        if not at:
            sheet = workspace.figures / row / f"{name.replace('/', '-')}.png"
            save_sheet(sheet, drawn[:80].split(len(data.classes)))
            save_nearest(sheet.with_stem(f"{sheet.stem}-nearest"), drawn, images, device)
    record(workspace, row, name, trained, "loss", figures)


def train_judge(
    workspace: Workspace,
    row: str,
    name: str,
    train: tuple[Tensor, Tensor],
    valid: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
) -> None:
    """Train the classifier that judges drawings, and record its accuracy on real test images."""
    data, device = SETS[row], device_for(workspace.device)
    judge = ResNetJudge()
    learner = JudgeLearner(judge, *train, flip=data.flip, max_shift=data.max_shift)

    def accuracy(images: Tensor, labels: Tensor) -> float:
        return float((read(judge, images.float() / 255, device).labels == labels).double().mean())

    plan = TrainingPlan(
        learner=learner,
        train=RandomRows(len(train[0])),
        unit="images",
        count=count_rows,
        metric="accuracy",
        validate=lambda _: ValidationResult(metrics={"accuracy": accuracy(*valid)}),
        save=lambda folder: None,
    )
    changes = with_overrides({}, workspace.changes).get("training", {})
    options = parse_section(TrainingOptions, {**JUDGE, **changes})
    limit = workspace.seconds or data.judge_seconds
    trained = train_for(plan, options, seconds=limit, seed=1, device=device, of="accuracy")
    path = judge_file(workspace, row)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({key: one.contiguous() for key, one in judge.cpu().state_dict().items()}, path)
    record(workspace, row, name, trained, "accuracy", {"accuracy": accuracy(*test)})
