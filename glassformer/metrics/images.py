"""Metrics of generated images: Frechet distance, precision and recall, copies of training images, PSNR.

Features are vectors of a network, e.g. of a classifier of the same kind of images. The Frechet distance is
called FID only in the features of the Inception network with which it was published; in other features, its
values can only be compared with each other.

Distances are computed in blocks on the device of the features. Use float64 features, or the matrix products
behind distances and covariances round to about three digits.

N generated images or queries, M real images or keys, D values of a feature vector or an image.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.errors import ConflictError, InvalidValueError, NonFiniteError, ShapeError

BLOCK = 1024  # rows whose distances to all others are computed at once


def frechet_distance(generated: Tensor, real: Tensor) -> float:
    """Return the Frechet distance of two Gaussians with the means and covariances of features (N, D), (M, D).

    |mean - mean'|^2 + trace(cov + cov' - 2 (cov cov')^(1/2)), with unbiased covariances (Heusel et al.).
    It falls with the number of images, so compare it for equal numbers; above D of them, better 10 D.

    >>> real = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 2.0]])
    >>> round(frechet_distance(real + torch.tensor([3.0, 4.0]), real), 9)
    25.0
    """
    x, y = _features(generated, real, minimum=2)
    means = [part.mean(0) for part in (x, y)]
    scale = math.sqrt(len(x) - 1), math.sqrt(len(y) - 1)
    a, b = ((part - mean) / n for part, mean, n in zip((x, y), means, scale, strict=True))
    # cov = a^T a, cov' = b^T b; the trace of (cov cov')^(1/2) is the sum of the singular values of a b^T
    # and of the smaller r_a r_b^T with the triangular factors: exact for singular covariances too
    factors = [torch.linalg.qr(part, mode="r").R for part in (a, b)]
    overlap = torch.linalg.svdvals(factors[0] @ factors[1].T).sum()
    distance = (means[0] - means[1]).square().sum() + a.square().sum() + b.square().sum() - 2 * overlap
    return max(0.0, float(distance))


class PrecisionRecall(NamedTuple):
    """Shares from 0 to 1. precision: of generated images that look real; recall: of real ones covered."""

    precision: float
    recall: float


def precision_and_recall(generated: Tensor, real: Tensor, *, k: int = 3) -> PrecisionRecall:
    """Return precision and recall of features (N, D) and (M, D) (Kynkäänniemi et al., 2019).

    The manifold of a set is the union of balls around its features; a ball reaches to the k-th nearest other
    feature of the set. Precision is the share of generated features on the manifold of the real ones, recall
    the share of real features on that of the generated ones. Recall grows with N: compare it for equal N.

    >>> precision_and_recall(torch.tensor([[0.25], [0.75]]), torch.arange(8.0)[:, None], k=1)
    PrecisionRecall(precision=1.0, recall=0.25)
    """
    x, y = _features(generated, real, minimum=k + 1)
    if k < 1:
        raise InvalidValueError("k", k, "1 or more")
    return PrecisionRecall(precision=_share_inside(x, y, k), recall=_share_inside(y, x, k))


class NearestNeighbors(NamedTuple):
    """The nearest key of each query. distances: root mean square of the differences (N,); indices (N,)."""

    distances: Tensor
    indices: Tensor


def nearest_neighbors(queries: Tensor, keys: Tensor) -> NearestNeighbors:
    """Return the nearest of the images (M, ...), e.g. of training, for each of the images (N, ...).

    >>> images = torch.eye(4).view(4, 2, 2)
    >>> found = nearest_neighbors(images[[2, 0]] * 0.9, images)
    >>> found.indices.tolist(), [round(d, 6) for d in found.distances.tolist()]
    ([2, 0], [0.05, 0.05])
    """
    x, y = queries.flatten(1), keys.flatten(1)
    _check(x, y, minimum=1)
    indices = torch.cat([block.argmin(1) for block in _distances(x, y)])
    # again without the rounding of the matrix product: an exact copy has distance 0
    pairs = zip(x.split(BLOCK), indices.split(BLOCK), strict=True)
    distances = torch.cat([(part - y[rows]).square().mean(1).sqrt() for part, rows in pairs])
    return NearestNeighbors(distances, indices)


def psnr(images: Tensor, references: Tensor, *, data_range: float = 1.0) -> Tensor:
    """Return the peak signal-to-noise ratio in dB of each image (B, ...); infinity for equal images.

    data_range: the largest possible difference of two values.

    >>> psnr(torch.full((1, 3, 2, 2), 0.9), torch.ones(1, 3, 2, 2)).round(decimals=3)
    tensor([20.])
    """
    if images.shape != references.shape or images.ndim < 2:
        raise ShapeError("images", images.shape, f"that of the references, {tuple(references.shape)}")
    error = (images - references).flatten(1).square().mean(1)
    return 10 * torch.log10(data_range**2 / error)


def _features(generated: Tensor, real: Tensor, *, minimum: int) -> tuple[Tensor, Tensor]:
    """Return both features in float64."""
    _check(generated, real, minimum=minimum)
    return generated.double(), real.double()


def _check(x: Tensor, y: Tensor, *, minimum: int) -> None:
    for name, part in (("generated", x), ("real", y)):
        if part.ndim != 2 or len(part) < minimum:
            raise ShapeError(name, part.shape, f"(N, D) with N of {minimum} or more")
        if not part.isfinite().all():
            raise NonFiniteError(name)
    if x.shape[1] != y.shape[1]:
        raise ConflictError(("generated", "real"), f"they have {x.shape[1]} and {y.shape[1]} values")


def _distances(x: Tensor, y: Tensor) -> Iterator[Tensor]:
    """Yield Euclidean distances (BLOCK, M) of blocks of x (N, D) to all of y (M, D)."""
    for block in x.split(BLOCK):
        yield torch.cdist(block, y)


def _share_inside(x: Tensor, manifold: Tensor, k: int) -> float:
    """Return the share of x (N, D) in the balls around manifold (M, D)."""
    # a feature is its own nearest one, hence k + 1
    radii = torch.cat([block.kthvalue(k + 1, dim=1).values for block in _distances(manifold, manifold)])
    inside = sum(int((block <= radii).any(1).sum()) for block in _distances(x, manifold))
    return inside / len(x)
