"""A run folder, read while training may still write it: curves, samples, and the weights of its steps."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

from glassformer.bundle import Bundle, load
from glassformer.core.build import canonical, materialise
from glassformer.errors import FileProblemError, GlassformerError
from glassformer.interpret.schema import CheckpointInfo, Curve, RunInfo, SampleInfo, ValidationSamples
from glassformer.pretrained import AVERAGED, BEST, MODEL, RECIPE, SNAPSHOTS, is_run
from glassformer.training.lock import holder_of
from glassformer.training.logging.history import History, Line, read_history
from glassformer.training.recipe import read_recipe_dict
from glassformer.weights.store import open_weights

MAX_POINTS: Final = 2000  # of a curve
MAX_VALIDATIONS: Final = 60  # whose samples are listed
CURVES: Final = ("loss", "perplexity", "lr", "grad_norm", "units_per_second")
_STEP = re.compile(r"step-(\d{8,})")

Item = TypeVar("Item")


@dataclass(eq=False)
class SnapshotUnreadableError(GlassformerError):
    """Weights that cannot be read (any more): a live run deletes older ones."""

    step: int
    problem: str
    template: ClassVar[str] = "the weights of step {step} cannot be read: {problem}"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The weights of one step: a model folder, or those of a checkpoint."""

    step: int
    path: Path
    checkpoint: bool = False

    def stamp_and_size(self) -> tuple[str, int]:
        """A stamp that changes when the weights are overwritten, and their size in bytes."""
        weights = self.path / "model" if self.checkpoint else self.path
        try:
            files = [file.stat() for file in weights.glob("*.safetensors")]
        except OSError:
            files = []
        if not files:
            raise SnapshotUnreadableError(self.step, "they were deleted")
        return f"{max(file.st_mtime_ns for file in files):x}", sum(file.st_size for file in files)


def describe_run(folder: str | Path, *, id: str, curves: bool = True) -> RunInfo:
    """The state of a run; without `curves` a summary.

    Curves are named train.loss, valid.loss, ... A checkpoint's loss is that of the validation at its step, or
    of the last step logged before it.
    """
    root = Path(folder)
    history = read_run_history(root)
    facts = history.facts()
    recipe = _read_recipe(root)
    last = max((line["step"] for line in (*history.steps, *history.validations)), default=0)
    total = facts.get("total steps") or (recipe.get("training") or {}).get("steps")
    return RunInfo(
        id=id,
        name=root.name,
        job=str(facts.get("job") or recipe.get("job") or ""),
        live=holder_of(root) is not None,
        steps=last,
        total=total if isinstance(total, int) else None,
        curves=_curves(history) if curves else {},
        checkpoints=tuple(
            CheckpointInfo(
                step=one.step, path=str(one.path.relative_to(root)), loss=loss_at(history, one.step)
            )
            for one in list_snapshots(root)
        ),
        samples=_samples(history) if curves else (),
    )


def read_run_history(root: Path) -> History:
    """The metrics that a run has logged."""
    try:
        return read_history(root)
    except OSError as error:
        raise FileProblemError(root, f"not a training run ({error.strerror or error})") from None


def _read_recipe(root: Path) -> dict[str, Any]:
    try:
        return read_recipe_dict(root / RECIPE)
    except GlassformerError:
        return {}


def _curves(history: History) -> dict[str, Curve]:
    points: dict[str, list[tuple[int, float]]] = {}
    for line in history.steps:
        _add_points(points, line["step"], {f"train.{name}": line.get(name) for name in CURVES})
    for line in history.validations:
        metrics = line.get("metrics")
        if isinstance(metrics, dict):
            _add_points(points, line["step"], {f"valid.{name}": value for name, value in metrics.items()})
    return {
        name: Curve(step=tuple(step for step, _ in few), value=tuple(value for _, value in few))
        for name, few in ((name, thin_out(many, MAX_POINTS)) for name, many in points.items())
    }


def _add_points(points: dict[str, list[tuple[int, float]]], step: int, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            points.setdefault(name, []).append((step, float(value)))


def thin_out(items: list[Item], most: int) -> list[Item]:
    """At most `most` of the items, evenly spread, including the first and the last.

    >>> thin_out(list(range(10)), 4)
    [0, 3, 6, 9]
    """
    if len(items) <= most:
        return items
    return [items[round(n * (len(items) - 1) / (most - 1))] for n in range(most)]


def _samples(history: History) -> tuple[ValidationSamples, ...]:
    validations = [line for line in history.validations if line.get("samples")]
    return tuple(
        ValidationSamples(step=line["step"], items=tuple(_sample(one) for one in line["samples"]))
        for line in thin_out(validations, MAX_VALIDATIONS)
    )


def _sample(one: Line) -> SampleInfo:
    return SampleInfo(source=one.get("source", ""), wanted=one.get("expected"), got=one.get("got", ""))


def first_sample(history: History) -> SampleInfo | None:
    """The first sample that the run predicts at every validation, if any."""
    samples = _samples(history)
    return samples[0].items[0] if samples and samples[0].items else None


def loss_at(history: History, step: int) -> float | None:
    """The validation loss at a step, else the last training loss logged up to it."""
    for line in history.validations:
        value = (line.get("metrics") or {}).get("loss")
        if line["step"] == step and isinstance(value, int | float):
            return float(value)
    before = [line for line in history.steps if line["step"] <= step and line.get("loss") is not None]
    return float(before[-1]["loss"]) if before else None


def list_snapshots(folder: str | Path) -> list[Snapshot]:
    """The weights in a run folder by step; for the same step a model folder is preferred to a checkpoint."""
    root = Path(folder)
    snapshots: dict[int, Snapshot] = {}
    for step, path in _step_folders(root / "checkpoints"):
        snapshots[step] = Snapshot(step=step, path=path, checkpoint=True)
    best = _best_step(snapshots.values())
    if best is not None and (root / BEST).is_dir():
        snapshots[best] = Snapshot(step=best, path=root / BEST)
    for name in (AVERAGED, SNAPSHOTS):
        for step, path in _step_folders(root / name):
            snapshots[step] = Snapshot(step=step, path=path)
    return [snapshots[step] for step in sorted(snapshots)]


def _step_folders(root: Path) -> list[tuple[int, Path]]:
    try:
        paths = list(root.iterdir())
    except OSError:
        return []
    return [(int(match[1]), path) for path in paths if (match := _STEP.fullmatch(path.name))]


def _best_step(checkpoints: Iterable[Snapshot]) -> int | None:
    """The step of the folder `best`, from the newest readable checkpoint."""
    for one in sorted(checkpoints, key=lambda one: -one.step):
        try:
            step = json.loads((one.path / "state.json").read_bytes())["state"]["best_step"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        return step if isinstance(step, int) and step > 0 else None
    return None


def load_snapshot(folder: str | Path, snapshot: Snapshot) -> Bundle:
    """The model with the weights of a snapshot; those of a checkpoint go into a model folder of the run."""
    try:
        if not snapshot.checkpoint:
            return load(snapshot.path)
        bundle = load(_model_folder(Path(folder), snapshot))
        weights = open_weights(snapshot.path / "model")
        own = canonical(bundle.model)
        if {name: tuple(one.shape) for name, one in own.items()} != weights.shapes:
            raise SnapshotUnreadableError(snapshot.step, "they are those of another model")
        tensors = {name: weights[name].to(own[name]) for name in own}
    except SnapshotUnreadableError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise SnapshotUnreadableError(snapshot.step, str(error)) from error
    materialise(bundle.model, tensors)
    bundle.model.eval()
    return bundle


def run_of(model: Path) -> Path | None:
    """The run folder that a model folder is the result of, if any."""
    return model.parent if model.name in (MODEL, BEST) and is_run(model.parent) else None


def _model_folder(root: Path, snapshot: Snapshot) -> Path:
    """A model folder of the run, which describes the model of its checkpoints."""
    for path in (root / BEST, root / MODEL, *(path for _, path in _step_folders(root / SNAPSHOTS))):
        if (path / "spec.json").is_file() or (path / "config.json").is_file():
            return path
    raise SnapshotUnreadableError(snapshot.step, f"the run '{root.name}' has not saved a model yet")
