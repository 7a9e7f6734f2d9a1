"""A film of a run: the steps whose weights are kept so that one can see later how the model came about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from glassformer.errors import GlassformerError
from glassformer.training.saving.keeping import replace_folder

FIRST = 0.01  # of the run, where the first frame after the beginning stands


def film_steps(frames: int, steps: int) -> frozenset[int]:
    """So many steps from 0 to the last, each further from the one before by the same factor.

    Most of what can be seen happens early. A run shorter than its film has a frame each step.

    >>> sorted(film_steps(6, 1000))
    [0, 10, 32, 100, 316, 1000]
    """
    if frames < 1:
        return frozenset()
    if frames < 3:
        return frozenset([steps] if frames == 1 else [0, steps])
    first = max(1.0, FIRST * steps)
    between = range(frames - 1)
    return frozenset({0, *(round(first * (steps / first) ** (n / (frames - 2))) for n in between)})


def keep_frame(run: Path, step: int, save: Callable[[Path], object], say: Callable[[str], None]) -> None:
    """Write the model of a step into `film/`; where that fails it is said, for no run should end of it."""
    try:
        replace_folder(run / "film" / f"step-{step:08}", save)
    except GlassformerError as error:
        say(f"step {step:,} is not in the film: {error}")
