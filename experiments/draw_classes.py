"""Draw digits, clothes and small photographs by class: DiT, and a UNet of equal cost, trained for equal time.

    python -m experiments draw-digits --only dit
    python -m experiments draw-fashion --only classifier      then: --only dit

Both models predict the velocity of flow matching on pixels, with the job `diffusion`. The rows draw-fashion
and draw-cifar first train the classifier that judges (`classifier/1`); the digits are read by the shipped
pocket-digits. A run draws 10,000 images, equally many of each class, with several strengths of guidance.
Beside its figures it writes a sheet of samples, and one of the drawings that are most similar to a training
image.

A drawing counts as a copy below the `copy_distance` of its data set, which about one in a thousand test
images would reach. The digits are not padded: 28 is a multiple of all patches and levels. draw-cifar has
7,600 training and 2,000 test images, with as many drawings; its figures stand for that part alone.

To try it within a minute on a CPU:

    python -m experiments draw-digits --only dit --device cpu --seconds 20 --most 40 --set model.d_model=64 \\
        --set model.num_layers=2 --set model.patch_size=4 --set training.batch_size=32
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
    read,
    save_nearest,
    save_sheet,
)
from experiments.image_folders import Arrays
from experiments.paths import Workspace
from experiments.pictures import prepare, split
from experiments.vision_training import record, train_for, train_recipe
from glassformer.bundle import load
from glassformer.errors import FileMissingError
from glassformer.recipes import recipe_path
from glassformer.training.hardware import device_for
from glassformer.training.recipe import TrainingOptions, parse_section, read_recipe_dict, with_overrides
from glassformer.training.task import TrainingPlan, ValidationResult

STEPS, GUIDANCE = 30, (1.0, 2.5, 4.0)
TRAINING: dict[str, Any] = {
    **{"batch_size": 512, "lr": 6e-4, "weight_decay": 0.01, "betas": [0.9, 0.99]},
    **{"ema": 0.999, "max_grad_norm": 1.0},
}
JUDGE: dict[str, Any] = {"batch_size": 256, "lr": 2e-3, "weight_decay": 0.05, "ema": 0.995}


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """A data set with ten classes, and how it is learned.

    source: its folder among the data sets. recipe: that of `glassformer train`, whose data are replaced.
    copy_distance: a drawing that differs by less from a training image is a copy.
    guidance: the strength whose figures are the row's. judge_seconds: training time of the classifier.
    drawn: number of drawings. models: preset and options of each kind of denoiser.
    """

    source: str
    recipe: str
    copy_distance: float
    seconds: float
    guidance: float = 2.5
    held_out: int = 1000
    judge_seconds: float = 90.0
    drawn: int = 10_000
    flip: bool = False
    max_shift: int = 2
    models: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {"dit": {"preset": "dit-mini"}, "unet": {"preset": "unet-mini"}}
    )


CLASSES = 10
SETS = {
    "draw-digits": ImageSet(source="mnist", recipe="diffusion-digits", copy_distance=0.04, seconds=170.0),
    "draw-fashion": ImageSet(
        source="fashion-mnist", recipe="diffusion-fashion", copy_distance=0.04, seconds=170.0
    ),
    "draw-cifar": ImageSet(
        source="cifar10-10k",
        recipe="diffusion-cifar",
        copy_distance=0.07,
        seconds=400.0,
        held_out=400,
        judge_seconds=170.0,
        drawn=2000,
        flip=True,
        max_shift=4,
        models={
            "dit": {"preset": "dit-s-2"},
            "unet": {"preset": "unet-mini", "widths": [192, 384, 384], "num_heads": 6},
        },
    ),
}


def to_tensors(arrays: Arrays) -> tuple[Tensor, Tensor]:
    """Return bytes (N, C, H, W) and labels (N,)."""
    images, labels = (torch.from_numpy(np.ascontiguousarray(one)) for one in arrays)
    return images[:, None] if images.ndim == 3 else images.movedim(-1, 1).contiguous(), labels


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
    parts = split(workspace.data / data.source, data.held_out)
    train, valid, test = (to_tensors(parts[part]) for part in ("train", "valid", "test"))
    if kind == "classifier":
        torch.manual_seed(int(seed))
        train_judge(workspace, row, name, train, valid, test)
        return
    judge = load_judge(workspace, row)
    folder = prepare(workspace.data / data.source, data.held_out, workspace, row)
    recipe = read_recipe_dict(recipe_path(data.recipe))
    recipe["data"] |= {"train": [str(folder / "train")], "valid": [str(folder / "valid")]}
    recipe["data"] |= {"image_size": None, "flip_prob": 0.5 if data.flip else 0.0}
    recipe |= {"model": data.models[kind], "training": {**TRAINING, "log_samples": 0}}
    trained = train_recipe(workspace, row, name, recipe, of="loss", seconds=workspace.seconds or data.seconds)
    bundle = load(workspace.run(row, name) / "model", device=str(device))
    labels = torch.arange(CLASSES).repeat((workspace.most or data.drawn) // CLASSES)
    images, real = train[0].float() / 255, test[0][: len(labels)].float() / 255
    scores = Scores(judge, images, copy_distance=data.copy_distance, compared=len(real), device=device)
    batch_size = trained.job.recipe.training.batch_size
    figures = {"images per second": trained.run.steps * batch_size / trained.run.seconds}
    figures |= {f"{key} of real images": value for key, value in scores(real, test[1][: len(real)]).items()}
    for guidance in GUIDANCE:
        drawn = draw(bundle, labels.tolist(), steps=STEPS, guidance=guidance, seed=int(seed) * len(labels))
        at = "" if guidance == data.guidance else f", guidance {guidance:g}"
        figures |= {f"{key}{at}": value for key, value in scores(drawn, labels).items()}
        if not at:
            sheet = workspace.figures / row / f"{name.replace('/', '-')}.png"
            save_sheet(sheet, drawn[:80].split(CLASSES))
            save_nearest(sheet.with_stem(f"{sheet.stem}-nearest"), drawn, images, device)
    record(workspace, row, name, trained.run, "loss", figures)


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
