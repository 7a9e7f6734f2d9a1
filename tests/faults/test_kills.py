"""Processes that are killed, stopped or run into trouble: nothing that was saved is lost, and a run that goes
on ends as if nothing had happened, to the bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.scale import Report, trials

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]

Ask = Callable[[str, int], tuple[int, list[str]]]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    folder = tmp_path_factory.mktemp("faults")
    command = [sys.executable, "-m", "tests.faults.server", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None and server.stdout is not None

        def asked(experiment: str, count: int) -> tuple[int, list[str]]:
            server.stdin.write(json.dumps([experiment, count, 0]) + "\n")
            server.stdin.flush()
            answer = server.stdout.readline()
            assert answer, "the experiment broke off; its error is above"
            tried, failures = json.loads(answer)
            return tried, failures

        yield asked
        server.stdin.close()


def test_a_kill_inside_a_save_loses_nothing_that_was_saved(ask: Ask, report: Report) -> None:
    report("SIGKILL inside a save", *ask("kill saves", trials(300)))


FAULTS = {
    "kill": ("SIGKILL of a run, resumed to the end", 700),
    "stop": ("run stopped at a random step and resumed", 50),
    "signal": ("SIGTERM, SIGINT, SIGHUP at a random moment", 100),
    "race": ("two runs begun in one folder", 100),
    "spoil": ("NaN or infinity in a step's loss", 100),
    "spoil to the end": ("NaN from a step on", 20),
    "memory": ("out of memory, halved", 20),
    "full disk": ("disk full at byte k of a run", 60),
    "read-only": ("run folder read-only from some call on", 40),
    "paths": ("unusual and impossible folders", 15),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_in_trouble(fault: str, ask: Ask, report: Report) -> None:
    what, whole = FAULTS[fault]
    report(what, *ask(fault, trials(whole)))
