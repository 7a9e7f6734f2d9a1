"""Log a run to the console, train.log, metrics.jsonl and TensorBoard.

A logging error never stops a run; a full disk or a closed terminal is reported once.
"""

from __future__ import annotations

import math
import os
import platform
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any, SupportsFloat

from rich.console import Console

from glassformer.errors import GlassformerError
from glassformer.messages import quantity
from glassformer.metrics.text import perplexity
from glassformer.training.logging.console import Display, format_duration, format_number, single_line
from glassformer.training.logging.history import METRICS_FILE, Kind, format_line, truncate_history
from glassformer.training.logging.sample_images import write_images
from glassformer.training.task import Sample, SampleImage

LINE_INTERVAL = (10.0, 60.0)  # minimum and maximum seconds between two lines
SPEED_WINDOW = 20.0  # seconds over which speed is smoothed
SHOWN_SAMPLES = 3


@dataclass(frozen=True, kw_only=True)
class StepMetrics:
    """Metrics of one step. The loss is per unit (token, image, value). Tensors are read only if logged."""

    step: int
    loss: SupportsFloat
    lr: float
    units: float
    seconds: float
    epoch: float = 0
    grad_norm: SupportsFloat = math.nan
    flops: float = 0.0  # of the step, forward and backward


class RunLog:
    """The log of one run folder. A resumed run keeps the entries up to its step.

    every: log every n-th step and the last. unit: unit of the loss; for tokens, perplexity is logged too.
    peak_flops: peak FLOP/s of all devices together, for the model FLOPs utilization (MFU).
    main: whether this process logs. tensorboard: whether to write TensorBoard's files, if it is installed.
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
        tensorboard: bool = True,
    ) -> None:
        root = self._root = Path(folder)
        self._total, self._unit, self._every, self._peak = total_steps, unit, every, peak_flops
        self._main = main
        self._step = from_step
        self._units = self._seconds = 0.0  # of the last steps, with exponential weights
        self._first: tuple[int, float] | None = (
            None  # step and time of the first step, which may include compilation
        )
        self._last_line = (0, -math.inf)  # step and time
        self._pending = ""
        self._failure_reported = False
        self._signatures: dict[str, str] = {}
        if not main:
            return
        self._display = Display(console, total_steps=total_steps, from_step=from_step)
        self._metrics, self._text = AppendOnlyFile(root / METRICS_FILE), AppendOnlyFile(root / "train.log")
        self._tensorboard = TensorBoardWriter(root / "tensorboard", from_step=from_step, enabled=tensorboard)
        try:
            truncate_history(root, from_step)
        except (GlassformerError, OSError) as error:
            self._display.message(f"{error}; entries after step {from_step:,} stay in {METRICS_FILE}")
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

    def step(self, metrics: StepMetrics) -> dict[str, float] | None:
        """Log a step, if it is due; return what was logged, by name."""
        if not self._main:
            return None
        step = self._step = metrics.step
        decay = math.exp(-metrics.seconds / SPEED_WINDOW)
        self._units = self._units * decay + metrics.units
        self._seconds = self._seconds * decay + metrics.seconds
        now = time.monotonic()
        first_step, first_time = self._first = self._first or (step, now)
        if step % self._every and step != self._total:
            self._display.update(step)
            return None
        numbers: dict[str, float] = {"epoch": metrics.epoch, "loss": float(metrics.loss)}
        if self._unit == "tokens":
            numbers["perplexity"] = perplexity(numbers["loss"])
        numbers |= {
            "lr": metrics.lr,
            "grad_norm": float(metrics.grad_norm),
            "units": metrics.units,
            "seconds": metrics.seconds,
            "units_per_second": self._units / max(self._seconds, 1e-9),
        }
        if metrics.flops and self._peak:
            numbers["mfu"] = metrics.flops / metrics.units * numbers["units_per_second"] / self._peak
        numbers["memory"] = peak_memory()
        self._record("step", step, numbers)
        logs = {f"train/{name}": value for name, value in numbers.items()}
        self._tensorboard.write_scalars(step, logs)
        per_step = (now - first_time) / (step - first_step) if step > first_step else metrics.seconds
        values = self._format(numbers, per_step * (self._total - step))
        self._display.update(step, values)
        self._pending = f"step {step:,} of {self._total:,}  {values}"
        # print a line after ten seconds and a hundredth of the steps, after a minute, and at the end
        (last_step, last_time), (shortest, longest) = self._last_line, LINE_INTERVAL
        wait = shortest if (step - last_step) * 100 >= self._total else longest
        if step == self._total or now - last_time >= wait:
            self._last_line = (step, now)
            self._write_pending()
        return logs

    def validation(
        self,
        step: int,
        metrics: Mapping[str, float],
        samples: Sequence[Sample] = (),
        *,
        images: Sequence[SampleImage] = (),
        signatures: Mapping[str, str] | None = None,
    ) -> None:
        """Log a validation. signatures: strings that say how a metric was computed, as in sacreBLEU."""
        if not self._main:
            return
        signatures = signatures or {}
        listed_samples = [asdict(sample) for sample in samples]
        content = {"metrics": metrics, "signatures": signatures, "samples": listed_samples}
        try:
            pictures = write_images(self._root, step, images)
        except (GlassformerError, OSError) as error:
            self._message(f"the sample images are lost: {error}")
            pictures = []
        self._record("valid", step, content | ({"images": pictures} if pictures else {}))
        self._tensorboard.write_scalars(step, {f"valid/{name}": value for name, value in metrics.items()})
        listed = ", ".join(f"{name} {format_number(value)}" for name, value in metrics.items())
        self._message(f"step {step:,} of {self._total:,}  validation: {listed}")
        for name, signature in signatures.items():
            if self._signatures.get(name) != signature:  # log a signature only if it is new
                self._signatures[name] = signature
                self._message(f"    {name} signature: {signature}")
        for sample in listed_samples[:SHOWN_SAMPLES]:
            for name, text in sample.items():
                self._message(f"    {name:8} {text}")

    def message(self, text: str) -> None:
        """Show a message, and record it as an event."""
        if self._main:
            self._record("event", self._step, {"text": text})
            self._write_pending()  # in order
            self._message(text)

    def facts(self, facts: Mapping[str, Any]) -> None:
        """Record facts about the run for its report, e.g. parameters, device, skipped examples."""
        if self._main:
            self._record("event", self._step, {"facts": facts})

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *_: object) -> None:
        if self._main:
            self._write_pending()
            self._display.close()
            for file in (self._metrics, self._text, self._tensorboard.file):
                file.close()

    def _format(self, numbers: Mapping[str, float], seconds_left: float) -> str:
        """Format the metrics of a step, the most important first: a narrow terminal truncates the line."""
        values = [
            f"loss {format_number(numbers['loss'])}",
            f"{format_duration(seconds_left)} left",
            f"{format_number(numbers['units_per_second'])} {self._unit}/s",
            f"lr {numbers['lr']:.2e}",
        ]
        if "mfu" in numbers:
            values.append(f"MFU {numbers['mfu']:.1%}")
        if "perplexity" in numbers:
            values.append(f"perplexity {format_number(numbers['perplexity'])}")
        values.append(f"gradient norm {format_number(numbers['grad_norm'])}")
        return "  ".join([*values, f"{numbers['memory'] / 1e9:.2f} GB"])

    def _write_pending(self) -> None:
        if self._pending:
            self._display.line(self._pending)
            self._write(self._pending)
            self._pending = ""

    def _message(self, text: str) -> None:
        self._display.message(text)
        self._write(text)

    def _write(self, text: str) -> None:
        self._text.write_line(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {single_line(text)}")
        self._report_failure()

    def _record(self, kind: Kind, step: int, content: Mapping[str, Any]) -> None:
        self._metrics.write_line(format_line(kind, step, time.time(), content))
        self._report_failure()

    def _report_failure(self) -> None:
        """Print a message when the files cannot be written, and another when they can be written again."""
        failed = next((file for file in (self._metrics, self._text) if file.error), None)
        if failed is not None and not self._failure_reported:
            reason = failed.error and failed.error.strerror
            self._display.message(f"{failed.path} cannot be written ({reason}); training continues unlogged")
        elif failed is None and self._failure_reported:
            lost = self._metrics.lost + self._text.lost
            self._display.message(f"{self._metrics.path} can be written again; {quantity(lost, 'line')} lost")
        self._failure_reported = failed is not None


class AppendOnlyFile:
    """Append records to a file. Errors are counted, not raised.

    A record is written completely or not at all, and is not buffered, so that killing the process loses none.
    error: the error of the last write, None if it succeeded; the next write tries again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.error: OSError | None = None
        self.lost = 0
        self._file: int | None = None

    def write(self, record: bytes) -> None:
        try:
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
                self._file = os.open(self.path, flags, 0o644)
            end = os.fstat(self._file).st_size
            try:
                while record:  # a full disk may accept a part of the record before write raises
                    record = record[os.write(self._file, record) :]
            except OSError:
                os.ftruncate(self._file, end)
                raise
            self.error = None
        except OSError as error:
            self.error = error
            self.lost += 1

    def write_line(self, text: str) -> None:
        """Append a line as UTF-8; unpaired surrogates are escaped."""
        record = text.encode("utf-8", "backslashreplace") + b"\n"
        if self._file is None and self._ends_inside_line():
            record = b"\n" + record
        self.write(record)

    def _ends_inside_line(self) -> bool:
        """Check if the file ends in the middle of a line, e.g. after a power failure."""
        try:
            with self.path.open("rb") as file:
                file.seek(-1, os.SEEK_END)
                return file.read(1) != b"\n"
        except OSError:  # missing or empty
            return False

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
            self._file = None


class TensorBoardWriter:
    """Write a TensorBoard event file in `folder`; events after `from_step` in older files are discarded.

    TensorBoard's own writer uses a thread that prints a traceback if the disk is full. If TensorBoard is not
    installed, nothing is written.
    """

    def __init__(self, folder: Path, *, from_step: int, enabled: bool = True) -> None:
        self.file = AppendOnlyFile(folder / f"events.out.tfevents.{time.time_ns()}.glassformer")
        self._events: Any = None
        if not enabled:
            return
        try:
            self._events = import_module("tensorboard.compat.proto.event_pb2")
            self._summary = import_module("tensorboard.compat.proto.summary_pb2").Summary
            self._records = import_module("tensorboard.summary.writer.record_writer").RecordWriter
        except Exception:  # not installed, or broken by another package
            self._events = None
            return
        self._write(file_version="brain.Event:2")
        if from_step:
            session = self._events.SessionLog
            self._write(step=from_step + 1, session_log=session(status=session.START))

    def write_scalars(self, step: int, values: Mapping[str, float]) -> None:
        if self._events is not None:
            parts = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
            self._write(step=step, summary=self._summary(value=parts))

    def _write(self, **fields: Any) -> None:
        record = BytesIO()
        event = self._events.Event(wall_time=time.time(), **fields)
        self._records(record).write(event.SerializeToString())
        self.file.write(record.getvalue())


def peak_memory() -> int:
    """Return the peak memory in bytes: of GPU tensors if a GPU is used, else of the process."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    try:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    except ImportError:  # not a Unix
        return 0
    return peak if sys.platform == "darwin" else peak * 1024
