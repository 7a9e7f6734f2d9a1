"""SIGKILL inside a save: the checkpoint before it or the one in the making is there, whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.scale import Report, trials

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def test_a_kill_inside_a_save_loses_nothing_that_was_saved(tmp_path: Path, report: Report) -> None:
    command = [sys.executable, "-m", "tests.faults.kill_saves", str(tmp_path), str(trials(300)), "0"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    report("SIGKILL inside a save", result["inside"], result["failures"])
    assert result["inside"] >= trials(300)
