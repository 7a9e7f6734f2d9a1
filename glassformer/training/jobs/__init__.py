"""The training jobs by name."""

from __future__ import annotations

from pathlib import Path

from glassformer.training.data_cache import Log
from glassformer.training.jobs.base import Job
from glassformer.training.jobs.classify import Classify
from glassformer.training.jobs.forecast import Forecast
from glassformer.training.jobs.images import Images
from glassformer.training.jobs.lm import LanguageModelling
from glassformer.training.jobs.restore import Restore
from glassformer.training.jobs.translate import Translate
from glassformer.training.recipe import Recipe

JOBS: dict[str, type[Job]] = {
    "translate": Translate,
    "lm": LanguageModelling,
    "restore": Restore,
    "classify": Classify,
    "images": Images,
    "forecast": Forecast,
}


def create_job(recipe: Recipe, folder: Path, log: Log) -> Job:
    """The job a recipe names."""
    return JOBS[recipe.job](recipe, folder, log)
