"""The training jobs by name."""

from __future__ import annotations

from typing import Any

from glassformer.training.jobs.base import Job
from glassformer.training.jobs.classification import Classify, Images
from glassformer.training.jobs.forecast import Forecast
from glassformer.training.jobs.lm import LanguageModelling
from glassformer.training.jobs.seq2seq import Restore, Translate

JOBS: dict[str, type[Job[Any]]] = {
    "translate": Translate,
    "lm": LanguageModelling,
    "restore": Restore,
    "classify": Classify,
    "images": Images,
    "forecast": Forecast,
}
