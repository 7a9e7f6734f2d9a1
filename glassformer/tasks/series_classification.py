"""Classify time series from a file or from arrays.

Letters: B series, T time steps, C channels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from typing import Any

import numpy as np
import torch

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.data.labeled_series import SeriesPreparation, Values, read_labeled_series
from glassformer.errors import InvalidValueError, NonFiniteError, UnsupportedError
from glassformer.tasks.base import NO_CALLBACKS, Callbacks, Task, check_finite, chunks, encoder_model
from glassformer.tasks.classification import Classification, LabelScorer

SERIES_TOGETHER = 256  # series per batch


def reads_series(bundle: Bundle) -> bool:
    """Return whether the model reads time series."""
    return isinstance(getattr(bundle.spec, "input", None), specs.SeriesPatchesSpec)


class SeriesClassifier(Task[Any, Classification]):
    """Classify time series, arrays (T, C) or (T,), of any length. top: number of labels; None: all."""

    def __init__(self, bundle: Bundle, *, top: int | None = None) -> None:
        self.labels = LabelScorer.of(bundle, top)
        if not reads_series(bundle):
            raise UnsupportedError(bundle.display_name, "classification of time series")
        self.bundle, self.preparation = bundle, series_preparation(bundle)

    def is_single(self, inputs: Any) -> bool:
        return isinstance(inputs, np.ndarray | torch.Tensor) and inputs.ndim < 3

    def run(self, inputs: Iterable[Any], callbacks: Callbacks = NO_CALLBACKS) -> Iterator[Classification]:
        for chunk in chunks(inputs, SERIES_TOGETHER):
            series = self.preprocess(chunk)
            yield from map(self.postprocess, self.forward(series))
            callbacks.on_done(len(chunk))

    def preprocess(self, series: Sequence[Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Convert series to model inputs (B, T, channels)."""
        arrays = [_as_array(values) for values in series]
        self.preparation.check(arrays, "the input")
        for number, values in enumerate(arrays, 1):
            if np.isnan(values).all(0).any():
                raise NonFiniteError(f"a channel of series {number}", "it has no value")
        return self.preparation(arrays)

    @torch.inference_mode()
    def forward(self, inputs: np.ndarray[Any, np.dtype[np.float32]]) -> Sequence[torch.Tensor]:
        """Return the logits of each series."""
        logits = encoder_model(self.bundle)(torch.from_numpy(inputs).to(self.bundle.device))
        return list(check_finite(self.bundle, logits.float().cpu()))

    def postprocess(self, logits: torch.Tensor) -> Classification:
        """Convert the logits of a series to labels."""
        return Classification(labels=self.labels(logits))


def series_inputs(inputs: Any) -> Any:
    """Return the series of a file; arrays (B, T, C), and lists of arrays, are returned unchanged."""
    if isinstance(inputs, str | PathLike):
        return read_labeled_series(inputs, labeled=False).values  # type: ignore[arg-type]
    return inputs


def _as_array(values: Any) -> Values:
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise InvalidValueError("series", type(values).__name__, "an array (T, C)") from None
    array = array[:, None] if array.ndim == 1 else array
    return np.where(np.isfinite(array), array, np.nan)


def series_preparation(bundle: Bundle) -> SeriesPreparation:
    """Return how a classifier prepares series; a published folder takes them as they are."""
    read, job = bundle.spec.input, bundle.job  # type: ignore[union-attr]
    assert isinstance(read, specs.SeriesPatchesSpec)
    return SeriesPreparation(
        length=read.context_length,
        difference=bool(job.difference),
        mean=job.mean or (0.0,) * read.channels,
        std=job.std or (1.0,) * read.channels,
    )
