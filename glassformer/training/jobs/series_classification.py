"""The job that trains classifiers of time series."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
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
from glassformer.errors import ConflictError, InvalidValueError, UnknownNameError
from glassformer.messages import plural
from glassformer.training.data_cache import DataCache, no_log
from glassformer.training.hardware import Hardware
from glassformer.training.jobs.base import Job
from glassformer.training.jobs.classification import classification_task
from glassformer.training.jobs.labels import classes_of, sort_labels, with_classes
from glassformer.training.learner import SeriesLabelLearner
from glassformer.training.model_setup import build_initialized, new_model_spec, supported_options, with_head
from glassformer.training.recipe import LabeledSeriesData
from glassformer.training.task import LearnerTask

MAX_CONTEXT = 1024
PATCHES = 48  # number of patches that the default stride aims at
PATCH_LENGTH = 16


class ClassifySeriesJob(Job[LabeledSeriesData]):
    """Train a classifier of time series; evaluated with accuracy and macro F1."""

    default_preset = "patchtst"
    train_series: LabeledSeries
    valid_series: LabeledSeries
    classes: Sequence[str] = ()
    preparation: SeriesPreparation
    evaluated = False

    def adopt_base_settings(self) -> None:
        self.evaluated = self.base is not None

    def prepare_data(self) -> None:
        data = self.data
        paths = [require_file(path) for path in data.train]
        valid = [] if isinstance(data.valid, float) else [require_file(path) for path in data.valid]
        columns = (data.label_column, data.time_column, data.value_columns, data.encoding)
        cache = DataCache(
            self.folder / "data",
            lambda stamp: (fingerprint_files([*paths, *valid], stamp=stamp), *columns),
        )
        known = cache.load(no_log)  # only the note is cached: the series are read each time
        if known is None:
            cache.start()
        self.train_series = self._read(data.train)
        if self.evaluated:
            self.valid_series = self.train_series
        elif isinstance(data.valid, float):
            labels = self.train_series.labels or []
            rows = split_by_label(labels, data.valid, seed=self.recipe.seed)
            self.train_series, self.valid_series = (_select(self.train_series, part) for part in rows)
        else:
            self.valid_series = self._read(data.valid)
        if known is None:
            cache.commit()
        self._find_classes()
        self._fit()
        self._log_counts()

    def _read(self, files: Sequence[str]) -> LabeledSeries:
        data, parts = self.data, list[LabeledSeries]()
        for path in files:
            part = read_labeled_series(
                path,
                label_column=data.label_column,
                time_column=data.time_column,
                value_columns=data.value_columns,
                encoding=data.encoding,
            )
            if parts and part.channels != parts[0].channels:
                reason = f"their series have {parts[0].channels} and {part.channels} channels"
                raise ConflictError((str(files[0]), str(path)), reason)
            parts.append(part)
        return LabeledSeries(
            values=[values for part in parts for values in part.values],
            labels=[label for part in parts for label in part.labels or []],
            ids=[name for part in parts for name in part.ids],
            names=parts[0].names,
        )

    def _find_classes(self) -> None:
        """Set the labels, in the order of the base model if it has the same labels."""
        labels = sort_labels([*dict.fromkeys(self.train_series.labels or [])])
        before = classes_of(self.base) if self.base else None
        if before is not None and (self.evaluated or set(before) == set(labels)):
            self.classes = before
        else:
            self.classes = labels
        if len(self.classes) < 2:
            raise InvalidValueError("the set of labels", list(self.classes), "at least two labels")
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
        self.facts = {
            "training series": len(self.train_series),
            "validation series": len(self.valid_series),
            "series": f"{steps} steps, {self.preparation.channels} channels",
            "classes": list(self.classes),
        }
        self.log(
            f"{len(self.train_series):,} series of {steps} steps and {self.preparation.channels} "
            f"{plural('channel', self.preparation.channels)} in {len(self.classes)} classes for training, "
            f"{len(self.valid_series):,} for validation"
        )
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
        )

    def train_examples(self) -> SeriesExamples:
        """Return the training series, augmented as the recipe specifies."""
        data = self.data
        augment = SeriesAugment(
            jitter=data.jitter_std,
            scale=data.scale_std,
            warp=data.time_warp,
            shift=data.max_shift,
            mask=data.max_mask,
            seed=self.recipe.seed,
        )
        return self.examples(self.train_series, augment)

    def choose_defaults(self, hardware: Hardware) -> list[str]:
        options = choose_options(self.preparation.length)
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
        """Build or load the model with its classes and statistics, as it will be saved."""
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

    def task(self) -> LearnerTask:
        training, bundle, valid = self.recipe.training, self.build(), self.examples(self.valid_series)
        learner = SeriesLabelLearner(
            bundle.model,
            mixup=self.data.mixup_prob,
            label_smoothing=training.label_smoothing or 0.0,
            r_drop=training.r_drop,
        )
        shown = min(len(valid), training.max_generate_samples)
        return classification_task(
            bundle,
            learner,
            train=self.train_examples(),
            valid=valid,
            sample_inputs=[f"series {name}" for name in self.valid_series.ids[:shown]],
            sample_labels=valid.labels[:shown].tolist(),
            classes=self.classes,
            unit="series",
            training=training,
        )


def _select(series: LabeledSeries, rows: Sequence[int] | Any) -> LabeledSeries:
    """Return some of the series."""
    assert series.labels is not None
    return LabeledSeries(
        values=[series.values[n] for n in rows],
        labels=[series.labels[n] for n in rows],
        ids=[series.ids[n] for n in rows],
        names=series.names,
    )


def choose_options(length: int) -> dict[str, Any]:
    """Choose PatchTST options for series of a length."""
    patch = min(PATCH_LENGTH, max(2, length // 4))
    return {
        "patch_length": patch,
        "stride": max(1, round((length - patch) / PATCHES)),
        "d_model": 64,
        "num_heads": 4,
        "d_ff": 128,
        "num_layers": 3,
        "norm": "layer",  # better than batch norm on small data sets, and with a moving average of weights
        "wiring": "pre",
        "position": "sincos",
        "scaling": "none",  # the series are standardized with the training data's statistics
        "embedding": "per_channel",
        "head_dropout": 0.2,
        "dropout": 0.2,
        "ffn_dropout": 0.2,
        "embed_dropout": 0.2,
    }
