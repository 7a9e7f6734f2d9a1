"""A training that ends at a given time, whatever else the device is doing: level first, then down to nothing.

The recipe's `linear` rate hardly falls while the planned steps are out of reach. When three quarters of the
time are over the run is asked to stop, and goes on with as many steps as the rest of the time
has room for at the speed that was seen; over these the rate falls to nothing.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from results.place import Place, environment
from results.trained import Trained, log, read

LEVEL = 0.75  # of the time, before the rate falls
AGAIN = 45.0  # seconds that going on takes: reading, compiling, the last validation
UNREACHED = 1_000_000
STOPPED = 128 + signal.SIGTERM


def train_for(
    place: Place,
    row: str,
    name: str,
    recipe: str,
    *,
    seconds: float,
    seed: int,
    of: str,
    changes: Sequence[str] = (),
) -> Trained:
    """Train a recipe for so many seconds, its preparations counted in; a finished run is read."""
    folder, began = place.run(row, name), time.monotonic()
    if not (folder / "model").is_dir():
        words = [f"seed={seed}", f"training.device={place.device}", *changes, *place.changes]
        command = ["train", recipe, "--out", str(folder)]
        command += [word for change in words for word in ("--set", change)]
        _child([*command, "--set", f"training.steps={UNREACHED}"], stop_after=LEVEL * seconds)
        step, speed = _standing(folder)
        left = began + seconds - time.monotonic() - AGAIN
        steps = step + max(10, int(left * speed))
        print(f"{name}: {step} steps, {speed:.2f} a second; {steps - step} more", flush=True)
        _child([*command, "--set", f"training.steps={steps}"])
    return read(folder, of)


def _child(words: Sequence[str], stop_after: float | None = None) -> None:
    """Run a glassformer command, and stop it as a person would when its time is over."""
    print("$ glassformer", " ".join(words), file=sys.stderr, flush=True)
    child = subprocess.Popen(
        [sys.executable, "-m", "glassformer", *words], env=environment(), stdout=sys.stderr
    )
    try:
        child.wait(stop_after)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGTERM)
        child.wait()
    if child.returncode not in (0, STOPPED):
        sys.exit(child.returncode)


def _standing(folder: Path) -> tuple[int, float]:
    """The last step of a run, and steps a second in the latter half of it, validations counted in."""
    steps = [(one["step"], one["time"]) for one in log(folder) if one["kind"] == "step"]
    if len(steps) < 2:
        sys.exit(f"{folder}: there was no time for two noted steps; give more seconds")
    (first, then), (last, now) = steps[len(steps) // 2 - (len(steps) == 2)], steps[-1]
    return last, (last - first) / max(now - then, 1e-6)
