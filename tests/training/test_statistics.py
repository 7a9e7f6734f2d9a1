"""Norms with running statistics, as forecasters have: a step that is not done leaves these alone too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import glassformer
from glassformer.data.examples import Arrays
from glassformer.training.activation_checkpointing import checkpoint_blocks
from glassformer.training.learner import SeriesLearner, values_learned
from glassformer.training.signals import Stopping
from glassformer.training.task import Task, Validation
from glassformer.weights.store import save_weights
from tests.training.reversing import WORDS, loop_in, same, weights

ACCUMULATED = replace(WORDS, batch=4, accumulate=3)  # no row is like another, so each batch has its own mean


class Noise:
    """Rows of random numbers, each of its own size."""

    def __len__(self) -> int:
        return 40

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.ones((len(rows), 1), np.int64)

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
        drawn = np.stack([np.random.default_rng(row).normal(row, 1 + row, (40, 2)) for row in rows])
        return {"past": drawn[:, :32].astype(np.float32), "future": drawn[:, 32:].astype(np.float32)}


class Troubled(SeriesLearner):
    """A learner in which something happens the so-manieth time that it learns."""

    trouble: Callable[[int], None] = staticmethod(lambda times: None)
    times = 0

    def forward(self, past: Tensor, future: Tensor) -> Tensor:
        self.times += 1
        loss = super().forward(past, future)
        self.trouble(self.times)
        return loss


def forecasting(trouble: Callable[[int], None] | None = None) -> Task:
    torch.manual_seed(5)
    model = glassformer.tiny("patchtst", context_length=32, prediction_length=8, channels=2)
    learner = Troubled(model)
    if trouble is not None:
        learner.trouble = trouble
    return Task(
        learner=learner,
        train=Noise(),
        units="values",
        count=values_learned,
        metric="loss",
        better="lower",
        validate=lambda device: Validation(metrics={"loss": 1.0}),
        save=lambda path: save_weights(path, dict(model.state_dict())),
    )


def test_a_step_that_stops_half_way_or_lacks_memory_is_not_counted_twice(tmp_path: Path) -> None:
    with loop_in(tmp_path / "through", ACCUMULATED, task=forecasting()) as loop:
        loop.run()
        through = weights(loop)
    assert any(name.endswith("running_mean") for name in through)
    asked: list[Stopping] = []

    def stop(times: int) -> None:
        if times == 8:  # the second batch of the third step
            asked[0]._first = (15, 0.0)

    with loop_in(tmp_path / "stopped", ACCUMULATED, task=forecasting(stop)) as loop:
        asked.append(loop.stopping)
        assert loop.run() == "asked" and loop.standing.step == 2
    with loop_in(tmp_path / "stopped", ACCUMULATED, task=forecasting()) as loop:
        saved = loop.saving.newest()
        assert saved is not None
        loop.restore(saved)
        loop.run()
        assert same(weights(loop), through)

    def full(times: int) -> None:
        if times == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    counts = {name: t for name, t in through.items() if name.endswith("num_batches_tracked")}
    with loop_in(tmp_path / "full", ACCUMULATED, task=forecasting(full)) as loop:
        loop.run()
        found = weights(loop)
        assert all(int(found[name]) == 2 * int(count) for name, count in counts.items())  # in two parts each


def test_blocks_that_are_recomputed_count_a_batch_once(tmp_path: Path) -> None:
    found = []
    for name in ("plain", "recomputed"):
        task = forecasting()
        if name == "recomputed":
            assert checkpoint_blocks(task.learner) == 2
        with loop_in(tmp_path / name, replace(WORDS, batch=4, steps=3), task=task) as loop:
            loop.run()
            found.append(weights(loop))
    plain, recomputed = found
    for tensor, other in zip(plain.values(), recomputed.values(), strict=True):
        torch.testing.assert_close(tensor, other)


def test_a_step_that_is_skipped_spoils_no_statistics(tmp_path: Path) -> None:
    task = forecasting()
    past = Noise.batch

    class Spoilt(Noise):
        def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
            arrays = past(self, rows, epoch=epoch)
            arrays["past"][rows == 7] = np.nan
            return arrays

    words = replace(WORDS, batch=4, steps=10)  # one pass over the rows
    with loop_in(tmp_path, words, task=replace(task, train=Spoilt())) as loop:
        loop.run()
        assert loop.standing.skipped == 1
        assert all(bool(tensor.isfinite().all()) for tensor in weights(loop).values())
