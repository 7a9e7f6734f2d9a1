"""Job `image_tokens`: train a decoder that draws images as codes of an autoencoder, DALL-E style."""

from __future__ import annotations

from dataclasses import replace

from glassformer.training.jobs.image_tokens.classes import CLASSES
from glassformer.training.jobs.image_tokens.texts import TEXTS

JOB = replace(TEXTS, input=None, variants=(TEXTS, CLASSES))
