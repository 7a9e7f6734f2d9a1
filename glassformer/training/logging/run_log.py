"""What a run says of itself while it trains: on the screen, in train.log, in metrics.jsonl, to TensorBoard.

    with RunLog("runs/x", total_steps=10_000, from_step=400) as log:
        log.facts({"parameters": 60_000_000})
        log.step(StepNote(step=401, loss=3.2, lr=3e-4, units=4096, seconds=0.2))
        log.validated(500, {"loss": 2.9, "BLEU": 21.4}, [Sample(source="a", expected="b", got="b")])
        log.say("saved a checkpoint")

Saying something never ends a run: a full disk, or a terminal that has gone, is mentioned once.
"""

from __future__ import annotations

import math
import platform
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, SupportsFloat

from rich.console import Console

from glassformer.errors import GlassformerError
from glassformer.metrics.perplexity import perplexity
from glassformer.training.logging.console import Nowhere, Screen, duration, figure, one_line, screen
from glassformer.training.logging.history import NAME, Kind, as_line, cut_after
from glassformer.training.logging.writers import Appending, Board, NoBoard, board

AT_LEAST, AT_MOST = 10.0, 60.0  # seconds between two plain lines
REMEMBERED = 20.0  # seconds over which speed is smoothed
SHOWN_SAMPLES = 3


@dataclass(frozen=True, kw_only=True)
class StepNote:
    """One step. Loss is per unit (token, image, value). A tensor is read only when the step is noted."""

    step: int
    loss: SupportsFloat
    lr: float
    units: int
    seconds: float
    epoch: float = 0
    grad_norm: SupportsFloat | None = None
    flops: float | None = None  # floating-point operations of the step, forward and backward
    memory: int | None = None  # bytes; None: measured here


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One example of a validation: what came in, what should come out, what did."""

    source: str
    expected: str
    got: str


def distinct(samples: Sequence[Sample], most: int) -> list[Sample]:
    """The first samples, none with a source that was shown: what is held out may hold one several times."""
    first: dict[str, Sample] = {}
    for sample in samples:
        first.setdefault(sample.source, sample)
    return list(first.values())[:most]


class RunLog:
    """The log of one run folder. A run that goes on from a step keeps what was noted up to that step.

    `every`: note each so-manieth step (and the last). `unit`: what a loss is counted in; where it is tokens,
    perplexity is told too. `peak_flops`: what all devices could do at best a second, for the share in use
    (MFU). `main`: whether this process speaks at all; of several ranks one does.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        total_steps: int,
        from_step: int = 0,
        unit: str = "tokens",
        every: int = 1,
        peak_flops: float | None = None,
        console: Console | None = None,
        main: bool = True,
    ) -> None:
        root = Path(folder)
        self._total, self._unit, self._every, self._peak = total_steps, unit, max(every, 1), peak_flops
        self._main = main
        self._step = from_step
        self._speed = _Speed(from_step)
        self._pace = _Pace(total_steps)
        self._pending = ""
        self._told = False
        self._signed: dict[str, str] = {}
        self._screen: Screen = Nowhere()
        self._board: Board = NoBoard()
        self._metrics, self._text = Appending(root / NAME), Appending(root / "train.log")
        if not main:
            return
        self._screen = screen(console, total_steps=total_steps, from_step=from_step)
        self._board = board(root / "tensorboard", from_step=from_step)
        try:
            cut_after(root, from_step)
        except (GlassformerError, OSError) as error:
            self._show("say", f"{error} What was noted after step {from_step:,} stays in {NAME} for now.")
        self.facts(
            {
                "command": shlex.join(sys.orig_argv),
                "total steps": total_steps,
                "unit": unit,
                "begun at step": from_step,
                "python": platform.python_version(),
                "system": platform.platform(),
            }
        )

    def step(self, note: StepNote) -> None:
        """Note one step."""
        if not self._main:
            return
        self._step = note.step
        self._speed.add(note)
        if note.step % self._every and note.step != self._total:
            self._show("moved", note.step, {})
            return
        loss = float(note.loss)
        numbers: dict[str, float] = {"epoch": note.epoch, "loss": loss}
        if self._unit == "tokens":
            numbers["perplexity"] = perplexity(loss)
        numbers["lr"] = note.lr
        if note.grad_norm is not None:
            numbers["grad_norm"] = float(note.grad_norm)
        numbers |= {"units": note.units, "seconds": note.seconds, "units_per_second": self._speed.units}
        if note.flops is not None and self._peak:
            numbers["mfu"] = note.flops / note.units * self._speed.units / self._peak if note.units else 0.0
        numbers["memory"] = most_memory() if note.memory is None else note.memory
        self._note("step", note.step, numbers)
        self._board.scalars(note.step, {f"train/{name}": value for name, value in numbers.items()})
        shown = self._shown(numbers)
        self._show("moved", note.step, shown)
        self._pending = "  ".join([f"step {note.step:,} of {self._total:,}", *shown.values()])
        if self._pace.due(note.step):
            self._line()

    def validated(
        self,
        step: int,
        metrics: Mapping[str, float],
        samples: Sequence[Sample] = (),
        *,
        signatures: Mapping[str, str] | None = None,
    ) -> None:
        """Note a validation; `signatures` says of a metric how exactly it was measured (sacreBLEU's line)."""
        if not self._main:
            return
        told = [asdict(sample) for sample in samples]
        content = {"metrics": dict(metrics), "signatures": dict(signatures or {}), "samples": told}
        self._note("valid", step, content)
        self._board.scalars(step, {f"valid/{name}": value for name, value in metrics.items()})
        words = ", ".join(f"{name} {figure(value)}" for name, value in metrics.items())
        self._say(f"step {step:,} of {self._total:,}  validation: {words}")
        for name, signature in (signatures or {}).items():
            if self._signed.get(name) != signature:  # once is enough: it hardly ever changes in a run
                self._signed[name] = signature
                self._say(f"    {name} as {signature}")
        for sample in samples[:SHOWN_SAMPLES]:
            for name, text in asdict(sample).items():
                self._say(f"    {name:8} {text}")

    def say(self, sentence: str) -> None:
        """Say something to people, and keep it as an event."""
        if not self._main:
            return
        self._note("event", self._step, {"text": sentence})
        if self._pending:
            self._line()  # in its order
        self._say(sentence)

    def facts(self, facts: Mapping[str, Any]) -> None:
        """Keep facts about the run for its report (parameters, device, rows left out, steps skipped, ...)."""
        if self._main:
            self._note("event", self._step, {"facts": facts})

    def close(self) -> None:
        """Give the terminal back and close the files."""
        if self._pending:
            self._line()
        self._show("close")
        for file in (self._metrics, self._text, self._board):
            file.close()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _shown(self, numbers: Mapping[str, float]) -> dict[str, str]:
        """The numbers that people watch, in the order they do."""
        shown = {"loss": f"loss {figure(numbers['loss'])}"}
        if "perplexity" in numbers:
            shown["perplexity"] = f"perplexity {figure(numbers['perplexity'])}"
        shown["lr"] = f"lr {numbers['lr']:.2e}"
        if "grad_norm" in numbers:
            shown["gradient"] = f"gradient {figure(numbers['grad_norm'])}"
        shown["speed"] = f"{figure(numbers['units_per_second'])} {self._unit}/s"
        if "mfu" in numbers:
            shown["mfu"] = f"MFU {numbers['mfu']:.1%}"
        shown["memory"] = f"{numbers['memory'] / 1e9:.2f} GB"
        left = self._speed.seconds_a_step * (self._total - self._step)
        shown["left"] = f"{duration(left)} left"
        return shown

    def _line(self) -> None:
        self._show("line", self._pending)
        self._write(self._pending)
        self._pending = ""

    def _say(self, sentence: str) -> None:
        self._show("say", sentence)
        self._write(sentence)

    def _write(self, sentence: str) -> None:
        self._text.line(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {one_line(sentence)}")
        self._mention_trouble()

    def _note(self, kind: Kind, step: int, content: Mapping[str, Any]) -> None:
        self._metrics.line(as_line(kind, step, time.time(), content))
        self._mention_trouble()

    def _mention_trouble(self) -> None:
        """One sentence when the files cannot be written, one when they can be again."""
        troubled = next((file for file in (self._metrics, self._text) if file.trouble), None)
        if troubled is not None and not self._told:
            self._told = True
            reason = troubled.trouble and troubled.trouble.strerror
            self._show(
                "say", f"{troubled.path} cannot be written ({reason}); training goes on without notes."
            )
        elif troubled is None and self._told:
            self._told = False
            lost = self._metrics.lost + self._text.lost
            self._show("say", f"{self._metrics.path} is written again; {lost} lines were lost.")

    def _show(self, what: str, *content: Any) -> None:
        try:
            getattr(self._screen, what)(*content)
        except (OSError, ValueError):  # the terminal was closed; nobody is there to be told
            self._screen = Nowhere()


class _Pace:
    """When a plain line is due: with a hundredth of the steps and ten seconds gone, or after a minute."""

    def __init__(self, total_steps: int) -> None:
        self._total = total_steps
        self._step, self._time = 0, -math.inf

    def due(self, step: int) -> bool:
        now = time.monotonic()
        gone = now - self._time
        far = (step - self._step) * 100 >= self._total
        if not (step == self._total or gone >= AT_MOST or (gone >= AT_LEAST and far)):
            return False
        self._step, self._time = step, now
        return True


class _Speed:
    """Units a second over the last seconds of training, and seconds a step with all that goes on between."""

    def __init__(self, from_step: int) -> None:
        self._units = self._seconds = 0.0
        self._first: tuple[int, float] | None = None
        self._last = (from_step, 0.0)
        self._single = math.nan

    def add(self, note: StepNote) -> None:
        faded = math.exp(-note.seconds / REMEMBERED)
        self._units = self._units * faded + note.units
        self._seconds = self._seconds * faded + note.seconds
        self._last = (note.step, time.monotonic())
        self._first = self._first or self._last
        self._single = note.seconds

    @property
    def units(self) -> float:
        return self._units / self._seconds if self._seconds > 0 else 0.0

    @property
    def seconds_a_step(self) -> float:
        """The first step is left out, which may hold a compilation; until the second it is all there is."""
        if self._first is None or self._last[0] == self._first[0]:
            return self._single
        return (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])


def most_memory() -> int:
    """Bytes: the most that tensors took on a GPU where one is in use, else the most the process took."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    try:
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    except ImportError:  # not a Unix
        return 0
    return most if sys.platform == "darwin" else most * 1024
