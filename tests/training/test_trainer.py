"""The trainer on a small task: accumulation, resuming, bad steps, memory, averaging, early stopping."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from glassformer.data import Batch, DataPosition
from glassformer.data.batches import ROW_SEPARATOR
from glassformer.data.examples import PairExamples
from glassformer.errors import FileProblemError
from glassformer.training.checkpoint import average_weights
from glassformer.training.signals import StopSignals
from glassformer.training.trainer import DivergedError, Trainer, TrainingMemoryError
from glassformer.weights.store import open_weights
from tests.training.reverse_task import OPTIONS, logged, same, trainer_in, weights


def test_accumulated_halved_and_packed_steps_equal_one_big_batch(tmp_path: Path) -> None:
    results = {}
    options = replace(OPTIONS, gradient_accumulation_steps=4, max_grad_norm=0.5)
    for name in ("accumulated", "halved", "whole", "packed"):
        changed = replace(options, packing=True) if name == "packed" else options
        with trainer_in(tmp_path / name, changed, dropout=0.0) as trainer:
            if name in ("accumulated", "halved"):
                step = next(trainer.loader.steps(DataPosition()))
                rows = np.concatenate([batch.rows for batch in step.batches])
                trainer.state.splits = 2 if name == "halved" else 1
            else:
                lines = rows if name == "whole" else np.insert(rows, range(1, len(rows)), ROW_SEPARATOR)
                step = replace(step, batches=(trainer.loader.load(0, Batch(0, lines, DataPosition())),))
            trainer.learner.train()
            result = trainer.train_step(step)
            assert result is not None
            results[name] = (float(result[0]), float(result[1]), result[2], weights(trainer))
    loss, norm, units, after = results["whole"]
    assert norm > 0.5, "the gradient was not clipped"
    for name, (its_loss, its_norm, its_units, its_after) in results.items():
        assert its_units == units, name
        assert math.isclose(its_loss, loss, rel_tol=1e-5), name
        assert math.isclose(its_norm, norm, rel_tol=1e-4), name
        assert all(torch.allclose(its_after[key], after[key], atol=2e-5) for key in after), name


def test_resume_is_bit_identical(tmp_path: Path) -> None:
    options = replace(OPTIONS, ema=0.9, average_checkpoints=2, gradient_accumulation_steps=2)
    with trainer_in(tmp_path / "through", options) as trainer:
        assert trainer.run_steps() == "finished"
        through, averages = weights(trainer), {n: t.clone() for n, t in trainer.ema.tensors.items()}  # type: ignore[union-attr]
    for step in (4, 8):
        folder = tmp_path / f"stopped-{step}"
        with trainer_in(folder, replace(options, max_steps=step)) as trainer:
            trainer.schedule = replace(trainer.schedule, max_steps=options.max_steps)
            trainer.run_steps()
        with trainer_in(folder, options) as trainer:
            saved = trainer.checkpoints.newest()
            assert saved is not None and saved.step == step
            trainer.restore(saved)
            trainer.run_steps()
            assert same(weights(trainer), through)
            assert same(trainer.ema.tensors, averages)  # type: ignore[union-attr]
            assert [step for step, _ in trainer.state.averaged] == [8, 12]


def test_stop_inside_a_step_discards_it_and_resumes_bit_identically(tmp_path: Path) -> None:
    options = replace(OPTIONS, gradient_accumulation_steps=3)
    with trainer_in(tmp_path / "through", options) as trainer:
        trainer.run_steps()
        through = weights(trainer)
    received: list[StopSignals] = []

    def stop_at_the_eighth(times: int, _: Tensor, loss: Tensor) -> Tensor:
        if times == 8:  # the second batch of the third step
            received[0]._first = (15, 0.0)
        return loss

    with trainer_in(tmp_path / "stopped", options, change=stop_at_the_eighth) as trainer:
        received.append(trainer.signals)
        assert trainer.run_steps() == "interrupted"
        assert trainer.state.step == 2
    with trainer_in(tmp_path / "stopped", options) as trainer:
        saved = trainer.checkpoints.newest()
        assert saved is not None
        trainer.restore(saved)
        trainer.run_steps()
        assert same(weights(trainer), through)


def test_non_finite_and_outlier_steps_are_skipped(tmp_path: Path) -> None:
    def spoil(times: int, _: Tensor, loss: Tensor) -> Tensor:
        return {3: loss * float("nan"), 7: loss * float("inf"), 55: loss * 20}.get(times, loss)

    before: dict[int, dict[str, Tensor]] = {}
    with trainer_in(
        tmp_path, replace(OPTIONS, max_steps=60, save_steps=60, eval_steps=60), change=spoil
    ) as trainer:
        plain = trainer.train_step

        def watched(step: Any) -> Any:
            before[trainer.state.step + 1] = weights(trainer)
            return plain(step)

        trainer.train_step = watched  # type: ignore[method-assign]
        trainer.run_steps()
        assert trainer.state.skipped == 3
        for step in (3, 7, 55):
            assert same(before[step], before[step + 1]), step
        assert not same(before[4], before[5])
        assert all(t.isfinite().all() for t in weights(trainer).values())
    messages = [line["text"] for line in logged(tmp_path, "event") if "skipped" in line.get("text", "")]
    assert len(messages) == 3


def test_too_many_bad_steps_raise_with_their_examples(tmp_path: Path) -> None:
    options = replace(OPTIONS, max_steps=40, max_skipped_steps=5)
    with (
        trainer_in(
            tmp_path, options, change=lambda n, _, loss: loss * float("nan") if n > 6 else loss
        ) as trainer,
        pytest.raises(DivergedError) as caught,
    ):
        trainer.run_steps()
    assert (caught.value.steps, caught.value.last_step) == (5, 11) and caught.value.examples
    assert all(t.isfinite().all() for t in weights(trainer).values())


@pytest.mark.parametrize(("packing", "most"), [(False, 5), (True, 1)])
def test_out_of_memory_splits_the_batches_and_gives_the_same_weights(
    packing: bool, most: int, tmp_path: Path
) -> None:
    options = replace(OPTIONS, packing=packing)
    with trainer_in(tmp_path / "plain", options, dropout=0.0) as trainer:
        trainer.run_steps()
        plain = weights(trainer)

    def full(_: int, src: Tensor, loss: Tensor) -> Tensor:
        if src.shape[0] > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return loss

    with trainer_in(tmp_path / "full", options, dropout=0.0, change=full) as trainer:
        trainer.run_steps()
        assert trainer.state.splits > 1
        assert all(torch.allclose(plain[n], t, atol=5e-5) for n, t in weights(trainer).items())
    with (
        trainer_in(tmp_path / "none", change=lambda *_: full(0, torch.ones(9), torch.ones(1))) as trainer,
        pytest.raises(TrainingMemoryError) as caught,
    ):
        trainer.run_steps()
    assert caught.value.step == 1


def test_best_and_averaged_weights_are_saved_and_patience_stops_early(tmp_path: Path) -> None:
    scores = [math.nan, 3.0, 1.0, 2.0, 1.5, 4.0]  # NaN never counts as best
    options = replace(
        OPTIONS,
        max_steps=40,
        eval_steps=2,
        early_stopping_patience=3,
        average_checkpoints=2,
        average_selection="best",
    )
    validated: dict[int, dict[str, Tensor]] = {}
    with trainer_in(tmp_path, options, scores=scores) as trainer:
        validate = trainer.validate

        def noting() -> bool:
            validated[trainer.state.step] = weights(trainer)
            return validate()

        trainer.validate = noting  # type: ignore[method-assign]
        assert trainer.run_steps() == "early stop"
    assert trainer.state.step == 12 and trainer.state.best_step == 6
    assert same(dict(open_weights(tmp_path / "best")), validated[6])
    assert sorted(path.name for path in (tmp_path / "averaged").iterdir()) == [
        "step-00000006",
        "step-00000010",
    ]
    mean = average_weights((tmp_path / "averaged").iterdir())
    assert all(torch.allclose(mean[n], (validated[6][n] + validated[10][n]) / 2) for n in mean)


def test_weights_to_average_stay_until_the_next_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Trainer.save

    def killed_at_the_end(trainer: Trainer) -> None:
        if trainer.state.step == 12:
            raise KeyboardInterrupt
        plain(trainer)

    monkeypatch.setattr(Trainer, "save", killed_at_the_end)
    with (
        trainer_in(tmp_path, replace(OPTIONS, average_checkpoints=1)) as trainer,
        pytest.raises(KeyboardInterrupt),
    ):
        trainer.run_steps()
    saved = trainer.checkpoints.newest()
    assert saved is not None and [step for step, _ in saved.state["averaged"]] == [8]
    assert sorted(path.name for path in (tmp_path / "averaged").iterdir()) == [
        "step-00000008",
        "step-00000012",
    ]


def test_an_error_while_loading_data_is_raised_by_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any, **__: Any) -> Any:
        raise FileProblemError("data", "gone")

    monkeypatch.setattr(PairExamples, "batch", gone)
    with trainer_in(tmp_path) as trainer, pytest.raises(FileProblemError):
        trainer.run_steps()
