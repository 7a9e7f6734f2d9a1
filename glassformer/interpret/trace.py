"""Traces: run a model on one input and record every activation (as hooks and activation caches do).

B rows (1; for series one per channel), T positions.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple

from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core.observe import Record
from glassformer.interpret import schema
from glassformer.interpret.film import Film
from glassformer.interpret.outline import (
    describe_stacks,
    describe_stages,
    residual_sites,
)
from glassformer.interpret.prepared_input import PreparedInput
from glassformer.interpret.views import view_of
from glassformer.interpret.window_attention import whole_grid

MAX_TRACES, MAX_STORED_BYTES = 48, 1 << 30  # of a store


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Everything recorded for one input.

    record: the observed forward pass, with the model's output. prepared: the input of the forward pass.
    derived: other tensors by name: those of the outcome, and those computed on demand. film: the steps of a
    drawing.
    """

    id: str
    model: str
    bundle: Bundle
    prepared: PreparedInput
    interventions: tuple[schema.Intervention, ...]
    record: Record
    outcome: schema.Outcome
    forward_seconds: float
    derived: dict[str, Tensor] = field(default_factory=dict)
    film: Film | None = None

    @property
    def kind(self) -> schema.Kind:
        return self.prepared.kind

    @property
    def sequences(self) -> tuple[schema.TokenSequence, ...]:
        return self.prepared.sequences

    def sequence(self, name: str) -> schema.TokenSequence:
        return next(sequence for sequence in self.sequences if sequence.name == name)

    def attentions(self) -> tuple[schema.AttentionInfo, ...]:
        return view_of(self.bundle).attentions(self.record)

    def tensor(self, name: str) -> Tensor:
        """Return a recorded tensor; those of window attention in the order of the whole grid."""
        tensor, (owner, _, tail) = self.record[name], name.rpartition(".")
        context = self.record.attention_contexts.get(owner)
        if context is None or context.windows is None or tail not in ("q", "k", "v", "heads"):
            return tensor
        return whole_grid(tensor, context.windows)

    @property
    def bytes(self) -> int:
        """The memory the trace uses; a tensor recorded under two names counts once."""
        tensors = [*self.record.tensors.values(), *self.derived.values()]
        tensors += [used.bias for used in self.record.attention_contexts.values() if used.bias is not None]
        storages = [tensor.untyped_storage() for tensor in tensors]
        film = 0 if self.film is None else self.film.bytes
        return film + sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def info(self) -> schema.TraceInfo:
        stacks = describe_stacks(self.bundle)
        return schema.TraceInfo(
            id=self.id,
            model=self.model,
            kind=self.kind,
            input=self.prepared.input,
            interventions=self.interventions,
            sequences=self.sequences,
            stages=describe_stages(stacks, self.record),
            tensors={name: tuple(self.tensor(name).shape) for name in self.record},
            attentions=self.attentions(),
            residual_sites={stack.name: tuple(residual_sites(stack, self.record)) for stack in stacks},
            outcome=self.outcome,
            channels=self.prepared.rows,
            forward_seconds=self.forward_seconds,
            kernel=", ".join(sorted({used.mask.kernel for used in self.record.attention_contexts.values()})),
            unread=unread_characters(self.bundle, self.prepared),
        )


def trace_id(model: str, input: schema.TraceInput, interventions: Sequence[schema.Intervention]) -> str:
    """Return an id that depends only on the request."""
    request = json.dumps([model, schema.to_json(input), schema.to_json(tuple(interventions))], sort_keys=True)
    return hashlib.sha256(request.encode()).hexdigest()[:20]


def trace_model(
    bundle: Bundle,
    input: schema.TraceInput,
    interventions: Sequence[schema.Intervention] = (),
    *,
    model: str = "model",
) -> Trace:
    """Run the model once on the input and record everything.

    model: id of the model, stored in the trace. Attention matrices are not computed here: see
    `interpret.tensors`.
    """
    view = view_of(bundle)
    view.check(input)
    run = view.run(input, interventions)
    return Trace(
        id=trace_id(model, input, interventions),
        model=model,
        bundle=bundle,
        prepared=run.prepared,
        interventions=tuple(interventions),
        record=run.record,
        outcome=run.outcome,
        forward_seconds=run.seconds,
        derived=dict(run.tensors),
        film=run.film,
    )


def unread_characters(bundle: Bundle, prepared: PreparedInput) -> tuple[str, ...]:
    """Return the symbols that are removed from the text before encoding, in order, without repeats.

    A translator removes symbols outside its vocabulary, e.g. emoji, and copies them next to its output. Other
    characters outside the vocabulary are encoded as the unknown token.
    """
    text, sequence = prepared.input.text, prepared.sequences[0]
    if not text or sequence.text is None:
        return ()
    unknown_ids = frozenset[int]() if bundle.tokenizer is None else bundle.tokenizer.unknown_ids
    omitted = [character for character in text if not character.isalnum() and character not in sequence.text]
    unknown = [
        sequence.text[token.start : token.end].strip()
        for token in sequence.tokens
        if token.id in unknown_ids and token.start is not None
    ]
    return tuple(dict.fromkeys(text for text in (*omitted, *unknown) if text.strip()))


class _StoredTrace(NamedTuple):
    """A trace and the memory it uses, with the weights that only this trace keeps alive."""

    trace: Trace
    bytes: int
    weight_bytes: int


class TraceStore:
    """A store of traces by id; if they are too many or too large, the least recently used are dropped.

    The newest is always kept, however large it is. Thread-safe.
    """

    def __init__(self, *, max_traces: int = MAX_TRACES, max_bytes: int = MAX_STORED_BYTES) -> None:
        self._max_traces, self._max_bytes = max_traces, max_bytes
        self._traces: OrderedDict[str, _StoredTrace] = OrderedDict()
        self._lock = Lock()

    @property
    def bytes(self) -> int:
        """The memory that all traces use."""
        with self._lock:
            return sum(stored.bytes for stored in self._traces.values())

    def put(self, trace: Trace, *, weight_bytes: int = 0) -> None:
        """Add a trace. weight_bytes: size of weights that only this trace keeps alive."""
        stored = _StoredTrace(trace, trace.bytes + weight_bytes, weight_bytes)
        with self._lock:
            self._traces.pop(trace.id, None)
            self._traces[trace.id] = stored
            self._drop_oldest()

    def measure(self, trace: Trace) -> None:
        """Measure a trace again: it grows with the tensors that are derived from it."""
        size = trace.bytes
        with self._lock:
            stored = self._traces.get(trace.id)
            if stored is not None and stored.trace is trace:
                self._traces[trace.id] = stored._replace(bytes=size + stored.weight_bytes)
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        total = sum(stored.bytes for stored in self._traces.values())
        while len(self._traces) > 1 and (len(self._traces) > self._max_traces or total > self._max_bytes):
            _, stored = self._traces.popitem(last=False)
            total -= stored.bytes

    def find(self, id: str) -> Trace | None:
        """Return the trace and mark it as most recently used; None if it was dropped or never existed."""
        with self._lock:
            if id not in self._traces:
                return None
            self._traces.move_to_end(id)
            return self._traces[id].trace

    def get(self, id: str) -> Trace:
        """Return the trace as `find` does; raise schema.ItemNotFoundError if there is none."""
        trace = self.find(id)
        if trace is None:
            raise schema.ItemNotFoundError("trace", id, hint="it may have been dropped; request it again")
        return trace
