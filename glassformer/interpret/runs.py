"""Read a run folder, also during training: curves, samples, and traces of its snapshots."""

from __future__ import annotations

import json
import math
import re
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, Final, TypeVar

from glassformer.bundle import Bundle, load
from glassformer.core.build import fill_meta_model, unique_state_dict
from glassformer.errors import FileProblemError, GlassformerError, UnsupportedError
from glassformer.interpret import schema
from glassformer.interpret.examples import example_input, split_language_tag
from glassformer.interpret.head_patterns import describe_heads
from glassformer.interpret.trace import MAX_STORED_BYTES, TraceStore, trace_model
from glassformer.interpret.views import view_of
from glassformer.pretrained import AVERAGED, BEST, MODEL, RECIPE, SNAPSHOTS, is_run
from glassformer.training.lock import holder_of
from glassformer.training.logging.history import History, Line, read_history
from glassformer.training.recipe import read_recipe_dict
from glassformer.weights.store import open_weights

MAX_SNAPSHOTS: Final = 12
CACHE_SIZE: Final = 120  # cached snapshots and inputs
SAMPLE_TOKENS: Final = 32  # of a language model
MAX_WEIGHT_BYTES: Final = MAX_STORED_BYTES * 3 // 4  # of all snapshots together
MAX_POINTS: Final = 2000  # of a curve
MAX_VALIDATIONS: Final = 60  # whose samples are listed
EXAMPLE_RUN: Final = Path(__file__).parent / "example_run"  # web/scripts/record_training.py writes it
CURVES: Final = ("loss", "perplexity", "lr", "grad_norm", "units_per_second")
_STEP = re.compile(r"step-(\d{8,})")

Item = TypeVar("Item")


@dataclass(eq=False)
class SnapshotUnreadableError(GlassformerError):
    """Weights cannot be read; a run in progress may have deleted them."""

    step: int
    problem: str
    template: ClassVar[str] = "the weights of step {step} cannot be read: {problem}"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The weights of one step, in a model folder or a checkpoint."""

    step: int
    path: Path
    checkpoint: bool = False

    def stamp_and_size(self) -> tuple[str, int]:
        """Return a stamp that changes if the weights are overwritten, and their size in bytes."""
        weights = self.path / "model" if self.checkpoint else self.path
        files = []
        with suppress(OSError):
            files = [file.stat() for file in weights.glob("*.safetensors")]
        if not files:
            raise SnapshotUnreadableError(self.step, "they were deleted")
        return f"{max(file.st_mtime_ns for file in files):x}", sum(file.st_size for file in files)


def describe_run(root: Path, *, id: str, curves: bool = True) -> schema.RunInfo:
    """Describe the state of a run; without `curves`, only a summary.

    Curves are named train.loss, valid.loss, ... The loss of a checkpoint is the validation loss at its step,
    or the last training loss logged before it.
    """
    history = read_run_history(root)
    facts, recipe = history.facts(), dict[str, Any]()
    with suppress(GlassformerError):
        recipe = read_recipe_dict(root / RECIPE)
    last = max((line["step"] for line in (*history.steps, *history.validations)), default=0)
    total = facts.get("total steps") or (recipe.get("training") or {}).get("max_steps")
    return schema.RunInfo(
        id=id,
        name=root.name,
        job=str(facts.get("job") or recipe.get("job") or ""),
        running=holder_of(root) is not None,
        step=last,
        total_steps=total if isinstance(total, int) else None,
        curves=_curves(history) if curves else {},
        checkpoints=tuple(
            schema.CheckpointInfo(
                step=snapshot.step,
                path=str(snapshot.path.relative_to(root)),
                loss=loss_at(history, snapshot.step),
            )
            for snapshot in list_snapshots(root)
        ),
        samples=_samples(history) if curves else (),
        example=root == EXAMPLE_RUN,
    )


def read_run_history(root: Path) -> History:
    try:
        return read_history(root)
    except OSError as error:
        raise FileProblemError(root, f"not a training run ({error.strerror or error})") from None


def _curves(history: History) -> dict[str, schema.Curve]:
    rows = [
        (line["step"], {f"train.{name}": line.get(name) for name in CURVES}) for line in history.steps
    ] + [
        (line["step"], {f"valid.{name}": value for name, value in (line.get("metrics") or {}).items()})
        for line in history.validations
    ]
    points: dict[str, list[tuple[int, float]]] = {}
    for step, values in rows:
        for name, value in values.items():
            if isinstance(value, int | float) and math.isfinite(value):
                points.setdefault(name, []).append((step, float(value)))
    curves = {name: zip(*subsample_evenly(many, MAX_POINTS), strict=True) for name, many in points.items()}
    return {name: schema.Curve(step=step, value=value) for name, (step, value) in curves.items()}


def subsample_evenly(items: list[Item], limit: int) -> list[Item]:
    """Return at most `limit` of the items, evenly spread, including the first and the last.

    >>> subsample_evenly(list(range(10)), 4)
    [0, 3, 6, 9]
    """
    if len(items) <= limit:
        return items
    return [items[round(n * (len(items) - 1) / (limit - 1))] for n in range(limit)]


def _samples(history: History) -> tuple[schema.ValidationSamples, ...]:
    validations = [line for line in history.validations if line.get("samples")]

    def sample(line: Line) -> schema.SampleInfo:
        return schema.SampleInfo(
            source=line.get("source", ""), reference=line.get("expected"), prediction=line.get("got", "")
        )

    return tuple(
        schema.ValidationSamples(step=line["step"], samples=tuple(map(sample, line["samples"])))
        for line in subsample_evenly(validations, MAX_VALIDATIONS)
    )


def run_inputs(bundle: Bundle, root: Path) -> list[schema.TraceInput]:
    """Return the texts of the run's validation samples as inputs; empty if the model does not read text."""
    default = example_input(bundle)
    if default.text is None:
        return []
    with suppress(GlassformerError):
        samples = [sample for validation in _samples(read_run_history(root)) for sample in validation.samples]
        texts = dict.fromkeys(sample.source for sample in samples if sample.source.strip())
        tagged = [split_language_tag(bundle, text) for text in texts]
        return [schema.TraceInput(text=text, to=to or default.to) for text, to in tagged]
    return []


def first_sample(history: History) -> schema.SampleInfo | None:
    samples = _samples(history)
    return samples[0].samples[0] if samples and samples[0].samples else None


def loss_at(history: History, step: int) -> float | None:
    """Return the validation loss at a step, else the last training loss logged up to it."""
    for line in history.validations:
        value = (line.get("metrics") or {}).get("loss")
        if line["step"] == step and isinstance(value, int | float):
            return float(value)
    before = [line for line in history.steps if line["step"] <= step and line.get("loss") is not None]
    return float(before[-1]["loss"]) if before else None


def list_snapshots(root: Path) -> list[Snapshot]:
    """List the weights in a run folder by step; a model folder is preferred to a checkpoint."""
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
    return [(int(match[1]), path) for path in root.glob("step-*") if (match := _STEP.fullmatch(path.name))]


def _best_step(checkpoints: Iterable[Snapshot]) -> int | None:
    """Return the step of the folder `best`, from the newest readable checkpoint."""
    for checkpoint in sorted(checkpoints, key=lambda checkpoint: -checkpoint.step):
        try:
            step = json.loads((checkpoint.path / "state.json").read_bytes())["state"]["best_step"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        return step if isinstance(step, int) and step > 0 else None
    return None


def load_snapshot(root: Path, snapshot: Snapshot) -> Bundle:
    """Load a snapshot; the weights of a checkpoint are loaded into the model of a folder of the run."""
    try:
        if not snapshot.checkpoint:
            return load(snapshot.path)
        bundle = load(_model_folder(root, snapshot))
        weights = open_weights(snapshot.path / "model")
        own = unique_state_dict(bundle.model)
        if {name: tuple(tensor.shape) for name, tensor in own.items()} != weights.shapes:
            raise SnapshotUnreadableError(snapshot.step, "they belong to another model")
        tensors = {name: weights[name].to(own[name]) for name in own}
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        if isinstance(error, SnapshotUnreadableError):
            raise
        raise SnapshotUnreadableError(snapshot.step, str(error)) from error
    fill_meta_model(bundle.model, tensors)
    bundle.model.eval()
    return bundle


def run_of(model: Path) -> Path | None:
    """Return the run folder that a model folder belongs to, if any."""
    return model.parent if model.name in (MODEL, BEST) and is_run(model.parent) else None


def _model_folder(root: Path, snapshot: Snapshot) -> Path:
    """Return a model folder of the run, whose config describes the model of the checkpoints."""
    for path in (root / BEST, root / MODEL, *(path for _, path in _step_folders(root / SNAPSHOTS))):
        if (path / "spec.json").is_file() or (path / "config.json").is_file():
            return path
    raise SnapshotUnreadableError(snapshot.step, f"the run '{root.name}' has not saved a model yet")


class SnapshotViewer:
    """Traces inputs with the snapshots of runs and adds the traces to a store. Thread-safe.

    A trace is cached until the weights of its snapshot are overwritten; dropped traces are computed again.
    """

    def __init__(self, store: TraceStore) -> None:
        self._store, self._lock = store, Lock()
        self._cache: OrderedDict[str, Any] = OrderedDict()  # snapshots and inputs

    def view(
        self,
        root: Path,
        *,
        id: str,
        text: str | None = None,
        target: str | None = None,
        limit: int = MAX_SNAPSHOTS,
    ) -> schema.RunSnapshots:
        """Trace an input with at most `limit` snapshots, evenly spread over the run; fewer for large models.

        text: by default the first validation sample. target: the same target for every snapshot, so that they
        can be compared; by default the reference, else the output of the last snapshot. Snapshots that can no
        longer be read are left out.
        """
        with self._lock:
            snapshots = _spread(list_snapshots(root), limit)
            history = read_run_history(root)
            input: schema.TraceInput | None = None
            snapshot_infos = []
            for snapshot in reversed(snapshots):  # the last weights determine the input
                try:
                    input = input or self._input(root, snapshot, text, target)
                    info = self._trace_snapshot(root, id, snapshot, input)
                except SnapshotUnreadableError:
                    continue
                snapshot_infos.append(replace(info, loss=loss_at(history, snapshot.step)))
        return schema.RunSnapshots(
            snapshots=tuple(snapshot_infos[::-1]), text=None if input is None else input.text
        )

    def _input(
        self, root: Path, snapshot: Snapshot, text: str | None, target: str | None
    ) -> schema.TraceInput:
        key = json.dumps([str(root), snapshot.step, snapshot.stamp_and_size()[0], text, target])
        if key not in self._cache:
            self._remember(key, _choose_input(root, load_snapshot(root, snapshot), text, target))
        return self._cache[key]

    def _trace_snapshot(
        self, root: Path, id: str, snapshot: Snapshot, input: schema.TraceInput
    ) -> schema.SnapshotInfo:
        stamp, size = snapshot.stamp_and_size()
        model = f"{id}@{snapshot.step}-{stamp}"
        key = f"{root} {model} {json.dumps(schema.to_json(input))}"
        if key not in self._cache or self._store.find(self._cache[key].trace_id) is None:
            bundle = load_snapshot(root, snapshot)
            trace = trace_model(bundle, input, model=model)
            self._store.put(trace, weight_bytes=size)
            prediction = view_of(bundle).prediction(input, trace.outcome)
            info = schema.SnapshotInfo(
                step=snapshot.step,
                trace_id=trace.id,
                heads=describe_heads(trace),
                prediction=prediction,
                loss=None,
            )
            self._remember(key, info)
        return self._cache[key]

    def _remember(self, key: str, value: Any) -> None:
        self._cache[key] = value
        while len(self._cache) > CACHE_SIZE:
            self._cache.popitem(last=False)


def _spread(snapshots: list[Snapshot], limit: int) -> list[Snapshot]:
    """Select snapshots evenly spread over the run, at most `limit` and as many as fit into memory."""
    sizes = []
    for snapshot in snapshots:
        with suppress(SnapshotUnreadableError):
            sizes.append(snapshot.stamp_and_size()[1])
    return subsample_evenly(snapshots, max(2, min(limit, MAX_WEIGHT_BYTES // max(sizes, default=1))))


def _choose_input(root: Path, bundle: Bundle, text: str | None, target: str | None) -> schema.TraceInput:
    input, sample = example_input(bundle), first_sample(read_run_history(root))
    if input.text is None:
        if text is not None:
            raise UnsupportedError(bundle.display_name, "text input")
        return view_of(bundle).with_target(input)
    if text is None and sample is not None and sample.source.strip():
        text, target = sample.source, sample.reference if target is None else target
    if text is not None:
        text, to = split_language_tag(bundle, text)
        input = schema.TraceInput(text=text, target=target, to=to or input.to)
    return view_of(bundle).with_target(input)
