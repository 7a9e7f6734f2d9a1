"""Kill, stop and signal whole runs at random moments: they end with what an undisturbed run ends with."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import time
from pathlib import Path

from glassformer.errors import GlassformerError
from tests.faults.runs import (
    ACCUMULATE,
    LIMIT,
    SAVE_EVERY,
    STEPS,
    Child,
    Workplace,
    differing,
    noted_step,
    on_batch,
    outcome,
    saved_step,
)

TURNS = 60  # kills of one run
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def kill_runs(work: Workplace, count: int, seed: int) -> tuple[int, list[str]]:
    """SIGKILL at any moment from the first on; a run is started again until it is through, then a new one."""
    chance = random.Random(seed)
    whole = outcome(work.undisturbed)
    failures: list[str] = []
    kills = number = 0
    while kills < count and len(failures) < 10:
        number += 1
        out = work.folder / f"killed-{number}"
        for turn in itertools.count():
            child = work.start(out, report=True)
            # On a busy machine a run may be slower than its killer: in the end it is let through.
            due = kills < count and turn < TURNS
            killed = due and _killed_after(child, chance.uniform(0, 0.6 * work.seconds))
            told = child.wait()
            if not killed or told.code == 0:
                break
            kills += 1
            if told.code != -signal.SIGKILL:
                failures.append(f"kill {kills}: exit {told.code}: {told.said[-1500:]}")
                break
            try:
                lost = noted_step(out) - saved_step(out)
            except GlassformerError as error:
                failures.append(f"kill {kills}: {error}")
                break
            if lost > SAVE_EVERY:
                failures.append(f"kill {kills}: {lost} steps were lost, more than the {SAVE_EVERY} of a save")
        if fault := told.fault(0):
            failures.append(f"run {number}: {fault}")
        elif wrong := differing(whole, outcome(out)):
            failures.append(f"run {number} after its kills: {wrong}")
        shutil.rmtree(out)
    return kills, failures


def _killed_after(child: Child, seconds: float) -> bool:
    """Whether the child still ran when it was to be killed."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not child.alive():
            return False
        time.sleep(0.001)
    child.kill()
    return True


def stop_runs(work: Workplace, count: int, seed: int) -> tuple[int, list[str]]:
    """Stopped at a random step, between or within its batches, by a signal or by `steps`; then gone on with.

    A signal leaves one checkpoint, of the last whole step, and its own exit code.
    """
    chance = random.Random(seed)
    whole = outcome(work.undisturbed)
    failures = []
    for number in range(count):
        out = work.folder / "stopped"
        step, batch = chance.randrange(2, STEPS), chance.randrange(ACCUMULATE)
        if number % 4 == 3:
            what = f"steps={step}"
            fault = work.run(out, training_steps=step).fault(0)
            expected = step
        else:
            asked = SIGNALS[number % 4]
            what = f"{asked.name} in batch {batch} of step {step}"
            told = work.run(out, lambda asked=asked: signal_itself(asked, step, batch))  # noqa: B023
            fault = told.fault(128 + asked, "run the same command again to resume")
            # A step whose last batch is being learned is done first; another is not begun on.
            expected = step if batch + 1 == ACCUMULATE else step - 1
        names = sorted(path.name for path in (out / "checkpoints").glob("*step-*"))
        if fault is None and (not names or names[-1] != f"step-{expected:08}" or names[0][0] == "."):
            fault = f"there are {names}, and step {expected} is expected"
        fault = fault or work.run(out).fault(0, f"resuming from step {expected} of {STEPS}")
        fault = fault or differing(whole, outcome(out))
        if fault:
            failures.append(f"{what}: {fault}")
        shutil.rmtree(out)
    return count, failures


def signal_itself(asked: int, step: int, batch: int) -> None:
    """In a run from its beginning: send this process the signal in that batch of that step."""

    def told(number: int, _: object) -> float:
        if number == (step - 1) * ACCUMULATE + batch + 1:
            os.kill(os.getpid(), asked)
        return 1.0

    on_batch(told)


def signal_runs(work: Workplace, count: int, seed: int) -> tuple[int, list[str]]:
    """A signal at any moment, preparation, validation, saving and the end included."""
    chance = random.Random(seed)
    whole = outcome(work.undisturbed)
    failures = []
    for number in range(count):
        out = work.folder / "signalled"
        asked = SIGNALS[number % len(SIGNALS)]
        child = work.start(out)
        time.sleep(chance.uniform(0.03, work.seconds))
        child.kill(asked)
        sent = time.monotonic()
        told = child.wait()
        took = time.monotonic() - sent
        # Before the run watches for signals the system's own answer to them holds.
        early = told.code == -asked and not (out / "checkpoints").exists()
        fault = None if early or told.code == 0 else told.fault(128 + asked)
        if took > 10:
            fault = f"it took {took:.0f} s to stop"
        fault = fault or work.run(out).fault(0) or differing(whole, outcome(out))
        if fault:
            failures.append(f"{asked.name}: {fault}")
        shutil.rmtree(out, ignore_errors=True)
    return count, failures


def race_runs(work: Workplace, count: int, seed: int) -> tuple[int, list[str]]:
    """Two runs started in one folder at once: one is rejected, the other is unharmed."""
    chance = random.Random(seed)
    whole = outcome(work.undisturbed)
    failures = []
    for number in range(count):
        out, finish = work.folder / "raced", work.folder / f"finish-{number}"
        first = work.start(out, lambda: train_after(finish))  # noqa: B023
        time.sleep(chance.uniform(0, 0.3) if number % 2 else 0)
        both = (first, work.start(out, lambda: train_after(finish)))  # noqa: B023
        begun = time.monotonic()
        while all(child.alive() for child in both) and time.monotonic() - begun < LIMIT / 2:
            time.sleep(0.002)
        through = number % 5 == 0  # to the end only now and then
        if through:
            finish.touch()
        for child in both if not through else ():
            child.kill()
        ends = sorted((child.wait() for child in both), key=lambda told: told.code)
        survivor, rejected = ends  # 0 or -9, and 2
        fault = rejected.fault(2, "is in use by another run")
        if through:
            fault = fault or survivor.fault(0) or differing(whole, outcome(out))
        if fault:
            failures.append(f"race {number}: {fault}")
        shutil.rmtree(out)
    return count, failures


def train_after(file: Path) -> None:
    """In a run: wait for a file before the first batch."""

    def wait(number: int, _: object) -> float:
        while not file.exists():
            time.sleep(0.002)
        return 1.0

    on_batch(wait)


def prepared(folder: Path) -> Workplace:
    """A workplace with an undisturbed run in it, and how long that took."""
    work = Workplace(folder)
    work.preload()
    for out in (work.undisturbed, folder / "twin"):
        begun = time.monotonic()
        told = work.run(out, report=True)
        work.seconds = time.monotonic() - begun
        assert told.code == 0, told.said
    assert (wrong := differing(outcome(work.undisturbed), outcome(folder / "twin"))) is None, wrong
    return work
