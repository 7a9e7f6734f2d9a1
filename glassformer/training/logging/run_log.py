"""The log of a run: on the console, in train.log, in metrics.jsonl, for TensorBoard.

    with RunLog("runs/x", total_steps=10_000, from_step=400) as log:
        log.facts({"parameters": 60_000_000})
        log.step(StepMetrics(step=401, loss=3.2, lr=3e-4, units=4096, seconds=0.2))
        log.validation(500, {"loss": 2.9, "BLEU": 21.4}, [Sample(source="a", expected="b", got="b")])
        log.message("saved a checkpoint")

Logging never ends a run: a full disk or a closed terminal is mentioned once.
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
from typing import Any, SupportsFloat

from rich.console import Console

from glassformer.errors import GlassformerError
from glassformer.metrics.perplexity import perplexity
from glassformer.training.logging.console import (
    ProgressDisplay,
    create_display,
    format_duration,
    format_number,
    single_line,
)
from glassformer.training.logging.history import METRICS_FILE, Kind, format_line, truncate_history
from glassformer.training.logging.writers import AppendOnlyFile, TensorBoardWriter
from glassformer.training.task import Sample

LINE_INTERVAL = (10.0, 60.0)  # shortest and longest time between two lines, in seconds
SPEED_WINDOW = 20.0  # seconds over which speed is smoothed
SHOWN_SAMPLES = 3


@dataclass(frozen=True, kw_only=True)
class StepMetrics:
    """One step. The loss is per unit (token, image, value). Tensors are read only if the step is logged."""

    step: int
    loss: SupportsFloat
    lr: float
    units: int
    seconds: float
    epoch: float = 0
    grad_norm: SupportsFloat | None = None
    flops: float | None = None  # of the step, forward and backward
    memory: int | None = None  # bytes; None: measured here


def distinct_samples(samples: Sequence[Sample], limit: int) -> list[Sample]:
    """The first samples with different sources."""
    first: dict[str, Sample] = {}
    for sample in samples:
        first.setdefault(sample.source, sample)
    return list(first.values())[:limit]


class RunLog:
    """The log of one run folder. A resumed run keeps what was logged up to its step.

    every: log every n-th step (and the last). unit: of the loss; for tokens, perplexity is logged too.
    peak_flops: of all devices together, for the model FLOPs utilization (MFU). main: whether this process
        logs.
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
        self._speed = _Speedometer(from_step)
        self._last_line = (0, -math.inf)  # step and time
        self._pending = ""
        self._failure_reported = False
        self._signatures: dict[str, str] = {}
        self._display = ProgressDisplay()
        self._metrics, self._text = AppendOnlyFile(root / METRICS_FILE), AppendOnlyFile(root / "train.log")
        if not main:
            return
        self._display = create_display(console, total_steps=total_steps, from_step=from_step)
        self._tensorboard = TensorBoardWriter(root / "tensorboard", from_step=from_step)
        try:
            truncate_history(root, from_step)
        except (GlassformerError, OSError) as error:
            self._show("message", f"{error}; entries after step {from_step:,} stay in {METRICS_FILE}")
        self.facts(
            {
                "command": shlex.join(sys.orig_argv),
                "total steps": total_steps,
                "unit": unit,
                "started at step": from_step,
                "python": platform.python_version(),
                "system": platform.platform(),
            }
        )

    def step(self, metrics: StepMetrics) -> None:
        if not self._main:
            return
        step = self._step = metrics.step
        self._speed.add(metrics)
        if step % self._every and step != self._total:
            self._show("update", step, {})
            return
        loss = float(metrics.loss)
        numbers: dict[str, float] = {"epoch": metrics.epoch, "loss": loss}
        if self._unit == "tokens":
            numbers["perplexity"] = perplexity(loss)
        numbers["lr"] = metrics.lr
        if metrics.grad_norm is not None:
            numbers["grad_norm"] = float(metrics.grad_norm)
        speed = self._speed.units_per_second
        numbers |= {"units": metrics.units, "seconds": metrics.seconds, "units_per_second": speed}
        if metrics.flops is not None and self._peak:
            numbers["mfu"] = metrics.flops / metrics.units * speed / self._peak if metrics.units else 0.0
        numbers["memory"] = peak_memory() if metrics.memory is None else metrics.memory
        self._record("step", step, numbers)
        self._tensorboard.write_scalars(step, {f"train/{name}": value for name, value in numbers.items()})
        values = self._formatted(numbers)
        self._show("update", step, values)
        self._pending = "  ".join([f"step {step:,} of {self._total:,}", *values.values()])
        if self._line_due(step):
            self._write_line()

    def validation(
        self,
        step: int,
        metrics: Mapping[str, float],
        samples: Sequence[Sample] = (),
        *,
        signatures: Mapping[str, str] | None = None,
    ) -> None:
        """Log a validation. signatures: how a metric was computed, e.g. sacreBLEU's signature."""
        if not self._main:
            return
        signatures = dict(signatures or {})
        content = {
            "metrics": dict(metrics),
            "signatures": signatures,
            "samples": [asdict(sample) for sample in samples],
        }
        self._record("valid", step, content)
        self._tensorboard.write_scalars(step, {f"valid/{name}": value for name, value in metrics.items()})
        listed = ", ".join(f"{name} {format_number(value)}" for name, value in metrics.items())
        self._message(f"step {step:,} of {self._total:,}  validation: {listed}")
        for name, signature in signatures.items():
            if self._signatures.get(name) != signature:  # once is enough
                self._signatures[name] = signature
                self._message(f"    {name} signature: {signature}")
        for sample in samples[:SHOWN_SAMPLES]:
            for name, text in asdict(sample).items():
                self._message(f"    {name:8} {text}")

    def message(self, text: str) -> None:
        """Show a message, and record it as an event."""
        if not self._main:
            return
        self._record("event", self._step, {"text": text})
        if self._pending:
            self._write_line()  # in order
        self._message(text)

    def facts(self, facts: Mapping[str, Any]) -> None:
        """Record facts about the run for its report, e.g. parameters, device, skipped rows."""
        if self._main:
            self._record("event", self._step, {"facts": facts})

    def close(self) -> None:
        if self._pending:
            self._write_line()
        self._show("close")
        if self._main:
            for file in (self._metrics, self._text, self._tensorboard):
                file.close()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _formatted(self, numbers: Mapping[str, float]) -> dict[str, str]:
        """The numbers that people watch."""
        values = {"loss": f"loss {format_number(numbers['loss'])}"}
        if "perplexity" in numbers:
            values["perplexity"] = f"perplexity {format_number(numbers['perplexity'])}"
        values["lr"] = f"lr {numbers['lr']:.2e}"
        if "grad_norm" in numbers:
            values["gradient"] = f"gradient norm {format_number(numbers['grad_norm'])}"
        values["speed"] = f"{format_number(numbers['units_per_second'])} {self._unit}/s"
        if "mfu" in numbers:
            values["mfu"] = f"MFU {numbers['mfu']:.1%}"
        values["memory"] = f"{numbers['memory'] / 1e9:.2f} GB"
        left = self._speed.seconds_per_step * (self._total - self._step)
        values["left"] = f"{format_duration(left)} left"
        return values

    def _line_due(self, step: int) -> bool:
        """After ten seconds and a hundredth of the steps, or after a minute, or at the end."""
        now = time.monotonic()
        last_step, last_time = self._last_line
        elapsed, far = now - last_time, (step - last_step) * 100 >= self._total
        shortest, longest = LINE_INTERVAL
        if not (step == self._total or elapsed >= longest or (elapsed >= shortest and far)):
            return False
        self._last_line = (step, now)
        return True

    def _write_line(self) -> None:
        self._show("line", self._pending)
        self._write(self._pending)
        self._pending = ""

    def _message(self, text: str) -> None:
        self._show("message", text)
        self._write(text)

    def _write(self, text: str) -> None:
        self._text.write_line(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {single_line(text)}")
        self._report_failure()

    def _record(self, kind: Kind, step: int, content: Mapping[str, Any]) -> None:
        self._metrics.write_line(format_line(kind, step, time.time(), content))
        self._report_failure()

    def _report_failure(self) -> None:
        """One message when the files cannot be written, one when they can be again."""
        failed = next((file for file in (self._metrics, self._text) if file.error), None)
        if failed is not None and not self._failure_reported:
            self._failure_reported = True
            reason = failed.error and failed.error.strerror
            self._show("message", f"{failed.path} cannot be written ({reason}); training continues unlogged")
        elif failed is None and self._failure_reported:
            self._failure_reported = False
            lost = self._metrics.lost + self._text.lost
            self._show("message", f"{self._metrics.path} can be written again; {lost} lines were lost")

    def _show(self, method: str, *arguments: Any) -> None:
        try:
            getattr(self._display, method)(*arguments)
        except (OSError, ValueError):  # the terminal was closed
            self._display = ProgressDisplay()


class _Speedometer:
    """Smoothed units per second of training, and seconds per step including everything between steps."""

    def __init__(self, from_step: int) -> None:
        self._units = self._seconds = 0.0
        self._first: tuple[int, float] | None = None
        self._last = (from_step, 0.0)
        self._single = math.nan

    def add(self, metrics: StepMetrics) -> None:
        decay = math.exp(-metrics.seconds / SPEED_WINDOW)
        self._units = self._units * decay + metrics.units
        self._seconds = self._seconds * decay + metrics.seconds
        self._last = (metrics.step, time.monotonic())
        self._first = self._first or self._last
        self._single = metrics.seconds

    @property
    def units_per_second(self) -> float:
        return self._units / self._seconds if self._seconds > 0 else 0.0

    @property
    def seconds_per_step(self) -> float:
        """Without the first step, which may include compilation, as soon as there is a second one."""
        if self._first is None or self._last[0] == self._first[0]:
            return self._single
        return (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])


def peak_memory() -> int:
    """Peak memory in bytes: of tensors on a GPU if one is in use, else of the process."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    try:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    except ImportError:  # not a Unix
        return 0
    return peak if sys.platform == "darwin" else peak * 1024
