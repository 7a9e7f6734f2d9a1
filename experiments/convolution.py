"""A small ResNet in plain PyTorch to compare with the ViT: same images, augmentation and epochs.

Letters: B images, C channels, H height, W width, L classes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.image_folders import Arrays
from experiments.training_runs import Trained
from glassformer.recipes import recipe_path
from glassformer.training.hardware import device_for
from glassformer.training.jobs.classify.images import ImageData
from glassformer.training.learner import cutmix
from glassformer.training.recipe import Recipe, read_recipe

Pictures = NDArray[np.uint8]
WIDTHS, CLASSES, RATE, DECAY, LOOKS = (64, 128, 256), 10, 0.002, 0.05, 10


class Block(nn.Module):
    """A residual block of two 3 x 3 convolutions; halves the resolution if the width grows."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        stride = 1 if before == width else 2
        self.first = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))
        self.past = nn.Identity() if stride == 1 else nn.Conv2d(before, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inside = F.relu(self.norms[0](self.first(x)))
        out: Tensor = F.relu(self.norms[1](self.second(inside)) + self.past(x))
        return out


def network() -> nn.Sequential:
    """Images (B, 3, H, W) to logits (B, L): 2.8M parameters, as many as the ViT."""
    first = (nn.Conv2d(3, WIDTHS[0], 3, 1, 1, bias=False), nn.BatchNorm2d(WIDTHS[0]), nn.ReLU())
    widths = [
        pair
        for width, before in zip(WIDTHS, (WIDTHS[0], *WIDTHS), strict=False)
        for pair in ((before, width), (width, width))
    ]
    last = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTHS[-1], CLASSES))
    return nn.Sequential(*first, *(Block(before, width) for before, width in widths), *last)


def run(folder: Path, parts: Mapping[str, Arrays], *, seed: int, device: str) -> tuple[Trained, float]:
    """Train with the settings of the ViT's recipe; the run and its test accuracy."""
    recipe = read_recipe(recipe_path("images-cifar"))
    on = device_for(device)
    torch.manual_seed(seed)
    images, labels = parts["train"]
    mean, std = images.mean((0, 1, 2)) / 255, images.std((0, 1, 2)) / 255

    def normalize(pictures: Pictures) -> Tensor:
        scaled = (torch.from_numpy(pictures).to(on).float() / 255 - statistics[0]) / statistics[1]
        return scaled.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)

    statistics = [torch.tensor(value, dtype=torch.float32, device=on) for value in (mean, std)]
    model = network().to(on, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    batch, targets = recipe.training.batch_size or 200, torch.from_numpy(labels).to(on)
    epochs = recipe.training.epochs or 300
    a_pass = len(images) // batch
    steps, step, curve = math.ceil(epochs * a_pass), 0, list[tuple[int, float]]()
    changes, began = recipe.data, time.monotonic()
    assert isinstance(changes, ImageData)
    while step < steps:
        epoch, workspace = divmod(step, a_pass)
        if workspace == 0:
            order = np.random.default_rng([seed, epoch]).permutation(len(images))
        rows = order[workspace * batch : (workspace + 1) * batch]
        inputs = normalize(changes.augment(images[rows], rows, seed=seed, epoch=epoch))
        for group in optimiser.param_groups:
            group["lr"] = RATE * min(1, step / (steps / 10)) * (1 + math.cos(math.pi * step / steps)) / 2
        wrong = loss(model, inputs, targets[torch.from_numpy(rows).to(on)], recipe)
        optimiser.zero_grad()
        wrong.backward()
        optimiser.step()
        step += 1
        if step % max(1, steps // LOOKS) == 0:
            curve.append((step, accuracy(model, *parts["valid"], normalize) / 100))
    seconds = time.monotonic() - began
    count = sum(parameter.numel() for parameter in model.parameters())
    trained = Trained(folder=folder, seconds=seconds, parameters=count, of="accuracy", curve=curve)
    return trained, accuracy(model, *parts["test"], normalize)


def loss(model: nn.Module, inputs: Tensor, labels: Tensor, recipe: Recipe) -> Tensor:
    """The mean loss of a batch, with the recipe's CutMix."""
    assert isinstance(recipe.data, ImageData)
    (pictures, share), other = cutmix(inputs, recipe.data.cutmix_prob), labels.roll(1, 0)
    smoothing = recipe.training.label_smoothing or 0.0
    with low_precision(inputs.device):
        scores = model(pictures).float()
    one, two = (F.cross_entropy(scores, each, label_smoothing=smoothing) for each in (labels, other))
    return share * one + (1 - share) * two


@torch.no_grad()
def accuracy(
    model: nn.Module, images: Pictures, labels: NDArray[np.int64], normalize: Callable[[Pictures], Tensor]
) -> float:
    """Accuracy in percent."""
    model.eval()
    right = 0
    for start in range(0, len(images), 500):
        inputs = normalize(np.ascontiguousarray(images[start : start + 500]))
        with low_precision(inputs.device):
            predicted = model(inputs).argmax(-1).cpu().numpy()
        right += int((predicted == labels[start : start + 500]).sum())
    model.train()
    return 100 * right / len(images)


def low_precision(device: torch.device) -> AbstractContextManager[object]:
    """bfloat16 autocast on a GPU, as for the ViT."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()
