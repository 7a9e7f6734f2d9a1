"""What the rows that draw share: classifiers that judge drawings, scores, and sheets of samples.

Images are (N, C, H, W) from 0 to 1. Features are those of a classifier of ours before its last layer, so the
Frechet distance can be compared within a data set and with no published FID.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from experiments import convolution
from glassformer.bundle import Bundle, load
from glassformer.core.observe import Observer
from glassformer.data.examples import Arrays
from glassformer.families.sidecars import IMAGE_PROCESSOR_FILE
from glassformer.metrics.images import frechet_distance, nearest_neighbors, precision_and_recall
from glassformer.tasks.drawing import DiffusionImageGenerator
from glassformer.training.learner import Learner

BATCH = 500  # drawn or read at once
BATCHES = 1 << 30  # of random rows


class RandomRows:
    """Random rows of a table of examples that is on the device already."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return BATCHES

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.ones((len(rows), 1), np.int64)

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
        return {"rows": np.random.default_rng(rows[:1]).integers(self.count, size=len(rows))}


def count_rows(batch: Arrays) -> int:
    """Return the number of examples of a batch."""
    return len(batch["rows"])


# --- classifiers


class Judge(nn.Module):
    """A classifier of real images: returns the features (B, D) before its last layer, and logits (B, L)."""


class DigitReader(Judge):
    """The shipped model pocket-digits."""

    def __init__(self) -> None:
        super().__init__()
        bundle = load("pocket-digits", device="cpu", dtype="float32")
        config = bundle.files[IMAGE_PROCESSOR_FILE]
        self.model: Any = bundle.model
        self.mean, self.std = config["image_mean"][0], config["image_std"][0]

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        observer = Observer("head.pooled")
        logits = self.model((images - self.mean) / self.std, obs=observer)
        return observer.record["head.pooled"], logits


class ResNetJudge(Judge):
    """The small ResNet of `experiments.convolution`."""

    def __init__(self) -> None:
        super().__init__()
        self.network = convolution.network()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.network[:-1](images.expand(-1, 3, -1, -1) * 4 - 2)
        return features, self.network[-1](features)


class JudgeLearner(Learner):
    """Classify shifted, and mirrored, training images. images: bytes (N, C, H, W)."""

    images: Tensor
    labels: Tensor

    def __init__(self, model: Judge, images: Tensor, labels: Tensor, *, flip: bool, max_shift: int) -> None:
        super().__init__(model)
        self.flip, self.max_shift = flip, max_shift
        self.register_buffer("images", images, persistent=False)
        self.register_buffer("labels", labels, persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        images, count, size = self.images[rows].float() / 255, len(rows), self.max_shift
        if self.flip:
            images = random_flip(images)
        if size:
            theta = torch.eye(2, 3, device=rows.device).repeat(count, 1, 1)
            pixels = torch.randint(-size, size + 1, (count, 2), device=rows.device)
            theta[:, :, 2] = 2 * pixels / images.shape[-1]
            grid = F.affine_grid(theta, list(images.shape), align_corners=False)
            images = F.grid_sample(images, grid, mode="nearest", align_corners=False)
        logits = self.model(images)[1].float()
        return F.cross_entropy(logits, self.labels[rows], label_smoothing=0.1, reduction="sum")


def random_flip(images: Tensor) -> Tensor:
    """Mirror half of the images."""
    mirrored = torch.rand(len(images), device=images.device) < 0.5
    return torch.where(mirrored[:, None, None, None], images.flip(-1), images)


class Reading(NamedTuple):
    """What a classifier says about images: features (N, D) in float64, and labels (N,)."""

    features: Tensor
    labels: Tensor


@torch.no_grad()
def read(judge: Judge, images: Tensor, device: torch.device) -> Reading:
    """Classify images; features and labels are on the CPU."""
    judge.to(device).eval()
    parts = [judge(part.to(device)) for part in images.split(BATCH)]
    features, labels = zip(*((one.double().cpu(), two.argmax(-1).cpu()) for one, two in parts), strict=True)
    return Reading(torch.cat(features), torch.cat(labels))


# --- drawings and their scores


def draw(bundle: Bundle, prompts: Sequence[int], *, steps: int, guidance: float, seed: int = 0) -> Tensor:
    """Draw an image (N, C, H, W) of each class, with the seeds `seed`, `seed + 1`, ..., in 256 levels."""
    generator = DiffusionImageGenerator(bundle, num_inference_steps=steps, guidance_scale=guidance)
    device = bundle.device
    images = []
    with (
        torch.inference_mode(),
        torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"),
        torch.compiler.set_stance("force_eager"),
    ):
        for first in range(0, len(prompts), BATCH):
            part = prompts[first : first + BATCH]
            drawn = generator.draw(part, range(seed + first, seed + first + len(part)))
            images.append((drawn.float() * 127.5 + 127.5).round().clamp(0, 255).cpu() / 255)
    return torch.cat(images)


class Scores:
    """Scores of images among real ones, all from 0 to 1 but the Frechet distance.

    train: images of training. copy_distance: an image is a copy if it differs by less (root mean square) from
    its nearest training image. compared: number of images whose features are compared with as many random
    training images, since precision, recall and the Frechet distance depend on the numbers.
    """

    def __init__(
        self, judge: Judge, train: Tensor, *, copy_distance: float, compared: int, device: torch.device
    ) -> None:
        self.judge, self.device, self.copy_distance = judge, device, copy_distance
        self.train = train.to(device)
        rows = np.random.default_rng(0).permutation(len(train))[:compared]
        self.features = read(judge, train[torch.from_numpy(rows)], device).features.to(device)

    def __call__(self, images: Tensor, labels: Tensor) -> dict[str, float]:
        """Return the scores of images (N, C, H, W) of these classes (N,).

        agreement: images that the classifier reads as asked. nearest: median distance to a training image.
        """
        found = read(self.judge, images, self.device)
        features = found.features[: len(self.features)].to(self.device)
        precision, recall = precision_and_recall(features, self.features)
        nearest = nearest_neighbors(images.to(self.device), self.train).distances
        return {
            "agreement": float((found.labels == labels).double().mean()),
            "frechet": frechet_distance(features, self.features),
            "precision": precision,
            "recall": recall,
            "nearest": float(nearest.median()),
            "copies": float((nearest < self.copy_distance).double().mean()),
        }


def save_sheet(path: Path, rows: Sequence[Tensor], *, scale: int = 2) -> None:
    """Save rows of images (N, C, H, W) as one PNG, with lines between them."""
    framed = [F.pad(images, (1, 1, 1, 1), value=1.0) for images in rows]
    sheet = torch.cat([torch.cat([*images], -1) for images in framed], -2)  # (C, height, width)
    pixels = (sheet * 255).round().clamp(0, 255).byte().movedim(0, -1).cpu().numpy()
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST).save(path)


def save_nearest(path: Path, drawn: Tensor, train: Tensor, device: torch.device, count: int = 12) -> None:
    """Save the drawings that are most similar to a training image, above these images."""
    found = nearest_neighbors(drawn.to(device), train.to(device))
    rows = found.distances.argsort()[:count]
    save_sheet(path, [drawn[rows.cpu()], train[found.indices[rows].cpu()]])
