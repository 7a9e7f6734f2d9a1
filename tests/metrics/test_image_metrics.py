"""Metrics of generated images against scipy, torchmetrics and brute force, in float64."""

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm

from glassformer.errors import GlassformerError
from glassformer.metrics.images import frechet_distance, nearest_neighbors, precision_and_recall, psnr


def draw_features(seed: int, rows: int, width: int = 12) -> torch.Tensor:
    """Features with a mean and correlations of their own."""
    rng = np.random.default_rng(seed)
    mixed = rng.normal(size=(rows, width)) @ rng.normal(size=(width, width)) + rng.normal(size=width)
    return torch.from_numpy(mixed)


@pytest.mark.parametrize(("rows", "others"), [(400, 250), (40, 40), (8, 30)])  # 8 rows: singular covariance
def test_frechet_distance_equals_published_formula(rows, others):
    x, y = draw_features(0, rows), draw_features(1, others)
    a, b = np.cov(x.numpy(), rowvar=False), np.cov(y.numpy(), rowvar=False)
    means = float((x.mean(0) - y.mean(0)).square().sum())
    root = sqrtm(a @ b + (1e-12 * np.eye(len(a)) if rows < 12 else 0))
    expected = means + np.trace(a + b - 2 * root.real)
    assert frechet_distance(x, y) == pytest.approx(expected, rel=1e-9 if rows > 12 else 1e-4)
    assert frechet_distance(y, x) == pytest.approx(frechet_distance(x, y), rel=1e-10)
    assert frechet_distance(x, x) == pytest.approx(0, abs=1e-9)


def test_frechet_distance_equals_torchmetrics():
    reference = pytest.importorskip("torchmetrics.image.fid")._compute_fid
    x, y = draw_features(2, 300), draw_features(3, 200)
    expected = reference(x.mean(0), x.T.cov(), y.mean(0), y.T.cov())
    assert frechet_distance(x, y) == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_precision_and_recall_equal_their_definition(k):
    real, generated = draw_features(4, 1100, 3).numpy(), 2 * draw_features(5, 70, 3).numpy()

    def share(points: np.ndarray, manifold: np.ndarray) -> float:
        radii = []
        for n, center in enumerate(manifold):
            others = np.delete(manifold, n, 0)
            radii.append(sorted(np.linalg.norm(others - center, axis=1))[k - 1])
        return np.mean([np.any(np.linalg.norm(manifold - point, axis=1) <= radii) for point in points])

    found = precision_and_recall(torch.from_numpy(generated), torch.from_numpy(real), k=k)
    assert found.precision == share(generated, real) and found.recall == share(real, generated)
    assert 0 < found.recall < 1 and 0 < found.precision < 1


def test_recall_falls_when_drawings_repeat_and_precision_when_they_are_noise():
    real, more = draw_features(6, 900)[:450], draw_features(6, 900)[450:]
    same = precision_and_recall(more, real)
    collapsed = precision_and_recall(more[:9].repeat(50, 1) + 1e-3 * draw_features(7, 450), real)
    noise = precision_and_recall(10 * draw_features(8, 450), real)
    assert min(same) > 0.7 and collapsed.recall < same.recall / 5 and noise.precision < same.precision / 5


def test_nearest_neighbors_of_copies_are_exact():
    rng = torch.Generator().manual_seed(0)
    train = torch.rand(2100, 3, 4, 4, generator=rng) + 100  # a matrix product loses these differences
    other = torch.rand(5, 3, 4, 4, generator=rng) + 100
    found = nearest_neighbors(torch.cat([train[[2099, 7]], other]), train)
    expected = (other[:, None] - train).double().square().flatten(2).mean(2).sqrt()
    assert found.indices[:2].tolist() == [2099, 7] and found.distances[:2].tolist() == [0, 0]
    exact = expected[torch.arange(5), found.indices[2:]]
    torch.testing.assert_close(found.distances[2:].double(), exact, rtol=1e-4, atol=0)
    double = nearest_neighbors(other.double(), train.double())
    assert torch.equal(double.indices, expected.argmin(1))
    torch.testing.assert_close(double.distances, expected.amin(1), rtol=1e-9, atol=0)


def test_psnr_equals_torchmetrics():
    reference = pytest.importorskip("torchmetrics.functional.image").peak_signal_noise_ratio
    rng = torch.Generator().manual_seed(0)
    images, others = torch.rand(2, 4, 3, 8, 8, generator=rng, dtype=torch.float64)
    expected = [reference(a, b, data_range=2.0) for a, b in zip(images, others, strict=True)]
    torch.testing.assert_close(psnr(images, others, data_range=2.0), torch.stack(expected))
    assert psnr(images, images).tolist() == [torch.inf] * 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: frechet_distance(x[:1], x), r"generated has shape \(1, 12\)"),
        (lambda x: frechet_distance(x, x[:, :3]), "12 and 3 values"),
        (lambda x: precision_and_recall(x, x[:3]), "N of 4 or more"),
        (lambda x: precision_and_recall(x, x, k=0), "k is 0"),
        (lambda x: precision_and_recall(x, x / 0), "real contains NaN"),
        (lambda x: psnr(x, x[:2]), "expected that of the references"),
    ],
)
def test_invalid_features_are_reported(call, message):
    with pytest.raises(GlassformerError, match=message):
        call(draw_features(0, 20))
