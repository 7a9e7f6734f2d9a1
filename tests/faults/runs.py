"""Real runs of `glassformer train`, each in a forked child of a process that has imported everything once."""

from __future__ import annotations

import importlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from glassformer.cli.main import main
from glassformer.training import run
from glassformer.training.checkpoint import load_checkpoint
from glassformer.training.learner import PairLearner
from glassformer.training.logging.history import read_history
from tests.forked import be_the_child

STEPS, SAVE_EVERY, ACCUMULATE = 16, 4, 2
# Two batches to a step, dropout and a running average: all that a resumed run could get wrong.
SETTINGS = {
    "seed": 3,
    "tokenizer.kind": "word",
    "model.d_model": 16,
    "model.num_heads": 2,
    "model.num_layers": 1,
    "model.d_ff": 16,
    "model.dropout": 0.1,
    "training.steps": STEPS,
    "training.batch": 120,
    "training.accumulate": ACCUMULATE,
    "training.lr": 0.01,
    "training.warmup": 4,
    "training.schedule": "inverse_sqrt",
    "training.ema": 0.9,
    "training.final": "last",
    "training.validate_every": 8,
    "training.save_every": SAVE_EVERY,
    "training.log_every": 1,
    "training.max_valid": 4,
    "training.device": "cpu",
}
LIMIT = 120.0  # seconds after which a child is taken to hang


def write_pairs(path: Path) -> Path:
    """A copy task of 120 short sentences: an epoch is a dozen steps."""
    chance = random.Random(0)
    lines = [" ".join(chance.choices("abcdefghij", k=chance.randint(3, 7))) for _ in range(120)]
    path.write_text("".join(f"{line}\t{line}\n" for line in lines))
    return path


@dataclass(frozen=True)
class Told:
    """How a child ended: its exit code (minus the signal that killed it), and all it said."""

    code: int
    said: str

    def fault(self, code: int, *words: str) -> str | None:
        """What is wrong with the way it ended, where this code and these words were to be expected."""
        if "Traceback" in self.said or self.code != code or any(word not in self.said for word in words):
            return f"exit {self.code} and not {code} with {words}: {self.said[-1500:]}"
        return None


@dataclass
class Child:
    """A run that goes on in a child process."""

    pid: int
    log: Path
    begun: float = field(default_factory=time.monotonic)

    def alive(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self.alive():
            os.kill(self.pid, number)

    def wait(self) -> Told:
        while self.alive():
            if time.monotonic() - self.begun > LIMIT:
                self.kill()
                _, status = os.waitpid(self.pid, 0)
                return Told(-99, f"it hung: {self.log.read_text(errors='replace')[-1000:]}")
            time.sleep(0.002)
        _, status = os.waitpid(self.pid, 0)
        return Told(os.waitstatus_to_exitcode(status), self.log.read_text(errors="replace"))


def nothing() -> None:
    """What is done in a child before its run, where nothing is to be."""


class Workplace:
    """A folder with the data, where runs are made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.pairs = write_pairs(folder / "pairs.tsv")
        self.undisturbed = folder / "undisturbed"
        self.seconds = 1.0  # what an undisturbed run takes
        self._logs = 0

    def words(self, out: Path, **changes: Any) -> list[str]:
        """The command; a change is named as `training_steps=3`."""
        settings = {**SETTINGS, **{name.replace("_", ".", 1): value for name, value in changes.items()}}
        command = ["train", "translate", "--train", str(self.pairs), "--valid", "0.1", "--out", str(out)]
        return command + [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]

    def preload(self) -> None:
        """Import what a run imports, as a first one in a child finds out: later ones then start at once."""
        names = self.folder / "modules.txt"

        def note_modules() -> None:
            real = run.write_report

            def noting(folder: Path) -> list[Path]:
                told = real(folder)
                names.write_text("\n".join(sys.modules))
                return told

            run.write_report = noting

        told = self.run(self.folder / "preload", note_modules, report=True, training_steps=1)
        assert told.code == 0, told.said
        for name in names.read_text().split():
            with suppress(Exception):
                importlib.import_module(name)

    def start(
        self, out: Path, before: Callable[[], object] = nothing, *, report: bool = False, **changes: Any
    ) -> Child:
        """Begin a run, after `before` in its process; the report with its pictures only where asked for."""
        words = self.words(out, **changes)
        self._logs += 1
        log = self.folder / f"said-{self._logs}.txt"
        log.touch()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            if not report:
                run.write_report = lambda folder: []

            def act() -> None:
                before()
                main(words)

            be_the_child(act, log, log)
        return Child(pid, log)

    def run(
        self, out: Path, before: Callable[[], object] = nothing, *, report: bool = False, **changes: Any
    ) -> Told:
        return self.start(out, before, report=report, **changes).wait()


def on_batch(meddle: Callable[[int, dict[str, Tensor]], float]) -> None:
    """In a run: called with each batch it learns from, counted from 1; gives what to multiply the loss by."""
    real = PairLearner.forward
    number = [0]

    def forward(self: PairLearner, **batch: Tensor) -> Tensor:
        if not self.training:
            return real(self, **batch)
        number[0] += 1
        factor = meddle(number[0], batch)
        return real(self, **batch) * factor

    PairLearner.forward = forward  # type: ignore[assignment,method-assign]


def outcome(folder: Path) -> dict[str, Any]:
    """All that must be the same of two runs of one recipe, to the bit."""
    saved = load_checkpoint(folder / "checkpoints")
    assert saved is not None
    history = read_history(folder)
    return {
        "model": (folder / "model" / "model.safetensors").read_bytes(),
        "step": saved.step,
        "tensors": {
            f"{group}.{name}": tensor.numpy().tobytes()
            for group, tensors in saved.tensors.items()
            for name, tensor in tensors.items()
        },
        "position": saved.state["position"],
        "losses": {line["step"]: (line["loss"], line["grad_norm"], line["lr"]) for line in history.steps},
    }


def differing(one: dict[str, Any], other: dict[str, Any]) -> str | None:
    """The first thing that differs between two outcomes."""
    for name, value in one.items():
        if other[name] == value:
            continue
        if isinstance(value, dict):
            keys = [key for key in {**value, **other[name]} if value.get(key) != other[name].get(key)]
            return f"{name} differs at {keys[:5]}"
        return f"{name} differs"
    return None


def saved_step(folder: Path) -> int:
    """The step of the newest whole checkpoint, 0 where there is none yet."""
    found = load_checkpoint(folder / "checkpoints")
    return 0 if found is None else found.step


def noted_step(folder: Path) -> int:
    """The last step that was noted, 0 where none was."""
    if not (folder / "metrics.jsonl").exists():
        return 0
    return max((line["step"] for line in read_history(folder).steps), default=0)
