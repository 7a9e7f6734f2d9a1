"""Asked once to stop, a run saves and leaves; twice, or while it prepares, at once. In real processes."""

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

from glassformer.training.signals import SAME_WISH, Left, Stopping
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
        with Stopping() as stopping:
            print("training")
            while not stopping.asked:
                time.sleep(0.01)
            print("saving")
            os.read(held, 1)
            print("saved")
        sys.exit(stopping.exit_code)

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
def test_once_means_save_and_leave(number: signal.Signals, code: int, tmp_path: Path) -> None:
    with running(tmp_path) as (run, saving):
        run.send_signal(number)
        saves(run)
        run.send_signal(number)  # passed on by a launcher at nearly the same moment: the same wish
        os.close(saving)
        assert (run.wait(), run.out) == (code, "training\nsaving\nsaved\n")
        assert run.err == "saving a checkpoint; press Ctrl-C again to leave at once\n"


def test_twice_means_leave_at_once(tmp_path: Path) -> None:
    with running(tmp_path) as (run, saving):
        run.send_signal(signal.SIGTERM)
        saves(run)
        time.sleep(SAME_WISH + 0.2)
        run.send_signal(signal.SIGINT)
        assert run.wait() == 130  # while what it waits for is still open
        os.close(saving)
        assert run.out == "training\nsaving\n"
        assert run.err.splitlines()[-1] == "left at once; the last checkpoint that was saved stands"


def test_what_was_to_be_ignored_stays_ignored(tmp_path: Path) -> None:
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
    """Whoever read what is said has gone."""
    reads, writes = os.pipe()
    os.dup2(writes, 2)
    os.close(reads)


def test_a_terminal_that_has_gone_does_not_stop_the_save(tmp_path: Path) -> None:
    with running(tmp_path, hang_up) as (run, saving):
        run.send_signal(signal.SIGHUP)
        saves(run)
        os.close(saving)
        assert run.wait() == 129 and run.out.endswith("saved\n")


def test_handlers_are_given_back_and_another_thread_is_no_trouble() -> None:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    with Stopping() as stopping:
        assert not stopping.asked and stopping.exit_code == 0
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert [signal.getsignal(number) for number in numbers] == before
    seen: list[object] = []

    def elsewhere() -> None:
        with Stopping() as stopping:
            seen.extend([stopping.asked, signal.getsignal(signal.SIGTERM)])

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [False, before[0]]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_while_a_tokenizer_is_learnt_once_means_leave_at_once(kind: str, tmp_path: Path) -> None:
    """Whose trainers are compiled, and for seconds let Python hear of nothing."""
    letters, draw = "abcdefghiklmnoprstuvwz", random.Random(1)
    words = ["".join(draw.choices(letters, k=draw.randint(4, 12))) for _ in range(100_000)] * 2
    rows = [f"{' '.join(words[n : n + 20])}\tone" for n in range(0, len(words), 20)]
    (tmp_path / "pairs.tsv").write_text("\n".join(rows))
    code = f"import signal; {LISTENING}; from glassformer.cli.main import main; main()"
    settings = [f"tokenizer.kind={kind}", "tokenizer.vocab_size=20000", "training.device=cpu"]
    given = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-c", code, "train", "translate", "--train", "pairs.tsv", *given]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        assert process.stderr is not None
        assert "training a" in process.stderr.readline()
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=6)
    finally:
        process.kill()
    sentence = "stopped while preparing, before a step was done; the same command begins again\n"
    assert (process.returncode, told) == (130, sentence)
    assert not (tmp_path / "runs/translate-pairs/checkpoints").exists()


def test_what_is_asked_where_nothing_can_be_raised_is_obeyed_after() -> None:
    """A handler's exception may end in a callback, whose caller drops it."""
    with Stopping(main=False) as stopping:
        with pytest.raises(Left), stopping.at_once("nothing to save"):
            try:
                signal.raise_signal(signal.SIGTERM)
            except Left:
                went_on = True
        assert went_on and stopping.exit_code == 143
