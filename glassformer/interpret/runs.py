"""A run folder as training writes it, read while it may still be written: curves, samples, weights."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from glassformer.bundle import Bundle, load
from glassformer.core.build import canonical, materialise
from glassformer.errors import GlassformerError
from glassformer.pretrained.run_folder import AVERAGED, BEST, MODEL, RECIPE, SNAPSHOTS, is_run
from glassformer.training.lock import holder_of
from glassformer.training.logging.history import History, Line, read_history
from glassformer.training.recipe import read_recipe_dict
from glassformer.training.sharded_checkpoint import ShardedTensors

POINTS: Final = 2000  # of a curve that are told at most
VALIDATIONS: Final = 60  # whose samples are told at most
CURVES: Final = ("loss", "perplexity", "lr", "grad_norm", "units_per_second")
_STEP = re.compile(r"step-(\d{8,})")


class GoneError(GlassformerError):
    """Weights that were there are not any more, or cannot be read: a live run drops its older ones."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Weights of one step: a model folder (snapshots, averaged, best), or a checkpoint's own."""

    step: int
    path: Path
    checkpoint: bool = False

    def about(self) -> tuple[str, int]:
        """A stamp, another one where the weights were written anew; and how many bytes they are."""
        weights = self.path / "model" if self.checkpoint else self.path
        try:
            files = [file.stat() for file in weights.glob("*.safetensors")]
        except OSError:
            files = []
        if not files:
            raise GoneError(f"the weights of step {self.step} are gone")
        return f"{max(file.st_mtime_ns for file in files):x}", sum(file.st_size for file in files)


def run_info(folder: str | Path, *, id: str, curves: bool = True) -> dict[str, Any]:
    """What a run has to show so far, as JSON; without `curves`, in short.

    Curves are named train.loss, valid.loss, ...; of a long one every n-th point and the last are told. live:
    whether a process trains in the folder now. A checkpoint's loss is that of the validation at its step, or
    of the last step noted before it.
    """
    root = Path(folder)
    history = _history(root)
    facts = history.facts()
    recipe = _recipe(root)
    last = max((line["step"] for line in (*history.steps, *history.validations)), default=0)
    total = facts.get("total steps") or (recipe.get("training") or {}).get("steps")
    return {
        "id": id,
        "name": root.name,
        "job": str(facts.get("job") or recipe.get("job") or ""),
        "live": holder_of(root) is not None,
        "steps": last,
        "total": total if type(total) is int else None,
        "curves": _curves(history) if curves else {},
        "checkpoints": [
            {"step": one.step, "path": str(one.path.relative_to(root)), "loss": loss_at(history, one.step)}
            for one in snapshots(root)
        ],
        "samples": _samples(history) if curves else [],
    }


def _history(root: Path) -> History:
    try:
        return read_history(root)
    except OSError as error:
        raise GlassformerError(
            f"'{root.name}' cannot be read as a run ({error.strerror or error}); give a folder that "
            "`glassformer train` wrote"
        ) from None


def _recipe(root: Path) -> dict[str, Any]:
    try:
        return read_recipe_dict(root / RECIPE)
    except GlassformerError:
        return {}


def _curves(history: History) -> dict[str, dict[str, list[Any]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for line in history.steps:
        _add(found, line["step"], {f"train.{name}": line.get(name) for name in CURVES})
    for line in history.validations:
        metrics = line.get("metrics")
        if isinstance(metrics, dict):
            _add(found, line["step"], {f"valid.{name}": value for name, value in metrics.items()})
    return {
        name: {"step": [step for step, _ in points], "value": [value for _, value in points]}
        for name, points in ((name, thinned(points, POINTS)) for name, points in found.items())
    }


def _add(found: dict[str, list[tuple[int, float]]], step: int, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            found.setdefault(name, []).append((step, float(value)))


def thinned(items: list[Any], most: int) -> list[Any]:
    """At most so many of the items, evenly spread, the first and the last among them.

    >>> thinned(list(range(10)), 4)
    [0, 3, 6, 9]
    """
    if len(items) <= most:
        return items
    return [items[round(n * (len(items) - 1) / (most - 1))] for n in range(most)]


def _samples(history: History) -> list[dict[str, Any]]:
    shown = [line for line in history.validations if line.get("samples")]
    return [
        {"step": line["step"], "items": [_sample(one) for one in line["samples"] if isinstance(one, dict)]}
        for line in thinned(shown, VALIDATIONS)
    ]


def _sample(one: Line) -> dict[str, Any]:
    return {"source": one.get("source", ""), "wanted": one.get("expected"), "got": one.get("got", "")}


def loss_at(history: History, step: int) -> float | None:
    """The loss of the validation at a step, else that of the last step noted up to it."""
    for line in history.validations:
        value = (line.get("metrics") or {}).get("loss")
        if line["step"] == step and isinstance(value, int | float):
            return float(value)
    before = [line for line in history.steps if line["step"] <= step and line.get("loss") is not None]
    return float(before[-1]["loss"]) if before else None


def first_sample(folder: str | Path) -> dict[str, Any] | None:
    """What the run itself tries at every validation, if it does."""
    told = _samples(_history(Path(folder)))
    return told[0]["items"][0] if told and told[0]["items"] else None


def snapshots(folder: str | Path) -> list[Snapshot]:
    """The weights that the folder holds, by step; of one step a model folder before a checkpoint."""
    root = Path(folder)
    found: dict[int, Snapshot] = {}
    for step, path in _steps(root / "checkpoints"):
        found[step] = Snapshot(step=step, path=path, checkpoint=True)
    best = _best_step(found.values())
    if best is not None and (root / BEST).is_dir():
        found[best] = Snapshot(step=best, path=root / BEST)
    for name in (AVERAGED, SNAPSHOTS):
        for step, path in _steps(root / name):
            found[step] = Snapshot(step=step, path=path)
    return [found[step] for step in sorted(found)]


def _steps(root: Path) -> list[tuple[int, Path]]:
    try:
        paths = list(root.iterdir())
    except OSError:
        return []
    return [(int(match[1]), path) for path in paths if (match := _STEP.fullmatch(path.name))]


def _best_step(checkpoints: Iterable[Snapshot]) -> int | None:
    """The step of the folder `best`, as the newest checkpoint that can be read tells it."""
    for one in sorted(checkpoints, key=lambda one: -one.step):
        try:
            step = json.loads((one.path / "state.json").read_bytes())["state"]["best_step"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        return step if type(step) is int and step > 0 else None
    return None


def opened(folder: str | Path, snapshot: Snapshot) -> Bundle:
    """The model with the weights of a snapshot; a checkpoint's go into the model that the folder has saved.

    One that cannot be read, as where a live run has dropped it by now, is a GoneError.
    """
    try:
        if not snapshot.checkpoint:
            return load(snapshot.path)
        bundle = load(_like(Path(folder)))
        weights = ShardedTensors(snapshot.path / "model")
        own = canonical(bundle.model)
        if {name: tuple(one.shape) for name, one in own.items()} != dict(weights.shapes):
            raise GoneError(f"'{snapshot.path.name}' holds the weights of another model")
        tensors = {name: weights[name].to(own[name]) for name in own}
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise GoneError(f"the weights of step {snapshot.step} cannot be read ({error})") from error
    materialise(bundle.model, tensors)
    bundle.model.eval()
    return bundle


def run_of(model: Path) -> Path | None:
    """The run that a model's folder is a result of, if it is one's."""
    return model.parent if model.name in (MODEL, BEST) and is_run(model.parent) else None


def _like(root: Path) -> Path:
    """A model folder of the run, which says what its checkpoints are of."""
    saved = [root / BEST, root / MODEL, *(path for _, path in _steps(root / SNAPSHOTS))]
    for path in saved:
        if (path / "spec.json").is_file() or (path / "config.json").is_file():
            return path
    raise GoneError(f"'{root.name}' has saved no model yet; wait for its first validation")
