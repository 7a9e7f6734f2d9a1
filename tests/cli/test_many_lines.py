"""A file of 100,000 lines: the memory it takes does not grow with it, and a stop in the middle costs nothing.

The ordinary tests go through a twentieth of it; `make test-slow` through the whole.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from itertools import cycle, islice
from pathlib import Path

import pytest

from tests.faults.scale import WHOLE, trials
from tests.tasks.reversing import ROWS, reverser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is told by /proc"),
]
LINES = trials(100_000)
FEW = 1000
# Until some 10,000 lines were written the allocator keeps ever more for tensors of new shapes; then no more.
BASE, GROWTH = (LINES // 10, 24 << 10) if WHOLE else (FEW, 64 << 10)  # lines, and KiB that more may take
# resource.getrusage would tell the size of the process that started this one, where that was larger
PROGRAM = """
import sys
from glassformer.cli.main import main
try:
    main(sys.argv[1:])
finally:
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print("peak", peak.split()[1], file=sys.stderr)
"""


def command(source: Path, out: Path) -> list[str]:
    words = ["translate", str(reverser()), "--file", str(source), "--out", str(out), "--num-beams", "2"]
    return [sys.executable, "-c", PROGRAM, *words, "--batch-tokens", "2048", "--threads", "1"]


def peak(told: str) -> int:
    """The most memory that was held, in KiB."""
    return int(next(line for line in told.splitlines() if line.startswith("peak")).split()[1])


def test_memory_and_a_stop_in_the_middle(tmp_path, record_property):
    rows = cycle([*ROWS, "", "red blue " * 20])
    held = {}
    for many in dict.fromkeys((FEW, BASE, LINES)):
        source = tmp_path / f"{many}.txt"
        source.write_text("".join(f"{row}\n" for row in islice(rows, many)))
        done = subprocess.run(
            command(source, tmp_path / f"{many}.out"), capture_output=True, text=True, timeout=1800
        )
        assert done.returncode == 0, done.stderr
        held[many] = peak(done.stderr)
    record_property("peak", held)
    print("most memory in KiB by lines:", held)
    assert max(held.values()) - held[BASE] < GROWTH, held

    whole, out = tmp_path / f"{LINES}.out", tmp_path / "stopped.out"
    child = subprocess.Popen(command(tmp_path / f"{LINES}.txt", out), stderr=subprocess.PIPE, text=True)
    while child.poll() is None and (not out.exists() or out.stat().st_size < whole.stat().st_size // 2):
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    _, told = child.communicate(timeout=60)
    assert child.returncode == 130 and "--resume goes on" in told
    there = out.read_bytes()
    assert there.endswith(b"\n") and len(there) < whole.stat().st_size
    again = [*command(tmp_path / f"{LINES}.txt", out), "--resume"]
    done = subprocess.run(again, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0 and peak(done.stderr) - held[BASE] < GROWTH
    assert out.read_bytes() == whole.read_bytes() and whole.read_bytes().count(b"\n") == LINES
