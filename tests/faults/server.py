"""The process in which the forking experiments run: one thread, and torch imported once.

    python -m tests.faults.server FOLDER

Reads one JSON line [experiment, count, seed] after the other, and answers each with [tried, failures].
"""

from __future__ import annotations

import json
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from tests.faults import kill_runs, kill_saves, trouble_runs
from tests.faults.runs import Workplace

RUNS: dict[str, Callable[[Workplace, int, int], tuple[int, list[str]]]] = {
    "kill": kill_runs.kill_runs,
    "stop": kill_runs.stop_runs,
    "signal": kill_runs.signal_runs,
    "race": kill_runs.race_runs,
    "spoil": trouble_runs.spoil_runs,
    "spoil to the end": trouble_runs.spoil_to_the_end,
    "memory": trouble_runs.memory_runs,
    "full disk": trouble_runs.full_disk_runs,
    "read-only": trouble_runs.read_only_runs,
    "paths": trouble_runs.path_runs,
}


def serve(folder: Path) -> None:
    torch.set_num_threads(1)
    for number in kill_runs.SIGNALS:  # under nohup one of them comes ignored, and would stay so in a run
        signal.signal(number, signal.SIG_DFL)
    work = None
    for line in sys.stdin:
        name, count, seed = json.loads(line)
        try:
            if name == "kill saves":
                answer = kill_saves.kill_saves(folder / "saves", count, seed)
            else:
                work = work or kill_runs.prepared(folder / "runs")
                answer = RUNS[name](work, count, seed)
        except Exception:
            answer = 0, [traceback.format_exc()]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
