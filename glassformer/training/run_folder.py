"""The names by which a run's folder and its models are known; `training/run.py` tells all that is there."""

from __future__ import annotations

from pathlib import Path

RECIPE = "recipe.yaml"
MODEL, BEST = "model", "best"  # the result, and while it trains the best so far


def is_run(folder: Path) -> bool:
    """Whether a training began in the folder."""
    return (folder / RECIPE).is_file()
