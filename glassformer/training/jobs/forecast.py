"""Learn to forecast: series of numbers over time, the future of each told from its past."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glassformer import baselines
from glassformer.bundle import Bundle, build_model, load, save
from glassformer.core import spec as specs
from glassformer.data.lines import checked
from glassformer.data.problems import Problems
from glassformer.data.series import SeriesSet, read_series
from glassformer.data.sources import fingerprint_of
from glassformer.data.spread import written_of
from glassformer.data.windows import Part, Parts, Scaler, Windows, by_rows, by_share, faint
from glassformer.errors import GlassformerError
from glassformer.families.sidecars import JobInfo
from glassformer.training.data_cache import Prepared
from glassformer.training.jobs.base import Job
from glassformer.training.learner import SeriesLearner, point, values_learned
from glassformer.training.logging.run_log import Sample
from glassformer.training.model_setup import PATIENCE, Machine, accepted, fresh_spec, loaded, told_time
from glassformer.training.recipe import SeriesData
from glassformer.training.task import Task, Validation, forecast_figures
from glassformer.training.text_encoding import quiet

BASELINES = {"linear": "Linear", "repeat": "RepeatLast", "seasonal": "SeasonalRepeat"}
CONTEXTS = (336, 192, 96, 64, 48, 32, 24, 16, 12, 8)
LITTLE = 1_000_000  # values to learn from below which a small model does better
FULL_WIDTH = 128  # a model's width from which on a machine is kept busy
TOLD = 6  # numbers of a series that a sample shows
DIGITS = 4  # of each


class Forecast(Job):
    """Series in, a model out that tells the next steps; measured in squared and absolute errors.

    Beside each figure stands that of repeating the last value, which a model must beat to be worth anything.
    """

    usual = "patchtst"
    series: SeriesSet
    parts: Parts
    scaler: Scaler
    followed: JobInfo | None = None  # what is known of a model that is only measured

    @property
    def data(self) -> SeriesData:
        assert isinstance(self.recipe.data, SeriesData)
        return self.recipe.data

    @cached_property
    def base(self) -> Bundle | None:
        """The model to go on from, where the recipe names one."""
        folder = self.recipe.model.folder
        return None if folder is None else loaded(folder)

    def follow_model(self) -> None:
        self.followed = self.base.job if self.base is not None else None

    def gather(self) -> None:
        data = self.data
        if len(data.train) != 1:
            raise GlassformerError(f"{len(data.train)} files of series were given; give one that holds all")
        path, problems = checked(data.train[0]), Problems()
        target = data.target or (self.followed.columns if self.followed else None)
        prepared = Prepared(
            self.folder / "data",
            lambda stamp: (
                fingerprint_of([path], stamp=stamp),
                data.time,
                target,
                data.split,
                data.fill,
            ),
        )
        known = prepared.about(quiet)  # nothing but a note: the series are read each time
        if known is None:
            prepared.begin()
        self.series = series = read_series(
            path, problems=problems, time=data.time, target=target, fill=data.fill or "refuse"
        )
        if known is None:
            prepared.end()
        self._cut()
        for note in filter(None, (*series.notes, problems.sentence())):
            self.say(note)
        self.facts |= {
            "series": len(series),
            "columns": list(series.names),
            "rows": len(series.values),
            "step": str(series.step),
        }
        many = f"{len(series):,} series" if len(series) > 1 else "a series"
        few = faint(series, self.parts.train, self.scaler) if self.followed is None else []
        if few:
            self.say(
                f"{len(few):,} of {len(series):,} series, '{few[0]}' first, vary less than a hundredth of "
                "what all do together, and are hardly learned; bring them to a like size, or train them apart"
            )
        self.say(
            f"{many} of {len(series.names)} columns, a row every {series.step}: {len(series.values):,} rows"
        )

    def _cut(self) -> None:
        """Part the series in time, and find the scale of what is learned; or take a measured model's."""
        if self.followed is not None:
            whole = Part(np.zeros_like(self.series.lengths), self.series.lengths)
            self.parts = Parts(whole, whole, whole)
            if self.followed.mean is not None and self.followed.std is not None:
                self.scaler = Scaler(self.followed.mean, self.followed.std)
                return
        else:
            self.parts = parts_of(self.series, self.data.split)
        self.scaler = Scaler.fitted(self.series, self.parts.train)

    def windows(self, part: Part) -> Windows:
        """All windows whose future lies in a part."""
        context, horizon = self._steps()
        return Windows(series=self.series, part=part, scaler=self.scaler, context=context, horizon=horizon)

    def _steps(self) -> tuple[int, int]:
        """How many steps are read, and how many told: the recipe's, or a model's that is gone on from."""
        context, horizon = self.data.context, self.data.horizon
        if self.base is not None:
            context, horizon = steps_of(self.base, context)
        if context is None:
            rows = int((self.parts.train.end - self.parts.train.begin).max())
            context = next((n for n in CONTEXTS if 4 * (n + horizon) <= rows), CONTEXTS[-1])
        return context, horizon

    def choose(self, machine: Machine) -> list[str]:
        context, horizon = self._steps()
        self.recipe = replace(self.recipe, data=replace(self.data, context=context, horizon=horizon))
        windows, channels = self.windows(self.parts.train), len(self.series.names)
        self.windows(self.parts.valid)  # better refused now than after training
        preset, tuned = self.preset, self.base is not None
        reasons = [f"{context} steps are read to tell {horizon}; {len(windows):,} windows to learn from"]
        batch = max(1, min(128, max(8, 896 // channels), len(windows) // 10))
        if preset in BASELINES:
            self.settle_model(preset, {})
            steps = 1 if preset != "linear" else None
            return reasons + self.settle(
                windows, batch=batch, passes=20, lr=1e-3, **({"steps": steps} if steps else {})
            )
        words = sizes_for(context, len(windows) * channels)
        self.settle_model(preset, {} if tuned else accepted(preset, words))
        passes, why = passes_for(
            machine, {**words, **self.recipe.model.words}, len(windows) * channels, horizon, context
        )
        return (
            reasons
            + ([] if tuned or self.length_given else [why])
            + self.settle(
                windows,
                batch=batch,
                passes=5 if tuned else passes,
                lr=1e-4 if tuned else 1e-3,
            )
        )

    def build(self) -> Bundle:
        """The model of the recipe with its columns and scale, as it will be saved."""
        (context, horizon), words, channels = self._steps(), self.recipe.model, len(self.series.names)
        model: Any
        if self.base is not None:
            read = getattr(self.base.spec, "input", None)
            if isinstance(read, specs.SeriesPatches) and read.channels != channels:
                raise GlassformerError(
                    f"the series has {channels} columns and the model in '{words.folder}' reads "
                    f"{read.channels}; name as many with data.target"
                )
            bundle = self.base
        elif words.preset in BASELINES:
            sizes = {"context_length": context, "prediction_length": horizon}
            kind = baselines.KINDS[BASELINES[words.preset]]
            fixed = {name: n for name, n in sizes.items() if name in kind.__dataclass_fields__}
            given = {"kind": kind.__name__, **words.words, **fixed}
            model = baselines.build_baseline(baselines.from_dict(given, "model"))
            bundle = Bundle(model=model)
        else:
            fixed = {"context_length": context, "prediction_length": horizon, "channels": channels}
            if len(accepted(words.preset or "", fixed)) < len(fixed):
                raise GlassformerError(
                    f"model.preset '{words.preset}' forecasts nothing; patchtst, {', '.join(BASELINES)} do"
                )
            bundle = Bundle(model=build_model(fresh_spec(words, fixed)))
        about = {
            "job": self.recipe.job,
            "columns": list(self.series.names),
            "mean": list(self.scaler.mean),
            "std": list(self.scaler.std),
            "context": context,
            "horizon": horizon,
            "frequency": str(self.series.step),
        }
        return replace(bundle, job=JobInfo.from_dict(about))

    def task(self) -> Task:
        bundle = self.build()
        learner = SeriesLearner(bundle.model)
        return Task(
            learner=learner,
            train=self.windows(self.parts.train),
            units="values",
            count=values_learned,
            metric="mse",
            better="lower",
            validate=self.validation(learner, self.windows(self.parts.valid)),
            save=lambda path: save(bundle, path),
        )

    def validation(self, learner: SeriesLearner, windows: Windows) -> Callable[[torch.device], Validation]:
        """Errors over all windows of a part, in scaled units, beside those of repeating the last value."""
        batch = max(256, self.recipe.training.batch or 0)
        repeat = SeriesLearner(
            baselines.build_baseline(baselines.spec.RepeatLast(prediction_length=windows.horizon))
        )
        _, naive = forecast_figures(repeat, windows, torch.device("cpu"), batch=batch)

        def validate(device: torch.device) -> Validation:
            loss, found = forecast_figures(learner, windows, device, batch=batch)
            by_step = zip(found.mse_by_step, found.mae_by_step, strict=True)
            return Validation(
                metrics={
                    "loss": loss,
                    "mse": found.mse,
                    "mae": found.mae,
                    "repeat_mse": naive.mse,
                    "repeat_mae": naive.mae,
                },
                samples=self.samples(learner, windows, device),
                tables={
                    "steps": [{"step": n, "mse": mse, "mae": mae} for n, (mse, mae) in enumerate(by_step, 1)]
                },
            )

        return validate

    def samples(self, learner: SeriesLearner, windows: Windows, device: torch.device) -> list[Sample]:
        """A few windows from all over a part: the numbers before, those that came and those told."""
        count = min(self.recipe.training.samples, len(windows))
        if not count:
            return []
        rows = np.linspace(0, len(windows) - 1, count).astype(np.int64)
        arrays = windows.batch(rows)
        told = point(learner.model(torch.from_numpy(arrays["past"]).to(device))).cpu().numpy()
        channel, found = len(self.series.names) - 1, []
        for n, start in enumerate(windows.starts(rows)):
            before, came, guess = (
                " ".join(
                    written_of(float(value), self.scaler.std[channel], DIGITS)
                    for value in self.scaler.undone(values[n])[cut, channel]
                )
                for values, cut in (
                    (arrays["past"], slice(-TOLD, None)),
                    (arrays["future"], slice(TOLD)),
                    (told, slice(TOLD)),
                )
            )
            when = self.series.when(int(start))
            found.append(
                Sample(
                    source=f"{self.series.names[channel]} before {when}: {before}", expected=came, got=guess
                )
            )
        return found

    def test(self, folder: Path, device: torch.device) -> dict[str, float]:
        part = self.parts.test
        if not ((part.end - part.begin) >= self.data.horizon).any():
            return {}
        learner = SeriesLearner(load(folder, device=device).model)
        found = self.validation(learner, self.windows(part))(device)
        return {name: value for name, value in found.metrics.items() if name != "loss"}


def parts_of(series: SeriesSet, split: tuple[float, ...]) -> Parts:
    """The series cut by shares that make a whole, or at rows."""
    if len(split) != 3:
        raise GlassformerError(
            f"data.split is {list(split)}; give three shares, as [0.7, 0.1, 0.2], or three rows where "
            "training, validation and test end"
        )
    if max(split) <= 1:
        return by_share(series, *split)
    if any(end != int(end) for end in split):
        raise GlassformerError(f"data.split is {list(split)}; rows are whole numbers")
    return by_rows(series, *(int(end) for end in split))


def steps_of(bundle: Bundle, context: int | None) -> tuple[int | None, int]:
    """How many steps a saved forecaster reads (the given, where any will do), and how many it tells."""
    spec: Any = bundle.spec
    if isinstance(spec, specs.EncoderOnly) and isinstance(spec.input, specs.SeriesPatches):
        if isinstance(spec.head, specs.Forecast):
            return spec.input.context_length, spec.head.prediction_length
    elif hasattr(spec, "prediction_length"):
        known = bundle.job.context
        return getattr(spec, "context_length", context or known), spec.prediction_length
    raise GlassformerError("the model in model.folder forecasts nothing; give one that was trained to")


def sizes_for(context: int, values: int) -> dict[str, Any]:
    """The words of a model for so many steps to read, and so many windows of one column to learn from."""
    patch = 16 if context >= 64 else max(2, context // 6)
    words: dict[str, Any] = {"patch_length": patch, "stride": max(1, patch // 2), "num_layers": 3}
    if values < LITTLE:
        drops = dict.fromkeys(("dropout", "ffn_dropout", "embed_dropout"), 0.3)
        return words | {"d_model": 16, "num_heads": 4, "d_ff": 128, **drops}
    return words | {"d_model": 128, "num_heads": 16, "d_ff": 256}


def passes_for(
    machine: Machine, words: Mapping[str, Any], rows: int, horizon: int, context: int
) -> tuple[float, str]:
    """How many passes over so many windows of one column fit the time a person waits, at most 30."""
    patches = (context - words["patch_length"]) // words["stride"] + 1
    layer = 4 * words["d_model"] ** 2 + 2 * words["d_model"] * words["d_ff"]
    weights = patches * (words["num_layers"] * layer + words["d_model"] * horizon)
    idle = max(1.0, FULL_WIDTH / words["d_model"])  # narrow products leave most of a machine idle
    seconds = 6 * weights * rows * idle / machine.speed  # of a pass
    passes = float(f"{min(30.0, max(1.0, PATIENCE / seconds)):.2g}")
    return passes, f"{passes:g} passes over the windows are reckoned at {told_time(passes * seconds)}"
