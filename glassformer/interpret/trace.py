"""A trace: one input, one observed forward, and everything that was recorded.

B rows (1; for series one per channel), T positions.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core.observe import Record, observe
from glassformer.interpret.inputs import PreparedInput, prepare_input
from glassformer.interpret.interventions import apply_interventions
from glassformer.interpret.outcomes import read_outcome
from glassformer.interpret.outline import (
    check_transformer,
    describe_attentions,
    describe_stacks,
    describe_stations,
    residual_sites,
)
from glassformer.interpret.schema import (
    AttentionInfo,
    Intervention,
    Kind,
    Outcome,
    TokenSequence,
    TooLargeError,
    TraceInfo,
    TraceInput,
    TraceSeconds,
    to_json,
)
from glassformer.tasks.base import select_tokens

MAX_BYTES = 3 << 30  # of one trace


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Everything recorded for one input.

    record: the observed forward; its output is the model's own. prepared: the input as the model read it.
    derived: further tensors by name, those of the outcome and those computed later.
    """

    id: str
    model: str
    bundle: Bundle
    prepared: PreparedInput
    interventions: tuple[Intervention, ...]
    record: Record
    outcome: Outcome
    seconds: TraceSeconds
    derived: dict[str, Tensor] = field(default_factory=dict)

    @property
    def kind(self) -> Kind:
        return self.prepared.kind

    @property
    def sequences(self) -> tuple[TokenSequence, ...]:
        return self.prepared.sequences

    def sequence(self, name: str) -> TokenSequence:
        """The sequence "source", "target" or "input"."""
        return next(one for one in self.sequences if one.name == name)

    def attentions(self) -> tuple[AttentionInfo, ...]:
        """All attention layers, in the order the data flowed."""
        return describe_attentions(self.bundle.model, self.record)

    @property
    def bytes(self) -> int:
        """The memory the trace uses; a tensor recorded under two names counts once."""
        tensors = [*self.record.tensors.values(), *self.derived.values()]
        tensors += [used.bias for used in self.record.attended.values() if used.bias is not None]
        sizes = {
            one.untyped_storage().data_ptr(): one.untyped_storage().nbytes()
            for one in tensors
            if not one.is_sparse
        }
        return sum(sizes.values())

    def info(self) -> TraceInfo:
        """Everything but the tensors."""
        stacks = describe_stacks(self.bundle)
        return TraceInfo(
            id=self.id,
            model=self.model,
            kind=self.kind,
            input=self.prepared.input,
            changes=self.interventions,
            sequences=self.sequences,
            stations=describe_stations(stacks, self.record),
            tensors={name: tuple(one.shape) for name, one in self.record.tensors.items()},
            attentions=self.attentions(),
            growth={stack.name: tuple(residual_sites(stack, self.record)) for stack in stacks},
            outcome=self.outcome,
            rows=self.prepared.rows,
            seconds=self.seconds,
            kernel=", ".join(sorted({used.mask.kernel for used in self.record.attended.values()})),
        )


def trace_id(model: str, input: TraceInput, interventions: Sequence[Intervention]) -> str:
    """An id that depends on nothing but the request."""
    request = json.dumps([model, to_json(input), to_json(tuple(interventions))], sort_keys=True)
    return hashlib.sha256(request.encode()).hexdigest()[:20]


def estimate_bytes(bundle: Bundle, prepared: PreparedInput) -> int:
    """The approximate size of a trace of this input."""
    rows = len(prepared.rows or (0,))
    numbers, positions = 0, 0
    for stack in describe_stacks(bundle):
        width = getattr(bundle.spec, stack.name).d_model
        inner, shared = stack.heads * stack.head_dim, stack.kv_heads * stack.head_dim
        attention = 2 * inner + 2 * shared + 3 * width
        layer = attention * (2 if stack.cross else 1) + 3 * width + stack.d_ff * (3 if stack.gated else 2)
        positions = rows * len(next(one for one in prepared.sequences if one.name == stack.sequence))
        numbers += positions * (stack.layers * layer + 3 * width)
    numbers += positions * int(getattr(bundle.spec.head, "vocab_size", 0))
    return numbers * next(bundle.model.parameters()).element_size()


def trace_model(
    bundle: Bundle,
    input: TraceInput,
    interventions: Sequence[Intervention] = (),
    *,
    model: str = "model",
) -> Trace:
    """Run the model once on the input and record everything.

    model: the name that the trace gives the model. Attention matrices are not computed here: see
    `interpret.tensors`.
    """
    check_transformer(bundle)
    begin = time.perf_counter()
    prepared = prepare_input(bundle, input, interventions)
    writing = time.perf_counter() - begin if prepared.generated else 0.0
    if (needed := estimate_bytes(bundle, prepared)) > MAX_BYTES:
        raise TooLargeError("a trace of this input", needed, MAX_BYTES, "bytes", hint="shorten the input")
    forward = apply_interventions(bundle.model, prepared.inputs, interventions)
    prepared = _reorder(replace(prepared, inputs=forward.inputs), forward.orders)
    before = time.perf_counter()
    record = observe(forward.model, forward.inputs, edit=forward.edit)
    seconds = time.perf_counter() - before
    outcome, tensors = read_outcome(bundle, prepared, record)
    trace = Trace(
        id=trace_id(model, input, interventions),
        model=model,
        bundle=bundle,
        prepared=prepared,
        interventions=tuple(interventions),
        record=record,
        outcome=outcome,
        seconds=TraceSeconds(),
        derived={**prepared.tensors, **tensors},
    )
    rest = time.perf_counter() - begin - writing - seconds
    return replace(trace, seconds=TraceSeconds(forward=seconds, trace=rest, writing=writing))


def _reorder(prepared: PreparedInput, orders: dict[str, list[int]]) -> PreparedInput:
    """The input with the tokens of swapped positions swapped too."""
    if not orders:
        return prepared
    sequences = tuple(
        replace(one, tokens=tuple(one.tokens[n] for n in orders[one.name])) if one.name in orders else one
        for one in prepared.sequences
    )
    question = prepared.question
    if question is not None and "input" in orders:  # an answer is located by its tokens
        question = replace(question, encoded=select_tokens(question.encoded, orders["input"]))
    return replace(prepared, sequences=sequences, question=question)
