"""A run as a film: one input read with the weights of one step after another, and what the heads do then."""

from __future__ import annotations

import json
from collections import OrderedDict
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, Final

from glassformer.bundle import Bundle
from glassformer.errors import GlassformerError
from glassformer.interpret.examples import example_of
from glassformer.interpret.heads import heads_info
from glassformer.interpret.kinds import Given, as_json
from glassformer.interpret.outline import check_shown, kind_of
from glassformer.interpret.runs import (
    GoneError,
    Snapshot,
    first_sample,
    loss_at,
    opened,
    run_info,
    snapshots,
    thinned,
)
from glassformer.interpret.store import BYTES, Store
from glassformer.interpret.tags import tag_apart
from glassformer.interpret.taken import Trace, take
from glassformer.tasks.text_generation import TextGenerator
from glassformer.training.logging.history import read_history

__all__ = ["FRAMES", "Films", "run_info"]

FRAMES: Final = 12  # of a film at most
KEPT: Final = 120  # frames that are remembered
CONTINUED: Final = 32  # tokens of a sample of a language model
ROOM: Final = BYTES * 3 // 4  # bytes of weights that the frames of a film hold together


class Films:
    """Films of runs, their traces put into a store; may be used from several threads.

    A frame is remembered until its weights are written anew, and taken again where its trace was dropped.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._frames: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._read: OrderedDict[str, Given] = OrderedDict()
        self._lock = Lock()

    def film(
        self,
        folder: str | Path,
        *,
        id: str,
        text: str | None = None,
        target: str | None = None,
        most: int = FRAMES,
    ) -> dict[str, Any]:
        """At most so many frames, spread over the run, as JSON.

        text: what is read; by default what the run tries at its own validations. target: what every frame
        reads as written, so that all can be laid over one another; by default what should have come out, else
        what the last weights write. sample: what the weights of the frame make of the text by themselves.
        Weights that are gone by the time they are read are left out; of large ones there are fewer frames.
        """
        if not 2 <= most <= FRAMES:
            raise GlassformerError(f"a film has 2 to {FRAMES} frames; got {most}")
        root = Path(folder)
        with self._lock:
            shots = _within(snapshots(root), most)
            history = read_history(root)
            given: Given | None = None
            frames = []
            for shot in reversed(shots):  # the last weights say what is read
                try:
                    given = given or self._given(root, shot, text, target)
                    frame = self._frame(root, id, shot, given)
                except GoneError:
                    continue
                frames.append({**frame, "loss": loss_at(history, shot.step)})
        read = {} if given is None or given.text is None else {"text": given.text}
        return {"frames": frames[::-1], **read}

    def _given(self, root: Path, shot: Snapshot, text: str | None, target: str | None) -> Given:
        """What all frames read, as the weights of the last one say."""
        key = json.dumps([str(root), shot.step, shot.about()[0], text, target])
        if key not in self._read:
            self._read[key] = _given(root, opened(root, shot), text, target)
            while len(self._read) > KEPT:
                self._read.popitem(last=False)
        return self._read[key]

    def _frame(self, root: Path, id: str, shot: Snapshot, given: Given) -> dict[str, Any]:
        stamp, weights = shot.about()
        model = f"{id}@{shot.step}-{stamp}"
        key = f"{root} {model} {json.dumps(as_json(given))}"
        known = self._frames.get(key)
        if known is not None and self._store.find(known["trace"]) is not None:
            self._frames.move_to_end(key)
            return known
        bundle = opened(root, shot)
        trace = take(bundle, given, model=model)
        self._store.put(trace, beside=weights)
        made = {
            "step": shot.step,
            "trace": trace.id,
            "heads": heads_info(trace),
            "sample": _sample(bundle, trace),
        }
        self._frames[key] = made
        while len(self._frames) > KEPT:
            self._frames.popitem(last=False)
        return made


def _within(shots: list[Snapshot], most: int) -> list[Snapshot]:
    """Snapshots spread over the run, as many as memory may hold at once."""
    sizes = []
    for shot in shots:
        with suppress(GoneError):
            sizes.append(shot.about()[1])
    return thinned(shots, max(2, min(most, ROOM // max(sizes, default=1))))


def _given(root: Path, bundle: Bundle, text: str | None, target: str | None) -> Given:
    """What all frames read."""
    check_shown(bundle)
    tried = first_sample(root)
    given = example_of(bundle)
    if given.text is None:
        if text is not None:
            raise GlassformerError("this run reads no texts; its film is of an example of its own")
        return given
    if text is not None:
        given = _read(bundle, given, text, target)
    elif tried is not None and tried["source"].strip():
        given = _read(bundle, given, tried["source"], tried["wanted"] if target is None else target)
    if kind_of(bundle) != "translate":
        return replace(given, target=None)
    if given.target is None:
        return replace(given, target=str(take(bundle, given).outcome["text"]))
    return given


def _read(bundle: Bundle, example: Given, text: str, target: str | None) -> Given:
    """The text, in the language that it asks for; where it asks for none, in the example's."""
    text, to = tag_apart(bundle, text)
    return Given(text=text, target=target, to=to or example.to)


def _sample(bundle: Bundle, trace: Trace) -> str | None:
    """What the weights make of the input, in words."""
    outcome, given = trace.outcome, trace.ready.given
    match outcome["kind"]:
        case "translate":
            return str(take(bundle, replace(given, target=None)).outcome["text"])
        case "generate":
            task = TextGenerator(bundle, max_new_tokens=CONTINUED, do_sample=False, num_beams=1)
            return task(given.text or "").text
        case "classify" | "image":
            best = outcome["labels"][0]
            return f"{best['label']} ({best['probability']:.0%})"
        case "fill":
            return " ".join(one["guesses"][0]["text"].strip() for one in outcome["masks"]) or None
        case "answer":
            return str(outcome["text"])
    return None
