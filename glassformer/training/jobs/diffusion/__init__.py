"""Job `diffusion`: train a model that draws images, from classes or from texts."""

from __future__ import annotations

from dataclasses import replace

from glassformer.training.jobs.diffusion.classes import CLASSES
from glassformer.training.jobs.diffusion.texts import TEXTS

JOB = replace(TEXTS, input=None, variants=(TEXTS, CLASSES))
