"""Batch norms: discarded and skipped steps leave their running statistics unchanged."""

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
from glassformer.training.learner import SeriesLearner, count_values, enable_gradient_checkpointing
from glassformer.training.signals import StopSignals
from glassformer.training.task import TrainingPlan, ValidationResult
from glassformer.weights.store import save_weights
from tests.training.reverse_task import OPTIONS, same, trainer_in, weights

ACCUMULATED = replace(OPTIONS, batch_tokens=4, gradient_accumulation_steps=3)  # each batch has its own mean


class Noise:
    """Rows of random numbers, each of its own size."""

    def __len__(self) -> int:
        return 40

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.ones((len(rows), 1), np.int64)

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
        values = np.stack([np.random.default_rng(row).normal(row, 1 + row, (40, 2)) for row in rows])
        return {"past": values[:, :32].astype(np.float32), "future": values[:, 32:].astype(np.float32)}


class Troubled(SeriesLearner):
    """A learner that calls `trouble` with the number of its forward passes."""

    trouble: Callable[[int], None] = staticmethod(lambda times: None)
    times = 0

    def forward(self, past: Tensor, future: Tensor) -> Tensor:
        self.times += 1
        loss = super().forward(past, future)
        self.trouble(self.times)
        return loss


def forecasting(trouble: Callable[[int], None] | None = None) -> TrainingPlan:
    torch.manual_seed(5)
    model = glassformer.tiny("patchtst", context_length=32, prediction_length=8, channels=2)
    learner = Troubled(model)
    if trouble is not None:
        learner.trouble = trouble
    return TrainingPlan(
        learner=learner,
        train=Noise(),
        unit="values",
        count=count_values,
        metric="loss",
        validate=lambda device: ValidationResult(metrics={"loss": 1.0}),
        save=lambda path: save_weights(path, dict(model.state_dict())),
    )


def test_discarded_steps_do_not_change_running_statistics(tmp_path: Path) -> None:
    with trainer_in(tmp_path / "through", ACCUMULATED, task=forecasting()) as trainer:
        trainer.run_steps()
        through = weights(trainer)
    assert any(name.endswith("running_mean") for name in through)
    received: list[StopSignals] = []

    def stop(times: int) -> None:
        if times == 8:  # the second batch of the third step
            received[0]._first = (15, 0.0)

    with trainer_in(tmp_path / "stopped", ACCUMULATED, task=forecasting(stop)) as trainer:
        received.append(trainer.signals)
        assert trainer.run_steps() == "interrupted" and trainer.state.step == 2
    with trainer_in(tmp_path / "stopped", ACCUMULATED, task=forecasting()) as trainer:
        saved = trainer.checkpoints.newest()
        assert saved is not None
        trainer.restore(saved)
        trainer.run_steps()
        assert same(weights(trainer), through)

    def full(times: int) -> None:
        if times == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    counts = {name: t for name, t in through.items() if name.endswith("num_batches_tracked")}
    with trainer_in(tmp_path / "full", ACCUMULATED, task=forecasting(full)) as trainer:
        trainer.run_steps()
        result = weights(trainer)
        assert all(int(result[name]) == 2 * int(count) for name, count in counts.items())  # in two parts each


def test_gradient_checkpointing_updates_batch_norm_once(tmp_path: Path) -> None:
    result = []
    for name in ("plain", "recomputed"):
        task = forecasting()
        if name == "recomputed":
            assert enable_gradient_checkpointing(task.learner) == 2
        with trainer_in(tmp_path / name, replace(OPTIONS, batch_tokens=4, max_steps=3), task=task) as trainer:
            trainer.run_steps()
            result.append(weights(trainer))
    plain, recomputed = result
    for tensor, other in zip(plain.values(), recomputed.values(), strict=True):
        torch.testing.assert_close(tensor, other)


def test_skipped_step_does_not_change_running_statistics(tmp_path: Path) -> None:
    task = forecasting()
    past = Noise.batch

    class Spoilt(Noise):
        def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
            arrays = past(self, rows, epoch=epoch)
            arrays["past"][rows == 7] = np.nan
            return arrays

    options = replace(OPTIONS, batch_tokens=4, max_steps=10)  # one pass over the rows
    with trainer_in(tmp_path, options, task=replace(task, train=Spoilt())) as trainer:
        trainer.run_steps()
        assert trainer.state.skipped == 1
        assert all(bool(tensor.isfinite().all()) for tensor in weights(trainer).values())
