"""A training that ends at a given time, whatever else the device is doing: level first, then down to nothing.

The recipe's `linear` rate hardly falls while the planned steps are out of reach. When three quarters of the
time are over the run is asked to stop, and goes on with as many steps as the rest of the time has room for at
the speed that was seen. The rate is then at once that of such a run's last steps, and falls to nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from glassformer.core.errors import GlassformerError
from results.place import Place, glassformer
from results.trained import Trained, command, log, read

LEVEL = 0.75  # of the time, before the rate falls
AGAIN = 45.0  # seconds that going on takes: reading, compiling, the last validation
UNREACHED = 1_000_000


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

    def go(steps: int, stop_after: float | None = None) -> None:
        changed = (*changes, f"training.steps={steps}")
        words = command(place, row, name, recipe, seed=seed, changes=changed)
        glassformer(*words, stop_after=stop_after)

    if not (folder / "model").is_dir():
        go(UNREACHED, stop_after=LEVEL * seconds)
    if not (folder / "model").is_dir():
        step, speed = _standing(folder)
        left = began + seconds - time.monotonic() - AGAIN
        steps = step + max(10, int(left * speed))
        print(f"{name}: {step} steps, {speed:.2f} a second; {steps - step} more", flush=True)
        go(steps)
    return read(folder, of)


def _standing(folder: Path) -> tuple[int, float]:
    """The last step of a run, and steps a second in the latter half of it, validations counted in."""
    lines = log(folder) if (folder / "metrics.jsonl").is_file() else []
    steps = [(one["step"], one["time"]) for one in lines if one["kind"] == "step"]
    if len(steps) < 2:
        raise GlassformerError(f"{folder}: there was no time for two noted steps; give more --seconds")
    (first, then), (last, now) = steps[len(steps) // 2 - (len(steps) == 2)], steps[-1]
    return last, (last - first) / max(now - then, 1e-6)
