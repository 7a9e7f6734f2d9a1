"""One input read with the weights of successive steps of a training run."""

from __future__ import annotations

import json
from collections import OrderedDict
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Final

from glassformer.bundle import Bundle
from glassformer.errors import InvalidValueError, UnsupportedError
from glassformer.interpret.catalog import MAX_BYTES, TraceStore
from glassformer.interpret.examples import example_input, split_language_tag
from glassformer.interpret.head_patterns import describe_heads
from glassformer.interpret.outline import model_kind
from glassformer.interpret.runs import (
    Snapshot,
    SnapshotUnreadableError,
    first_sample,
    list_snapshots,
    load_snapshot,
    loss_at,
    read_run_history,
    thin_out,
)
from glassformer.interpret.schema import (
    AnswerOutcome,
    FillOutcome,
    LabelsOutcome,
    SnapshotFrame,
    SnapshotsInfo,
    TextOutcome,
    TraceInput,
    to_json,
)
from glassformer.interpret.trace import Trace, trace_model
from glassformer.tasks.text_generation import TextGenerator

MAX_FRAMES: Final = 12
CACHE_SIZE: Final = 120  # frames and inputs that are remembered
SAMPLE_TOKENS: Final = 32  # of a language model
MAX_WEIGHT_BYTES: Final = MAX_BYTES * 3 // 4  # of all frames together


class SnapshotViewer:
    """Reads inputs with the snapshots of runs and puts the traces into a store. Thread-safe.

    A frame is cached until its weights are overwritten, and computed again if its trace was dropped.
    """

    def __init__(self, store: TraceStore) -> None:
        self._store = store
        self._frames: OrderedDict[str, SnapshotFrame] = OrderedDict()
        self._inputs: OrderedDict[str, TraceInput] = OrderedDict()
        self._lock = Lock()

    def frames(
        self,
        folder: str | Path,
        *,
        id: str,
        text: str | None = None,
        target: str | None = None,
        most: int = MAX_FRAMES,
    ) -> SnapshotsInfo:
        """At most `most` frames, spread over the run; fewer of large models.

        text: by default the first sample of the run's validations. target: what every frame reads as the
        target, so that frames can be compared; by default the reference, else what the last weights generate.
        Snapshots that can no longer be read are left out.
        """
        if not 2 <= most <= MAX_FRAMES:
            raise InvalidValueError("most", most, f"2 to {MAX_FRAMES}")
        root = Path(folder)
        with self._lock:
            snapshots = _spread(list_snapshots(root), most)
            history = read_run_history(root)
            input: TraceInput | None = None
            frames = []
            for snapshot in reversed(snapshots):  # the last weights determine the input
                try:
                    input = input or self._input(root, snapshot, text, target)
                    frame = self._frame(root, id, snapshot, input)
                except SnapshotUnreadableError:
                    continue
                frames.append(replace(frame, loss=loss_at(history, snapshot.step)))
        return SnapshotsInfo(frames=tuple(frames[::-1]), text=None if input is None else input.text)

    def _input(self, root: Path, snapshot: Snapshot, text: str | None, target: str | None) -> TraceInput:
        key = json.dumps([str(root), snapshot.step, snapshot.stamp_and_size()[0], text, target])
        if key not in self._inputs:
            self._inputs[key] = _choose_input(root, load_snapshot(root, snapshot), text, target)
            while len(self._inputs) > CACHE_SIZE:
                self._inputs.popitem(last=False)
        return self._inputs[key]

    def _frame(self, root: Path, id: str, snapshot: Snapshot, input: TraceInput) -> SnapshotFrame:
        stamp, size = snapshot.stamp_and_size()
        model = f"{id}@{snapshot.step}-{stamp}"
        key = f"{root} {model} {json.dumps(to_json(input))}"
        cached = self._frames.get(key)
        if cached is not None and self._store.find(cached.trace) is not None:
            self._frames.move_to_end(key)
            return cached
        bundle = load_snapshot(root, snapshot)
        trace = trace_model(bundle, input, model=model)
        self._store.put(trace, weight_bytes=size)
        self._frames[key] = SnapshotFrame(
            step=snapshot.step,
            trace=trace.id,
            heads=describe_heads(trace),
            sample=_sample(bundle, trace),
            loss=None,
        )
        while len(self._frames) > CACHE_SIZE:
            self._frames.popitem(last=False)
        return self._frames[key]


def _spread(snapshots: list[Snapshot], most: int) -> list[Snapshot]:
    """Snapshots spread over the run, as many as memory allows."""
    sizes = []
    for snapshot in snapshots:
        with suppress(SnapshotUnreadableError):
            sizes.append(snapshot.stamp_and_size()[1])
    return thin_out(snapshots, max(2, min(most, MAX_WEIGHT_BYTES // max(sizes, default=1))))


def _choose_input(root: Path, bundle: Bundle, text: str | None, target: str | None) -> TraceInput:
    """What all frames read."""
    kind, input = model_kind(bundle), example_input(bundle)
    sample = first_sample(read_run_history(root))
    if input.text is None:
        if text is not None:
            raise UnsupportedError(bundle.display_name, "text input")
        return input
    if text is None and sample is not None and sample.source.strip():
        text, target = sample.source, sample.wanted if target is None else target
    if text is not None:
        text, to = split_language_tag(bundle, text)
        input = TraceInput(text=text, target=target, to=to or input.to)
    if kind != "translate":
        return replace(input, target=None)
    if input.target is None:
        outcome = trace_model(bundle, input).outcome
        assert isinstance(outcome, TextOutcome)
        return replace(input, target=outcome.text)
    return input


def _sample(bundle: Bundle, trace: Trace) -> str | None:
    """What the weights predict for the input, as text."""
    input = trace.prepared.input
    match trace.outcome:
        case TextOutcome(kind="translate"):
            outcome = trace_model(bundle, replace(input, target=None)).outcome
            return outcome.text if isinstance(outcome, TextOutcome) else None
        case TextOutcome():
            task = TextGenerator(bundle, max_new_tokens=SAMPLE_TOKENS, do_sample=False, num_beams=1)
            return task(input.text or "").text
        case LabelsOutcome(labels=labels):
            return f"{labels[0].label} ({labels[0].probability:.0%})"
        case FillOutcome(masks=masks):
            return " ".join(one.guesses[0].text.strip() for one in masks) or None
        case AnswerOutcome(text=text):
            return text
    return None
