"""Classifiers of time series."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.data.examples import augmentation
from glassformer.data.labeled_series import (
    LabeledSeries,
    SeriesAugment,
    SeriesExamples,
    SeriesPreparation,
    read_labeled_series,
    resample,
    split_by_label,
)
from glassformer.data.readers import require_file
from glassformer.data.sources import fingerprint_files
from glassformer.errors import ConflictError, UnknownNameError
from glassformer.messages import quantity
from glassformer.schema import setting
from glassformer.training import sections
from glassformer.training.classify_job import ClassifyJob
from glassformer.training.data_cache import DataCache
from glassformer.training.hardware import Hardware
from glassformer.training.job_spec import JobSpec
from glassformer.training.labels import classes_of, order_classes, with_classes
from glassformer.training.learner import MixLearner
from glassformer.training.model_setup import (
    build_initialized,
    new_model_spec,
    series_classifier_options,
    supported_options,
    with_head,
)
from glassformer.training.sections import Paths, TableSection

MAX_CONTEXT = 1024


@dataclass(frozen=True, kw_only=True)
class LabeledSeriesData(SeriesAugment, TableSection):
    """Time series and their labels."""

    input: Literal["series"] = sections.input_kind("series")
    train: Paths = sections.train_files(
        ".ts (UEA), label and values in a row (UCR), or a table, wide (a row per series with a label "
        "column) or long (unique_id, ds, values, label)",
        unit="file",
    )
    valid: Paths | float = sections.valid_split(0.2)
    label_column: str | None = setting(None, "label column of a table; null detects it", unit="name")
    time_column: str | None = setting(None, "time column of a long table; null detects it", unit="name")
    value_columns: Paths | None = setting(
        None, "columns of values; null takes all other columns", unit="names"
    )
    context_length: int | None = setting(
        None,
        "length that all series are resampled to; null is the longest training series, at most 1024",
        interval="[4, inf)",
        unit="time steps",
    )
    difference: bool = setting(True, "add the first difference of each channel as a channel")
    mixup_prob: float = augmentation("mixup, decided per batch", 1.0)


class ClassifySeries(ClassifyJob[LabeledSeriesData]):
    """Train a classifier of time series."""

    unit = "series"
    train_series: LabeledSeries
    valid_series: LabeledSeries
    preparation: SeriesPreparation
    evaluated = False

    def adopt_base_settings(self) -> None:
        self.evaluated = self.base is not None

    def prepare_data(self) -> None:
        data = self.data
        paths = [require_file(path) for path in data.train]
        valid = [] if isinstance(data.valid, float) else [require_file(path) for path in data.valid]
        columns = data.label_column, data.time_column, data.value_columns, data.encoding
        cache = DataCache(
            self.folder / "data",
            lambda stamp: (fingerprint_files([*paths, *valid], stamp=stamp), *columns, *data.separators),
        )
        with cache.unchanged():  # only the note is cached: the series are read each time
            self.train_series = self._read(data.train)
            self.valid_series = self.train_series
            if not self.evaluated and not isinstance(data.valid, float):
                self.valid_series = self._read(data.valid)
        if not self.evaluated and isinstance(data.valid, float):
            labels = self.train_series.labels or []
            rows = split_by_label(labels, data.valid, seed=self.recipe.seed)
            self.train_series, self.valid_series = map(self.train_series.select, rows)
        self._find_classes()
        self._fit()
        self._log_counts()

    def _read(self, files: Sequence[str]) -> LabeledSeries:
        data = self.data
        names = (data.label_column, data.time_column, data.value_columns)
        return LabeledSeries.join(
            {path: read_labeled_series(path, *names, **data.table_options) for path in files}
        )

    def _find_classes(self) -> None:
        """Set the labels, in the order of the base model if it has the same labels."""
        known = classes_of(self.base) if self.evaluated else None
        self.classes = known or order_classes({*(self.train_series.labels or [])}, self.base)
        for label in self.valid_series.labels or []:
            if label not in self.classes:
                hint = "every class needs examples in the training data"
                raise UnknownNameError("label", label, self.classes, hint, where="the validation data")

    def _fit(self) -> None:
        """Compute length, mean and standard deviation; use those of the base model if there is one."""
        info, data, series = self.base_info, self.data, self.train_series.values
        if info.mean is not None and info.std is not None and info.context is not None:
            self.preparation = SeriesPreparation(
                length=info.context, difference=bool(info.difference), mean=info.mean, std=info.std
            )
            self.update_data(context_length=info.context, difference=bool(info.difference))
        else:
            longest = max(map(len, series))
            length = data.context_length or max(4, min(MAX_CONTEXT, longest))
            if self.base is not None:
                length = self._input(self.base.spec).context_length
            self.preparation = SeriesPreparation.fit(series, length=length, difference=data.difference)
            self.update_data(context_length=length)
        self.preparation.check(series, "the training data")
        self.preparation.check(self.valid_series.values, "the validation data")

    def _log_counts(self) -> None:
        lengths = [*map(len, self.train_series.values)]
        shortest, longest = min(lengths), max(lengths)
        steps = f"{longest}" if shortest == longest else f"{shortest} to {longest}"
        missing = sum(bool(np.isnan(values).any()) for values in self.train_series.values)
        channels = quantity(self.preparation.channels, "channel")
        self.facts = {"series": f"{steps} steps, {channels}", "classes": list(self.classes)}
        what = f" of {steps} steps and {channels} in {len(self.classes)} classes"
        self.log_counts("series", len(self.train_series), len(self.valid_series), what)
        if shortest != longest or longest != self.preparation.length:
            self.log(f"all series are resampled to {self.preparation.length} steps")
        if missing:
            self.facts["series with missing values"] = missing
            self.log(f"{missing:,} training series have missing values, which are filled linearly")

    def examples(self, series: LabeledSeries, augment: SeriesAugment | None = None) -> SeriesExamples:
        """Return series as model inputs."""
        numbers = {label: n for n, label in enumerate(self.classes)}
        return SeriesExamples(
            values=np.stack([resample(values, self.preparation.length) for values in series.values]),
            labels=np.array([numbers[label] for label in series.labels or []], np.int64),
            preparation=self.preparation,
            augment=augment,
            seed=self.recipe.seed,
        )

    def train_examples(self) -> SeriesExamples:
        return self.examples(self.train_series, self.data)

    def valid_examples(self) -> SeriesExamples:
        return self.examples(self.valid_series)

    def choose_defaults(self, hardware: Hardware) -> list[str]:
        options = series_classifier_options(self.preparation.length)
        self.fill_model(supported_options(self.preset, options))
        count, tuning = len(self.train_series), self.fine_tuning
        batch = max(4, min(64, count // 4))
        steps = 400 if tuning else 2000
        return self.fill_training(
            self.train_examples(),
            batch=batch,
            epochs=steps / math.ceil(count / batch),
            lr=1e-4 if tuning else 3e-3,
        )

    def _input(self, spec: Any) -> specs.SeriesPatchesSpec:
        if isinstance(spec, specs.EncoderOnlySpec) and isinstance(spec.input, specs.SeriesPatchesSpec):
            return spec.input
        raise self.unsupported_model("use patchtst")

    def build(self) -> Bundle:
        channels, count = len(self.preparation.mean), len(self.classes)
        if self.base is None:
            length = self.preparation.length
            fixed = {"context_length": length, "channels": channels, "num_labels": count}
            if len(supported_options(self.preset, fixed)) < len(fixed):
                raise self.unsupported_model("use patchtst")
            bundle = Bundle(model=build_initialized(new_model_spec(self.recipe.model, fixed)))
        else:
            expected = self._input(self.base.spec).channels
            if expected != channels:
                raise ConflictError(
                    ("data.train", "model.folder"),
                    f"the series have {channels} channels (differences included), the model reads {expected}",
                )
            head = self.base.spec.head
            if not isinstance(head, specs.SeriesClassifySpec) or head.num_labels != count:
                head = specs.SeriesClassifySpec(num_labels=count)
            bundle = with_head(self.base, head)
        return with_classes(
            bundle,
            self.recipe.job,
            self.classes,
            columns=self.train_series.names or None,
            context=self.preparation.length,
            difference=self.preparation.difference,
            mean=self.preparation.mean,
            std=self.preparation.std,
        )

    @property
    def label_counts(self) -> list[int]:
        return np.bincount(self.train_examples().labels, minlength=len(self.classes)).tolist()

    def learner(self, model: Any) -> MixLearner:
        return MixLearner(model, cutmix=None, mixup=self.data.mixup_prob, **self.learner_options)

    def valid_samples(self, valid: SeriesExamples) -> list[tuple[str, str]]:
        ids = self.valid_series.ids[: self.recipe.training.max_generate_samples]
        return [(f"series {name}", self.classes[n]) for name, n in zip(ids, valid.labels, strict=False)]


SERIES = JobSpec(
    name="classify",
    input="series",
    summary="Train a classifier of time series.",
    factory=ClassifySeries,
    data=LabeledSeriesData,
    metrics=("loss", "accuracy", "f1"),
    metric="accuracy",
    preset="patchtst",
    batch_unit="examples",
    reads=lambda path: path.endswith(".ts"),
)
