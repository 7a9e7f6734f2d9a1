"""The loop on a small task of its own: what it promises of batches, faults, averages and taking up again."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from glassformer.data import Batch, Place
from glassformer.data.examples import PairExamples
from glassformer.data.packing import NEXT
from glassformer.errors import GlassformerError
from glassformer.training.model_folders import averaged
from glassformer.training.optimizer import schedule_for
from glassformer.training.run import finish
from glassformer.training.signals import Stopping
from glassformer.training.trainer import Loop
from glassformer.weights.store import open_weights
from tests.training.reversing import WORDS, loop_in, noted, same, weights


def test_however_a_step_is_divided_it_is_one_big_batch(tmp_path: Path) -> None:
    found = {}
    words = replace(WORDS, accumulate=4, clip=0.5)
    for name in ("accumulated", "halved", "whole", "packed"):
        changed = replace(words, batching="rows") if name == "packed" else words
        with loop_in(tmp_path / name, changed, dropout=0.0) as loop:
            if name in ("accumulated", "halved"):
                portion = next(loop.feed.portions(Place()))
                rows = np.concatenate([piece.rows for piece in portion.pieces])
                loop.standing.parts = 2 if name == "halved" else 1
            else:
                lines = rows if name == "whole" else np.insert(rows, range(1, len(rows)), NEXT)
                whole = loop.feed.piece(0, Batch(0, lines, Place()))
                portion = replace(portion, pieces=(whole,))
            loop.learner.train()
            learned = loop.learn(portion)
            assert learned is not None
            found[name] = (float(learned[0]), float(learned[1]), learned[2], weights(loop))
    loss, norm, units, after = found["whole"]
    assert norm > 0.5, "the gradient was short enough not to be clipped"
    for name, (its_loss, its_norm, its_units, its_after) in found.items():
        assert its_units == units, name
        assert math.isclose(its_loss, loss, rel_tol=1e-5), name
        assert math.isclose(its_norm, norm, rel_tol=1e-4), name
        assert all(torch.allclose(its_after[key], after[key], atol=2e-5) for key in after), name


def test_a_run_taken_up_again_is_the_run_that_never_stopped(tmp_path: Path) -> None:
    words = replace(WORDS, ema=0.9, average=2, accumulate=2)
    with loop_in(tmp_path / "through", words) as loop:
        assert loop.run() == "finished"
        through, averages = weights(loop), {n: t.clone() for n, t in loop.ema.tensors.items()}  # type: ignore[union-attr]
    for step in (4, 8):
        folder = tmp_path / f"stopped-{step}"
        with loop_in(folder, replace(words, steps=step, schedule="constant")) as loop:
            loop.schedule = schedule_for(words)
            loop.run()
        with loop_in(folder, words) as loop:
            saved = loop.saving.newest()
            assert saved is not None and saved.step == step
            loop.restore(saved)
            loop.run()
            assert same(weights(loop), through)
            assert same(loop.ema.tensors, averages)  # type: ignore[union-attr]
            assert [kept for kept, _ in loop.standing.kept] == [8, 12]


def test_a_stop_amid_a_step_leaves_it_undone_and_is_made_good(tmp_path: Path) -> None:
    words = replace(WORDS, accumulate=3)
    with loop_in(tmp_path / "through", words) as loop:
        loop.run()
        through = weights(loop)
    asked: list[Stopping] = []

    def stop_at_the_eighth(times: int, _: Tensor, loss: Tensor) -> Tensor:
        if times == 8:  # the second batch of the third step
            asked[0]._first = (15, 0.0)
        return loss

    with loop_in(tmp_path / "stopped", words, change=stop_at_the_eighth) as loop:
        asked.append(loop.stopping)
        assert loop.run() == "asked"
        assert loop.standing.step == 2
    with loop_in(tmp_path / "stopped", words) as loop:
        saved = loop.saving.newest()
        assert saved is not None
        loop.restore(saved)
        loop.run()
        assert same(weights(loop), through)


def test_a_step_that_is_not_finite_or_far_off_is_skipped_and_counted(tmp_path: Path) -> None:
    def spoil(times: int, _: Tensor, loss: Tensor) -> Tensor:
        return {3: loss * float("nan"), 7: loss * float("inf"), 55: loss * 20}.get(times, loss)

    before: dict[int, dict[str, Tensor]] = {}
    with loop_in(tmp_path, replace(WORDS, steps=60, save_every=60, validate_every=60), change=spoil) as loop:
        plain = loop.learn

        def watched(portion: Any) -> Any:
            before[loop.standing.step + 1] = weights(loop)
            return plain(portion)

        loop.learn = watched  # type: ignore[method-assign]
        loop.run()
        assert loop.standing.skipped == 3
        for step in (3, 7, 55):
            assert same(before[step], before[step + 1]), step
        assert not same(before[4], before[5])
        assert all(t.isfinite().all() for t in weights(loop).values())
    told = [line["text"] for line in noted(tmp_path, "event") if "skipped" in line.get("text", "")]
    assert len(told) == 3 and "examples" in told[0]


def test_too_many_such_steps_end_the_run_and_name_the_examples(tmp_path: Path) -> None:
    words = replace(WORDS, steps=40, max_bad_steps=5)
    with (
        loop_in(tmp_path, words, change=lambda n, _, loss: loss * float("nan") if n > 6 else loss) as loop,
        pytest.raises(GlassformerError, match=r"5 steps in a row .* step 11 with the examples \d+"),
    ):
        loop.run()
    assert all(t.isfinite().all() for t in weights(loop).values())


@pytest.mark.parametrize(("batching", "most"), [("lengths", 5), ("rows", 1)])
def test_out_of_memory_halves_the_batches_and_learns_the_same(
    batching: Literal["lengths", "rows"], most: int, tmp_path: Path
) -> None:
    words = replace(WORDS, batching=batching)
    with loop_in(tmp_path / "plain", words, dropout=0.0) as loop:
        loop.run()
        plain = weights(loop)

    def full(_: int, src: Tensor, loss: Tensor) -> Tensor:
        if src.shape[0] > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return loss

    with loop_in(tmp_path / "full", words, dropout=0.0, change=full) as loop:
        loop.run()
        assert loop.standing.parts > 1
        assert all(torch.allclose(plain[n], t, atol=5e-5) for n, t in weights(loop).items())
    with (
        loop_in(tmp_path / "none", change=lambda *_: full(0, torch.ones(9), torch.ones(1))) as loop,
        pytest.raises(GlassformerError, match=r"out of memory in step 1 .* lower training.batch"),
    ):
        loop.run()


def test_the_best_and_the_average_are_kept_and_patience_ends(tmp_path: Path) -> None:
    scores = [math.nan, 3.0, 1.0, 2.0, 1.5, 4.0]  # no number is no score to be beaten
    words = replace(WORDS, steps=40, validate_every=2, patience=3, average=2, average_of="best")
    seen: dict[int, dict[str, Tensor]] = {}
    with loop_in(tmp_path, words, scores=scores) as loop:
        validate = loop.validate

        def noting() -> bool:
            seen[loop.standing.step] = weights(loop)
            return validate()

        loop.validate = noting  # type: ignore[method-assign]
        assert loop.run() == "patience"
    assert loop.standing.step == 12 and loop.standing.best_step == 6
    assert same(dict(open_weights(tmp_path / "best")), seen[6])
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["step-00000006", "step-00000010"]
    mean = averaged((tmp_path / "kept").iterdir())
    assert all(torch.allclose(mean[n], (seen[6][n] + seen[10][n]) / 2) for n in mean)


def test_the_model_that_is_kept_is_told_with_the_figure_that_it_is_best_by(tmp_path: Path) -> None:
    words = replace(WORDS, steps=4, validate_every=2)
    with loop_in(tmp_path, words, scores=[1.25, 3.0]) as loop:
        loop.run()
        loop.standing.best_step = 2250  # as far as a real run goes
        finish(loop, tmp_path)
    told = noted(tmp_path, "event")[-1]["text"]
    assert told == f"the model is the best by loss, 1.25 at step 2,250: {tmp_path / 'model'}"


def test_weights_that_a_checkpoint_counts_on_stay_until_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Loop.save

    def killed_at_the_end(loop: Loop) -> None:
        if loop.standing.step == 12:
            raise KeyboardInterrupt
        plain(loop)

    monkeypatch.setattr(Loop, "save", killed_at_the_end)
    with loop_in(tmp_path, replace(WORDS, average=1)) as loop, pytest.raises(KeyboardInterrupt):
        loop.run()
    saved = loop.saving.newest()
    assert saved is not None and [step for step, _ in saved.state["kept"]] == [8]
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["step-00000008", "step-00000012"]


def test_a_reader_that_fails_is_told_where_the_step_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any, **__: Any) -> Any:
        raise GlassformerError("the disk is gone")

    monkeypatch.setattr(PairExamples, "batch", gone)
    with loop_in(tmp_path) as loop, pytest.raises(GlassformerError, match="the disk is gone"):
        loop.run()
