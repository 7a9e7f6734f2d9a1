"""The power fails at any moment of a save: the checkpoint before or the new one is there, never neither."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from glassformer.errors import GlassformerError
from tests.faults.disk import Call, Disk, watched
from tests.faults.power import crash_states, put
from tests.faults.saving import Saved, loaded, save
from tests.faults.scale import Report, trials

pytestmark = pytest.mark.slow

# Saves of a step that is new, of one that is there already, and where only one checkpoint is kept.
HISTORIES: dict[str, tuple[list[Saved], int]] = {
    "first": ([(1, 0)], 2),
    "next": ([(1, 0), (2, 0), (3, 0)], 2),
    "again": ([(1, 0), (1, 1)], 1),
}


def recorded(folder: Path, saves: Sequence[Saved], keep: int) -> tuple[list[Call], list[int]]:
    """Every change the saves make, and how many had been made when each of them returned."""
    folder.mkdir()
    ends = []
    with watched(Disk(folder)) as disk:
        for saved in saves:
            save(folder / "runs" / "checkpoints", saved, keep=keep)
            ends.append(len(disk.done))
    return disk.done, ends


def broken_states(
    calls: Sequence[Call], ends: Sequence[int], saves: Sequence[Saved], folder: Path, moments: set[int]
) -> tuple[int, list[str]]:
    """How many states of these moments were tried, and what was wrong with those that were not sound."""
    failures, tried = [], 0
    for moment, tree in crash_states(calls, moments, random.Random(0)):
        tried += 1
        promised = max((i for i, end in enumerate(ends) if end <= moment), default=None)
        allowed: list[Saved | None] = [saves[promised] if promised is not None else None]
        if moment < ends[-1]:
            allowed.append(saves[-1])
        put(tree, folder)
        try:
            found = loaded(folder / "runs" / "checkpoints")
            if found not in allowed:
                failures.append(f"after {moment} changes {found} was found and not one of {allowed}")
        except (GlassformerError, AssertionError) as error:
            failures.append(f"after {moment} changes: {error}")
        for path in folder.iterdir():
            shutil.rmtree(path)
        if len(failures) == 20:
            break
    return tried, failures


@pytest.mark.parametrize("history", HISTORIES)
def test_power_loss_leaves_the_old_or_the_new_checkpoint(
    history: str, tmp_path: Path, report: Report
) -> None:
    saves, keep = HISTORIES[history]
    calls, ends = recorded(tmp_path / "watched", saves, keep)
    moments = range(ends[-2] if len(ends) > 1 else 0, ends[-1] + 1)
    chosen = {ends[-1], *random.Random(1).sample(moments, trials(len(moments)))}
    tried, failures = broken_states(calls, ends, saves, _new(tmp_path / "after"), chosen)
    report(f"power loss in a save ({history})", tried, failures)


@pytest.mark.parametrize("forgotten", ["fsync of files", "fsync of folders"])
def test_the_replay_finds_a_saver_that_does_not_sync(forgotten: str, tmp_path: Path) -> None:
    """The same history with the fsyncs struck out: the states must then hold losses, or nothing is tested."""
    saves, keep = HISTORIES["next"]
    calls, ends = recorded(tmp_path / "watched", saves, keep)
    files = {call.path for call in calls if call.name == "create"}
    kept = [call.name != "fsync" or (call.path in files) != (forgotten == "fsync of files") for call in calls]
    fewer = [call for call, keep_it in zip(calls, kept, strict=True) if keep_it]
    shorter = [sum(kept[:end]) for end in ends]
    tried, failures = broken_states(fewer, shorter, saves, _new(tmp_path / "after"), {shorter[-1]})
    assert tried and failures


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder
