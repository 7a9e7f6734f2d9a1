"""Snapshots save weights along the run and change nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from glassformer.training.checkpoint import save_snapshot, snapshot_steps
from glassformer.weights.store import open_weights
from tests.training.reverse_task import OPTIONS, same, trainer_in, weights


@pytest.mark.parametrize("steps", [1, 2, 7, 1000, 123_456])
def test_snapshot_steps_include_both_ends(steps: int) -> None:
    for count in range(15):
        chosen = snapshot_steps(count, steps)
        assert len(chosen) <= count and all(0 <= step <= steps for step in chosen)
        assert not count or steps in chosen
        assert count < 2 or 0 in chosen
        if steps >= 1000:
            assert len(chosen) == count


def test_snapshots_hold_the_weights_of_their_steps_and_do_not_change_the_run(tmp_path: Path) -> None:
    with (
        trainer_in(tmp_path / "plain") as plain,
        trainer_in(tmp_path / "run", replace(OPTIONS, snapshots=4)) as trainer,
    ):
        first = weights(trainer)
        plain.run_steps()
        trainer.run_steps()
        assert same(weights(plain), weights(trainer))
        last = weights(trainer)
    folder = tmp_path / "run" / "snapshots"
    assert sorted(path.name for path in folder.iterdir()) == [f"step-{n:08}" for n in (0, 1, 3, 12)]
    assert same(first, dict(open_weights(folder / "step-00000000")))
    assert same(last, dict(open_weights(folder / "step-00000012")))
    assert not same(last, dict(open_weights(folder / "step-00000003")))
    assert not (tmp_path / "plain" / "snapshots").exists()


def test_a_snapshot_that_cannot_be_written_is_logged(tmp_path: Path) -> None:
    messages: list[str] = []

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    save_snapshot(tmp_path, 7, full, messages.append)
    assert len(messages) == 1
