"""The log of a run: consistent after interruptions, and never the end of a training."""

from __future__ import annotations

import io
import json
import math
import os
import pty
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from glassformer.training.logging.history import read_history
from glassformer.training.logging.run_log import RunLog, Sample, StepMetrics

ROOT = Path(__file__).parents[2]


def quiet() -> Console:
    return Console(file=io.StringIO(), force_terminal=False)


def train(folder: Path, start: int, end: int, *, every: int = 1) -> None:
    """Steps of a run whose losses are a function of the step alone, validated at each fifth."""
    with RunLog(folder, total_steps=20, from_step=start, console=quiet(), every=every) as log:
        for step in range(start + 1, end + 1):
            log.step(StepMetrics(step=step, loss=1 / 3 * step, lr=1e-3 / step, units=7 + step, seconds=0.1))
            if step % 5 == 0:
                log.validation(step, {"loss": step / 7}, [Sample(source="s", expected="e", got=f"g{step}")])


def story(folder: Path) -> list[dict[str, Any]]:
    """What metrics.jsonl says of steps and validations, less the clock; every line must be whole."""
    clocks = ("time", "units_per_second", "memory")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_bytes().decode().splitlines()]
    return [{k: v for k, v in line.items() if k not in clocks} for line in lines if line["kind"] != "event"]


@pytest.mark.parametrize(
    "torn", [b"", b'{"kind": "step", "step": 13, "los', b'{"kind": "step", "step": 9}\n\x00\x00']
)
def test_log_of_a_resumed_run_equals_that_of_an_uninterrupted_one(tmp_path: Path, torn: bytes) -> None:
    train(tmp_path / "whole", 0, 20)
    train(tmp_path / "killed", 0, 12)
    with (tmp_path / "killed" / "metrics.jsonl").open("ab") as file:
        file.write(torn)
    read_history(tmp_path / "killed")  # incomplete lines are skipped
    train(tmp_path / "killed", 10, 14)
    train(tmp_path / "killed", 5, 20)
    assert story(tmp_path / "killed") == story(tmp_path / "whole")
    history = read_history(tmp_path / "killed")
    assert [line["step"] for line in history.steps] == list(range(1, 21))
    assert [line["loss"] for line in history.steps] == [1 / 3 * step for step in range(1, 21)]
    assert [line["samples"][0]["got"] for line in history.validations] == ["g5", "g10", "g15", "g20"]
    train(tmp_path / "killed", 0, 20)  # from the beginning: nothing of before remains
    assert (tmp_path / "killed" / "metrics.jsonl").read_text().count('"started at step"') == 1
    assert story(tmp_path / "killed") == story(tmp_path / "whole")


def test_numbers_are_exact_and_unlogged_steps_are_not_read(tmp_path: Path) -> None:
    class Slow:
        """Stands in for a loss on a GPU: to read it is to wait for the device."""

        reads = 0

        def __float__(self) -> float:
            Slow.reads += 1
            return 0.1 + 0.2

    with RunLog(tmp_path, total_steps=10, every=4, peak_flops=1e12, console=quiet()) as log:
        for step in range(1, 11):
            log.step(
                StepMetrics(
                    step=step, loss=Slow(), lr=1e-4, units=100, seconds=0.5, grad_norm=math.nan, flops=1e11
                )
            )
    assert Slow.reads == 3
    lines = read_history(tmp_path).steps
    assert [line["step"] for line in lines] == [4, 8, 10]
    for line in lines:
        assert line["loss"] == 0.1 + 0.2 and line["perplexity"] == math.exp(0.1 + 0.2)
        assert line["grad_norm"] is None
        assert line["units_per_second"] == pytest.approx(200) and line["mfu"] == pytest.approx(0.2)
        assert line["memory"] > 1e6


def test_tensorboard_reads_the_same_numbers(tmp_path: Path) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train(tmp_path, 0, 12)
    time.sleep(0.01)
    train(tmp_path, 10, 20)
    accumulator = accumulators.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    losses = accumulator.Scalars("train/loss")
    assert [point.step for point in losses] == list(range(1, 21))
    assert [point.value for point in losses] == pytest.approx([1 / 3 * step for step in range(1, 21)])
    assert [point.step for point in accumulator.Scalars("valid/loss")] == [5, 10, 15, 20]


FULL = """
import resource, sys
from pathlib import Path
from glassformer.training.logging.run_log import RunLog, Sample, StepMetrics
folder = Path(sys.argv[1])
with RunLog(folder, total_steps=400) as log:
    for step in range(1, 401):
        if step == 100:
            room = (folder / "metrics.jsonl").stat().st_size + 1000  # breaks off in the middle of a line
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        if step == 300:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        log.step(StepMetrics(step=step, loss=step / 3, lr=1.0, units=1, seconds=0.1))
        if step % 50 == 0:
            log.validation(step, {"loss": 1.0}, [Sample(source="s" * 300, expected="e", got="g")])
print("trained")
"""


def child(program: str, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    command = [sys.executable, "-c", program, *args]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, **options)


def test_full_disk_is_reported_once_and_the_run_continues(tmp_path: Path) -> None:
    """The system itself refuses to let any file grow from step 100 to step 300."""
    done = child(FULL, str(tmp_path))
    assert done.returncode == 0 and done.stdout == "trained\n"
    assert "Traceback" not in done.stderr
    assert done.stderr.count("cannot be written (File too large)") == 1
    assert done.stderr.count("can be written again") == 1
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        json.loads(line)  # nothing torn is left in the middle
    steps_logged = [line["step"] for line in read_history(tmp_path).steps]
    assert (
        steps_logged[:99] == list(range(1, 100))
        and steps_logged[-101:] == list(range(300, 401))
        and len(steps_logged) < 250
    )


def test_unwritable_folder_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    console = quiet()
    with RunLog(tmp_path / "file", total_steps=2, console=console) as log:
        log.step(StepMetrics(step=1, loss=1.0, lr=1.0, units=1, seconds=1.0))
        log.validation(1, {"loss": 1.0})
        log.message("hello")
    output = console.file.getvalue()  # type: ignore[attr-defined]
    assert output.count("cannot be written") == 1 and "hello" in output


def test_messages_are_written_in_order(tmp_path: Path) -> None:
    with RunLog(tmp_path, total_steps=9, console=quiet()) as log:
        for step in (1, 2):  # the second comes too soon for a line of its own
            log.step(StepMetrics(step=step, loss=1.0, lr=1.0, units=1, seconds=1.0))
        log.message("stopped")
    lines = (tmp_path / "train.log").read_text().splitlines()
    assert [line.split("  ")[1] for line in lines] == ["step 1 of 9", "step 2 of 9", "stopped"]


def test_other_ranks_do_not_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with RunLog(tmp_path / "run", total_steps=2, main=False) as log:
        log.step(StepMetrics(step=1, loss=1.0, lr=1.0, units=1, seconds=1.0))
        log.validation(1, {"loss": 1.0})
        log.message("hello")
        log.facts({"a": 1})
    assert not (tmp_path / "run").exists()
    assert capfd.readouterr() == ("", "")


SHORT = """
import sys, time
from glassformer.training.logging.run_log import RunLog, Sample, StepMetrics
sample = Sample(source="one\\nline \\x1b]0;title\\x07", expected="네", got="\\u202e")
with RunLog(sys.argv[1], total_steps=500) as log:
    log.message("a sentence [bold]as it is[/] \\x1b[31mand no colour")
    for step in range(1, int(sys.argv[2]) + 1):
        log.step(StepMetrics(step=step, loss=2.5, lr=1e-3, grad_norm=0.75, units=10, seconds=0.1))
        if step in (3, 4):
            log.validation(step, {"BLEU": 21.5}, [sample][: 4 - step], signatures={"BLEU": "nrefs:1|tok:13a"})
            print("here", flush=True)
        if step > 490:
            time.sleep(0.02)
    print("done", flush=True)
    time.sleep(float(sys.argv[3]))
"""


def test_without_a_terminal_there_are_plain_lines(tmp_path: Path) -> None:
    done = child(SHORT, str(tmp_path), "500", "0", env={"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"})
    assert done.returncode == 0
    for text in (done.stderr, (tmp_path / "train.log").read_text()):
        assert not [c for c in text if (ord(c) < 32 and c != "\n") or c in "\x7f\x85\u202e"]
        assert (
            "a sentence [bold]as it is[/]" in text
            and "BLEU 21.5" in text
            and "one↵line" in text
            and "네" in text
        )
        assert [line for line in text.splitlines() if "step 500 of 500" in line and "loss 2.5" in line]
        assert "gradient norm 0.75" in text and text.count("nrefs:1|tok:13a") == 1
        assert len(text.splitlines()) < 14


def on_terminal(tmp_path: Path, *args: str, env: dict[str, str], interrupt: bool) -> tuple[str, int]:
    """What a run writes to a terminal, and its exit code; it may be interrupted once it has said `done`."""
    main, other = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "120", **env}
    command = [sys.executable, "-c", SHORT, str(tmp_path), *args]
    process = subprocess.Popen(
        command, stdin=other, stdout=other, stderr=other, env=environment, preexec_fn=_interruptible
    )
    os.close(other)
    output = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:  # the other end is closed
            break
        output += part
        if interrupt and b"done" in output:
            process.send_signal(signal.SIGINT)
            interrupt = False
        if not part:
            break
    os.close(main)
    return output.decode(), process.wait(30)


def _interruptible() -> None:
    """Tests in the background may ignore this signal, and children inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def test_terminal_shows_a_bar_and_restores_the_cursor_after_ctrl_c(tmp_path: Path) -> None:
    output, code = on_terminal(tmp_path, "495", "60", env={}, interrupt=True)
    assert code != 0 and "KeyboardInterrupt" in output
    assert "step 495 of 500" in output and "loss 2.5" in output and "tokens/s" in output and "left" in output
    assert "\x1b[?25l" in output and output.rindex("\x1b[?25h") > output.rindex("\x1b[?25l")
    assert "\x1b]0;" not in output and "BLEU 21.5" in output
    plain, code = on_terminal(tmp_path, "500", "0", env={"NO_COLOR": "1"}, interrupt=False)
    assert code == 0 and "\x1b[3" not in plain and "\x1b[38" not in plain
