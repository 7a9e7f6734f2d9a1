"""The first signal saves and exits; the second, or one during preparation, exits immediately."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from glassformer.training.signals import SAME_REQUEST, Interrupted, StopSignals
from tests.forked import Forked

ROOT = Path(__file__).parents[2]
LISTENING = (
    "signal.signal(signal.SIGINT, signal.default_int_handler)"  # not so in a job put in the background
)


@contextmanager
def running(folder: Path, before: Callable[[], object] = lambda: None) -> Iterator[tuple[Forked, int]]:
    """A run, and what it waits for the closing of while it saves, as a large checkpoint takes its time."""
    held, saving = os.pipe()

    def train() -> None:
        os.close(saving)
        before()
        with StopSignals() as signals:
            print("training")
            while not signals.received:
                time.sleep(0.01)
            print("saving")
            os.read(held, 1)
            print("saved")
        sys.exit(signals.exit_code)

    run = Forked(train, folder / "run")
    os.close(held)
    try:
        run.until(lambda: run.out == "training\n")
        yield run, saving
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()


def saves(run: Forked) -> None:
    run.until(lambda: run.out == "training\nsaving\n")
    assert run.code() is None, run.err


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_first_signal_saves_and_exits(number: signal.Signals, code: int, tmp_path: Path) -> None:
    with running(tmp_path) as (run, saving):
        run.send_signal(number)
        saves(run)
        run.send_signal(number)  # passed on by a launcher at nearly the same moment: the same wish
        os.close(saving)
        assert (run.wait(), run.out) == (code, "training\nsaving\nsaved\n")


def test_second_signal_exits_immediately(tmp_path: Path) -> None:
    with running(tmp_path) as (run, saving):
        run.send_signal(signal.SIGTERM)
        saves(run)
        time.sleep(SAME_REQUEST + 0.2)
        run.send_signal(signal.SIGINT)
        assert run.wait() == 130  # while what it waits for is still open
        os.close(saving)
        assert run.out == "training\nsaving\n"


def test_ignored_signals_stay_ignored(tmp_path: Path) -> None:
    """As `nohup` starts a run."""
    with running(tmp_path, lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) as (run, saving):
        run.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        assert run.code() is None and run.out == "training\n"
        run.send_signal(signal.SIGTERM)
        saves(run)
        os.close(saving)
        assert run.wait() == 143


def hang_up() -> None:
    """The reader of standard error is gone."""
    reads, writes = os.pipe()
    os.dup2(writes, 2)
    os.close(reads)


def test_closed_terminal_does_not_stop_the_save(tmp_path: Path) -> None:
    with running(tmp_path, hang_up) as (run, saving):
        run.send_signal(signal.SIGHUP)
        saves(run)
        os.close(saving)
        assert run.wait() == 129 and run.out.endswith("saved\n")


def test_handlers_are_restored_and_other_threads_handle_nothing() -> None:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    with StopSignals() as signals:
        assert not signals.received and signals.exit_code == 0
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert [signal.getsignal(number) for number in numbers] == before
    handlers: list[object] = []

    def elsewhere() -> None:
        with StopSignals() as signals:
            handlers.extend([signals.received, signal.getsignal(signal.SIGTERM)])

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert handlers == [False, before[0]]


def test_signal_during_tokenizer_training_exits_immediately(tmp_path: Path) -> None:
    """Whose trainers are compiled, and for seconds let Python hear of nothing."""
    letters, draw = "abcdefghiklmnoprstuvwz", random.Random(1)
    words = ["".join(draw.choices(letters, k=draw.randint(4, 12))) for _ in range(100_000)] * 2
    rows = [f"{' '.join(words[n : n + 20])}\tone" for n in range(0, len(words), 20)]
    (tmp_path / "pairs.tsv").write_text("\n".join(rows))
    code = f"import signal; {LISTENING}; from glassformer.cli.main import main; main()"
    settings = ["tokenizer.kind=unigram", "tokenizer.vocab_size=20000", "training.device=cpu"]
    arguments = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-c", code, "train", "translate", "--train", "pairs.tsv", *arguments]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        assert process.stderr is not None
        assert "training a" in process.stderr.readline()
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=6)
    finally:
        process.kill()
    assert process.returncode == 130 and len(stderr.splitlines()) == 1
    assert not (tmp_path / "runs/translate-pairs/checkpoints").exists()


def test_swallowed_interruption_is_raised_at_the_end_of_the_block() -> None:
    """A handler's exception may end in a callback, whose caller drops it."""
    with StopSignals(main=False) as signals:
        with pytest.raises(Interrupted), signals.immediate("nothing to save"):
            try:
                signal.raise_signal(signal.SIGTERM)
            except Interrupted:
                went_on = True
        assert went_on and signals.exit_code == 143
