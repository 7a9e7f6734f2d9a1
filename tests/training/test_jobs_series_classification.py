"""Classification of time series, from files in every format to a folder that transformers loads too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import glassformer
from glassformer.data.labeled_series import (
    SeriesAugment,
    SeriesExamples,
    SeriesPreparation,
    read_labeled_series,
)
from glassformer.errors import FileProblemError, InvalidValueError, UnknownNameError
from glassformer.processors.series import SeriesProcessor
from glassformer.tasks import RejectedInputError
from glassformer.training.data_cache import no_log
from glassformer.training.evaluation import evaluate_files
from glassformer.training.recipe import parse_recipe
from glassformer.training.run import run

STEPS = 40
SIZES = {"d_model": 16, "num_heads": 2, "d_ff": 32, "num_layers": 1, "patch_length": 8, "stride": 4}


def waves(count: int, seed: int) -> tuple[NDArray[np.float64], list[str]]:
    """Slow and fast noisy waves (N, T, 2) at random phases, in two channels."""
    draw, time = np.random.default_rng(seed), np.arange(STEPS)
    labels = ["slow", "fast"] * (count // 2)
    speed = np.array([0.2 if label == "slow" else 0.5 for label in labels])[:, None]
    phase = draw.uniform(0, 6, (count, 1))
    wave = np.stack((np.sin(speed * time + phase), np.cos(speed * time + phase)), 2)
    return wave + draw.normal(0, 0.2, wave.shape), labels


def write_ts(path: Path, values: Any, labels: list[str]) -> Path:
    lines = ["# a comment", "@problemName waves", "@univariate false", "@classLabel true slow fast", "@data"]
    for series, label in zip(values, labels, strict=True):
        channels = (
            ",".join("?" if np.isnan(x) else f"{x:.17g}" for x in row) for row in np.transpose(series)
        )
        lines.append(":".join((*channels, label)))
    path.write_text("\n".join(lines) + "\n")
    return path


def train(folder: Path, file: Path, **training: Any) -> Path:
    recipe = {
        "job": "classify",
        "data": {"train": [str(file)]},
        "model": SIZES,
        "training": {"max_steps": 60, "lr": 0.01, "batch_size": 16, "eval_steps": 30, **training},
    }
    run(parse_recipe(recipe), folder, log=no_log)
    return folder / "model"


def test_formats_are_read_alike(tmp_path: Path) -> None:
    values = [np.array([[1.0], [2.5], [np.nan], [4.0]]), np.array([[0.0], [-1.0], [3.0]])]
    (tmp_path / "a.ts").write_text("@classLabel true 1 2\n@data\n1,2.5,?,4:1\n0,-1,3:2\n")
    (tmp_path / "a.tsv").write_text("1\t1\t2.5\tNaN\t4\n2\t0\t-1\t3\tNaN\n")
    (tmp_path / "a.txt").write_text("  1.0e+00  1.0 2.5 NaN 4\n  2.0e+00  0 -1 3 NaN\n")
    (tmp_path / "wide.csv").write_text("t0,t1,t2,t3,label\n1,2.5,,4,1\n0,-1,3,,2\n")
    rows = ["a,2,,1", "a,1,2.5,1", "a,0,1,1", "a,3,4,1", "b,0,0,2", "b,1,-1,2", "b,2,3,2"]  # in any order
    (tmp_path / "long.csv").write_text("\n".join(["unique_id,ds,x,label", *rows]) + "\n")
    for name in ("a.ts", "a.tsv", "a.txt", "wide.csv", "long.csv"):
        series = read_labeled_series(tmp_path / name)
        assert series.labels == ["1", "2"], name
        for ours, expected in zip(series.values, values, strict=True):
            np.testing.assert_array_equal(ours, expected, err_msg=name)


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("bad.ts", "@classLabel true a\n@data\n1,2:a\n1,2:3,4:a\n", 4),
        ("text.tsv", "1\t2\t3\n1\t2\tthree\n", 2),
        ("both.csv", "unique_id,ds,x,label\na,1,0,u\na,2,0,v\n", 3),
        ("none.csv", "t0,t1\n1,2\n", None),
    ],
)
def test_bad_files_are_rejected(tmp_path: Path, name: str, content: str, line: int | None) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(FileProblemError) as caught:
        read_labeled_series(tmp_path / name)
    assert caught.value.line == line


def test_augmentation_depends_on_row_and_epoch_only() -> None:
    values, _ = waves(8, 0)
    preparation = SeriesPreparation.fit(list(values), length=STEPS, difference=True)
    augment = SeriesAugment(jitter_std=0.1, scale_std=0.1, time_warp=0.3, max_shift=0.2, max_mask=0.3)
    examples = SeriesExamples(
        values=values, labels=np.zeros(8, np.int64), preparation=preparation, augment=augment, seed=5
    )
    together = examples.batch(np.arange(8), epoch=3)["inputs"]
    assert together.shape == (8, STEPS, 4)
    np.testing.assert_array_equal(examples.batch(np.array([5]), epoch=3)["inputs"], together[5:6])
    assert np.abs(examples.batch(np.arange(8), epoch=4)["inputs"] - together).max() > 0.1
    none = SeriesAugment(jitter_std=0.0, scale_std=0.0, time_warp=0.0, max_mask=0.0)
    off = none.augment(values, preparation, np.arange(8), seed=5, epoch=3)
    np.testing.assert_allclose(off, preparation(list(values)), atol=1e-6)


def test_job_learns_and_transformers_reads_the_model(tmp_path: Path) -> None:
    values, labels = waves(80, 1)
    values[3, 7, 0] = np.nan
    model = train(tmp_path / "run", write_ts(tmp_path / "train.ts", values, labels))
    tests, truth = waves(60, 2)
    file = write_ts(tmp_path / "test.ts", tests, truth)
    metrics = evaluate_files(model, [str(file)], device="cpu", log=no_log).validation.metrics
    assert metrics["accuracy"] > 0.9 and metrics["f1"] > 0.9
    pipeline = glassformer.load(model)
    results = pipeline.classify(tests)
    accuracy = np.mean([labels[0].label == true for labels, true in zip(results, truth, strict=True)])
    assert accuracy == pytest.approx(metrics["accuracy"])
    assert [one[0].label for one in pipeline.classify(file)] == [one[0].label for one in results]
    shorter = pipeline.classify([tests[0][::2], tests[1]])  # of unequal lengths
    assert sum(label.score for label in shorter[0]) == pytest.approx(1)
    with pytest.raises(RejectedInputError) as rejected:
        pipeline.classify([tests[0], tests[1, :, :1]])
    assert rejected.value.number == 2 and isinstance(rejected.value.reason, InvalidValueError)
    with pytest.raises(InvalidValueError):
        pipeline.classify(tests[1, :, :1])
    with pytest.raises(UnknownNameError):
        evaluate_files(model, [str(write_ts(file, tests, ["third"] * 60))], device="cpu", log=no_log)

    transformers = pytest.importorskip("transformers")
    theirs = transformers.PatchTSTForClassification.from_pretrained(model).eval()
    assert theirs.config.id2label == {0: "fast", 1: "slow"}
    inputs = SeriesProcessor(pipeline).collate(list(tests))["inputs"]
    with torch.no_grad():
        expected = theirs(past_values=inputs).prediction_logits
        torch.testing.assert_close(pipeline.model(inputs), expected, atol=1e-5, rtol=1e-5)
