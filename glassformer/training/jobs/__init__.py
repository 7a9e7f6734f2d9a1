"""The jobs by name, each in a file of its own."""

from __future__ import annotations

from pathlib import Path

from glassformer.errors import GlassformerError
from glassformer.training.jobs.base import Job
from glassformer.training.jobs.classify import Classify
from glassformer.training.jobs.forecast import Forecast
from glassformer.training.jobs.images import Images
from glassformer.training.jobs.lm import LanguageModelling
from glassformer.training.jobs.restore import Restore
from glassformer.training.jobs.translate import Translate
from glassformer.training.recipe import Recipe
from glassformer.training.text_encoding import Say

JOBS: dict[str, type[Job]] = {
    "translate": Translate,
    "lm": LanguageModelling,
    "restore": Restore,
    "classify": Classify,
    "images": Images,
    "forecast": Forecast,
}


def job_for(recipe: Recipe, folder: Path, say: Say) -> Job:
    """The job a recipe names."""
    if recipe.job not in JOBS:
        raise GlassformerError(f"the job '{recipe.job}' is not known; known are {', '.join(JOBS)}")
    return JOBS[recipe.job](recipe, folder, say)
