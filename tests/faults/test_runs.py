"""Runs of `glassformer train` that are killed, stopped, raced or meet a bad disk.

Nothing that was saved is lost, and a run that continues ends as if nothing had happened, to the bit.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from glassformer.cli.main import main
from glassformer.training import load_checkpoint, run
from glassformer.training.learner import PairLearner
from glassformer.training.logging.history import read_history
from tests.faults.disk import Disk
from tests.faults.scale import trials
from tests.forked import LIMIT, Forked

pytestmark = pytest.mark.slow
STEPS, SAVE_EVERY, ACCUMULATE = 16, 4, 2
# Two batches per step, dropout and an EMA: all that a resumed run could get wrong.
SETTINGS = """
seed=3 tokenizer.kind=word model.d_model=16 model.num_heads=2 model.num_layers=1 model.d_ff=16
model.dropout=0.1 training.batch_tokens=120 training.lr=0.01 training.warmup_steps=4
training.lr_scheduler=inverse_sqrt training.ema=0.9 training.load_best_model_at_end=false
training.eval_steps=8 training.logging_steps=1 training.max_generate_samples=4 training.device=cpu
"""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass
class Runs:
    """A folder with the data, and runs forked from this process, which has imported everything."""

    folder: Path
    numbers: Any = field(default_factory=count)
    whole: dict[str, Any] = field(default_factory=dict)  # the outcome of an undisturbed run
    seconds: float = 1.0  # that it takes

    def start(self, out: Path, before: Callable[[], object] = lambda: None, *, steps: int = STEPS) -> Forked:
        """Start a run, after `before` in its process."""
        own = [f"training.max_steps={steps}", f"training.save_steps={SAVE_EVERY}"]
        settings = [*SETTINGS.split(), *own, f"training.gradient_accumulation_steps={ACCUMULATE}"]
        argv = ["train", "translate", "--train", str(self.folder / "pairs.tsv"), "--valid", "0.1"]
        argv += ["--out", str(out), *(word for setting in settings for word in ("--set", setting))]

        def act() -> None:
            run.write_report = lambda folder: []
            before()
            main(argv)

        return Forked(act, self.folder / f"child-{next(self.numbers)}")

    def run(self, out: Path, before: Callable[[], object] = lambda: None, *, steps: int = STEPS) -> Forked:
        child = self.start(out, before, steps=steps)
        child.wait()
        return child

    def finish(self, out: Path) -> None:
        """Continue a disturbed run: it ends as the undisturbed one did, to the bit."""
        check(self.run(out), 0)
        result = outcome(out)
        assert [name for name in self.whole if result[name] != self.whole[name]] == []
        shutil.rmtree(out)


def check(child: Forked, code: int, *argv: str) -> None:
    assert child.code() == code and "Traceback" not in child.err, child.err[-2000:]
    assert all(word in child.err for word in argv), child.err[-2000:]


def outcome(folder: Path) -> dict[str, Any]:
    """All that must be the same of two runs of one recipe."""
    saved = load_checkpoint(folder / "checkpoints")
    assert saved is not None
    tensors = {
        f"{group}.{name}": tensor.numpy().tobytes()
        for group, tensors in saved.tensors.items()
        for name, tensor in tensors.items()
    }
    lines = {
        line["step"]: (line["loss"], line["grad_norm"], line["lr"]) for line in read_history(folder).steps
    }
    model = (folder / "model" / "model.safetensors").read_bytes()
    return {
        "model": model,
        "step": saved.step,
        "tensors": tensors,
        "position": saved.state["position"],
        "losses": lines,
    }


def on_batch(change: Callable[[int], object]) -> None:
    """In a run: call a function with the number of each training batch, from 1."""
    real, numbers = PairLearner.forward, count(1)

    def forward(self: PairLearner, **batch: Tensor) -> Tensor:
        if self.training:
            change(next(numbers))
        return real(self, **batch)

    PairLearner.forward = forward  # type: ignore[assignment,method-assign]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A copy task of 120 short sentences, on which an epoch is a dozen steps, and an undisturbed run."""
    runs_folder = Runs(tmp_path_factory.mktemp("faults"))
    chance = random.Random(0)
    lines = [" ".join(chance.choices("abcdefghij", k=chance.randint(3, 7))) for _ in range(120)]
    (runs_folder.folder / "pairs.tsv").write_text("".join(f"{line}\t{line}\n" for line in lines))
    started = time.monotonic()
    check(runs_folder.run(runs_folder.folder / "undisturbed"), 0)
    runs_folder.seconds = time.monotonic() - started
    runs_folder.whole = outcome(runs_folder.folder / "undisturbed")
    return runs_folder


def test_sigkill_at_any_moment_loses_no_saved_step(runs: Runs, tmp_path: Path) -> None:
    chance, kills, out = random.Random(0), 0, tmp_path / "run"
    while kills < trials(400):
        child = runs.start(out)
        time.sleep(chance.uniform(0, 0.6 * runs.seconds))
        child.send_signal(signal.SIGKILL)
        if child.wait() == 0 or kills % 20 == 19:
            runs.finish(out)
        kills += 1
        if (out / "metrics.jsonl").exists():
            saved = load_checkpoint(out / "checkpoints")
            logged = max((line["step"] for line in read_history(out).steps), default=0)
            assert logged - (saved.step if saved else 0) <= SAVE_EVERY
    runs.finish(out)


@pytest.mark.parametrize("number", range(trials(40)))
def test_ctrl_c_saves_the_last_step_and_resumes(runs: Runs, tmp_path: Path, number: int) -> None:
    """A signal between or within the batches of a step; or the run ends early by its `steps`."""
    chance = random.Random(number)
    step, batch = chance.randrange(2, STEPS), chance.randrange(ACCUMULATE)
    sent = SIGNALS[number % 3]

    def send(batches: int) -> None:
        if batches == (step - 1) * ACCUMULATE + batch + 1:
            os.kill(os.getpid(), sent)

    check(runs.run(tmp_path / "run", lambda: on_batch(send)), 128 + sent, "run the same command again")
    # a step in its last batch is finished first
    expected = step if batch + 1 == ACCUMULATE else step - 1
    saved = load_checkpoint(tmp_path / "run" / "checkpoints")
    assert saved is not None and saved.step == expected
    runs.finish(tmp_path / "run")


def test_a_shorter_run_can_be_extended(runs: Runs, tmp_path: Path) -> None:
    check(runs.run(tmp_path / "run", steps=7), 0)
    runs.finish(tmp_path / "run")


@pytest.mark.parametrize("number", range(trials(60)))
def test_a_signal_at_any_moment_stops_soon(runs: Runs, tmp_path: Path, number: int) -> None:
    """In preparation, validation, saving and at the end."""
    sent = SIGNALS[number % 3]
    child = runs.start(tmp_path / "run")
    time.sleep(random.Random(number).uniform(0.03, runs.seconds))
    child.send_signal(sent)
    started = time.monotonic()
    code = child.wait()
    assert time.monotonic() - started < 10
    # before the run handles signals, the system does
    early = not (tmp_path / "run" / "checkpoints").exists()
    assert code in (0, 128 + sent) or early, child.err[-2000:]
    runs.finish(tmp_path / "run")


@pytest.mark.parametrize("number", range(trials(60)))
def test_two_runs_in_one_folder(runs: Runs, tmp_path: Path, number: int) -> None:
    """One is rejected, the other is unharmed; it waits in its first batch until the other has left."""
    out, go = tmp_path / "run", tmp_path / "go"

    def wait(batch: int) -> None:
        while not go.exists():
            time.sleep(0.002)

    first = runs.start(out, lambda: on_batch(wait))
    time.sleep(random.Random(number).uniform(0, 0.3) if number % 2 else 0)
    both = (first, runs.start(out, lambda: on_batch(wait)))
    started = time.monotonic()
    while all(child.code() is None for child in both) and time.monotonic() - started < LIMIT / 2:
        time.sleep(0.002)
    go.touch()
    done, rejected = sorted(both, key=Forked.wait)
    check(rejected, 2, "is in use by another run")
    check(done, 0)
    runs.finish(out)


@pytest.mark.parametrize("number", range(trials(60)))
def test_a_full_disk_loses_nothing(runs: Runs, tmp_path: Path, number: int) -> None:
    """The disk takes k bytes of a run: data, logs, checkpoints, model."""
    files = [path for path in (runs.folder / "undisturbed").rglob("*") if path.is_file()]
    total = 3 * sum(path.stat().st_size for path in files)  # some checkpoints were deleted
    chance, out = random.Random(number), tmp_path / "run"
    capacity = chance.randrange(total if number % 4 else 5000)
    child = runs.run(out, Disk(out, capacity=capacity).install)
    if child.code():
        check(child, 2, "No space left on device")
    if "training continues unlogged" in child.err:  # lines of the log may be lost, weights never
        check(runs.run(out), 0)
        assert outcome(out)["tensors"] == runs.whole["tensors"]
    else:
        runs.finish(out)


@pytest.mark.parametrize("number", range(trials(40)))
def test_a_read_only_folder_is_an_error(runs: Runs, tmp_path: Path, number: int) -> None:
    """From the start, or from some call on."""
    start, out = random.Random(number).randrange(200) if number else 0, tmp_path / "run"
    disk = Disk(out, fails=lambda call: call >= start, code=errno.EROFS)
    child = runs.run(out, disk.install)
    if number == 0 or child.code():
        check(child, 2, "Read-only file system")
    if "training continues unlogged" not in child.err:
        runs.finish(out)
