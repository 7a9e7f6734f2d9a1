"""The loss of a language model on a text: exact, with overlapping windows, or estimated from a sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

Ids = NDArray[np.int64]
Scores = Callable[[Tensor], Tensor]  # ids (B, T) -> a score for every token of the vocabulary (B, T, V)
IGNORED = -100


def exact(
    scores: Scores, ids: Ids, *, length: int, stride: int | None = None, batch: int = 64, device: str = "cpu"
) -> float:
    """Nats per token over all ids of a text but the first, each predicted once.

    The text is read in windows of `length` ids that start `stride` ids apart. Without a stride they do not
    overlap, so the first ids of a window have little context; with one, a window counts only for the ids
    that the window before did not reach, so every later id has at least `length - stride` ids of context.
    """
    total, count = 0.0, 0
    for window, labels in windows(ids, length, stride or length, batch):
        total += float(_summed(scores, window, labels, device))
        count += int((labels != IGNORED).sum())
    return total / count


def estimated(
    scores: Scores,
    ids: Ids,
    *,
    length: int,
    batch: int = 64,
    batches: int = 200,
    seed: int = 1337,
    device: str = "cpu",
) -> float:
    """nanoGPT's estimate: the mean over random batches of windows."""
    random = np.random.default_rng(seed)
    result = 0.0
    for _ in range(batches):
        starts = random.integers(len(ids) - length, size=batch)
        places = starts[:, None] + np.arange(length)
        result += float(_summed(scores, ids[places], ids[places + 1], device)) / places.size
    return result / batches


def windows(ids: Ids, length: int, stride: int, batch: int) -> Iterator[tuple[Ids, Ids]]:
    """Windows and their labels, each (B, length), every label of the text once; -100 is ignored."""
    labelled = len(ids) - 1
    many = 1 + -(-max(0, labelled - length) // stride)
    for first in range(0, many, batch):
        rows = np.arange(first, min(first + batch, many))[:, None]
        places = rows * stride + np.arange(length)
        new = (rows == 0) | (np.arange(length) >= length - stride)
        counts = new & (places < labelled)
        inside = np.minimum(places, labelled - 1)
        yield ids[inside], np.where(counts, ids[inside + 1], IGNORED)


@torch.no_grad()
def _summed(scores: Scores, ids: Ids, labels: Ids, device: str) -> Tensor:
    logits = scores(torch.from_numpy(ids).to(device)).float()
    targets = torch.from_numpy(labels).to(device)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
