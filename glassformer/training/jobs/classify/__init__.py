"""Job `classify`: train a classifier of texts, images or time series."""

from __future__ import annotations

from dataclasses import replace

from glassformer.training.jobs.classify.images import IMAGES
from glassformer.training.jobs.classify.series import SERIES
from glassformer.training.jobs.classify.texts import TEXTS

JOB = replace(
    TEXTS,
    input=None,
    variants=(TEXTS, IMAGES, SERIES),
    old_names={"images": {"input": "image"}, "classify-series": {"input": "series"}},
)
