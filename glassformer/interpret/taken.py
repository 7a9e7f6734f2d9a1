"""A trace: one input, one forward on the fast kernel, and what was seen on the way.

B rows (1; for series one for each channel), T places.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core.observe import Record, observe
from glassformer.interpret.inputs import ready_for
from glassformer.interpret.kinds import Change, Given, Kind, Sequence, TooLargeError, as_json
from glassformer.interpret.outcome import outcome_of
from glassformer.interpret.outline import check_shown, stacks_of
from glassformer.interpret.ready import Ready, forward_of
from glassformer.interpret.stations import AttentionInfo, attentions_of, growth_of, stations_of

MEMORY = 3 << 30  # bytes of one trace at most


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What there is to see of one input.

    record: what the forward kept; its output is the model's own. ready: the input as the model took it, its
    sequences with it. outcome: what the model made of it, as JSON. kept: further tensors by name, the
    outcome's and those worked out later.
    """

    id: str
    model: str
    bundle: Bundle
    ready: Ready
    changes: tuple[Change, ...]
    record: Record
    outcome: Mapping[str, Any]
    seconds: Mapping[str, float]
    kept: dict[str, Tensor] = field(default_factory=dict)

    @property
    def kind(self) -> Kind:
        return self.ready.kind

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        return self.ready.sequences

    def sequence(self, name: str) -> Sequence:
        """The sequence of a name: "source", "target" or "input"."""
        return next(one for one in self.sequences if one.name == name)

    def attentions(self) -> tuple[AttentionInfo, ...]:
        """Every attention, in the order the data flowed."""
        return attentions_of(self.bundle.model, self.record)

    @property
    def bytes(self) -> int:
        """What the trace holds in memory; a tensor seen under two names counts once."""
        held = [*self.record.tensors.values(), *self.kept.values()]
        held += [used.bias for used in self.record.attended.values() if used.bias is not None]
        sizes = {
            one.untyped_storage().data_ptr(): one.untyped_storage().nbytes()
            for one in held
            if not one.is_sparse
        }
        return sum(sizes.values())

    def info(self) -> dict[str, Any]:
        """Everything but the numbers, as JSON."""
        stacks = stacks_of(self.bundle)
        kernels = sorted({used.mask.kernel for used in self.record.attended.values()})
        told: dict[str, Any] = as_json(
            {
                "id": self.id,
                "model": self.model,
                "kind": self.kind,
                "input": self.ready.given,
                "changes": self.changes,
                "sequences": self.sequences,
                "stations": stations_of(stacks, self.record),
                "tensors": {name: tuple(one.shape) for name, one in self.record.tensors.items()},
                "attentions": self.attentions(),
                "growth": {stack.name: growth_of(stack, self.record) for stack in stacks},
                "outcome": self.outcome,
                "rows": self.ready.rows,
                "seconds": self.seconds,
                "kernel": ", ".join(kernels),
            }
        )
        return told


def trace_id(model: str, given: Given, changes: Several[Change]) -> str:
    """The same for the same question about the same model."""
    asked = json.dumps([model, as_json(given), as_json(tuple(changes))], sort_keys=True)
    return hashlib.sha256(asked.encode()).hexdigest()[:20]


def memory_of(bundle: Bundle, ready: Ready) -> int:
    """About how many bytes a trace of this input will hold."""
    rows = len(ready.rows or (0,))
    numbers, last = 0, 0
    for stack in stacks_of(bundle):
        width = getattr(bundle.spec, stack.name).d_model
        inner, shared = stack.heads * stack.head_dim, stack.kv_heads * stack.head_dim
        attention = 2 * inner + 2 * shared + 3 * width
        layer = attention * (2 if stack.cross else 1) + 3 * width + stack.d_ff * (3 if stack.gated else 2)
        last = rows * len(next(one for one in ready.sequences if one.name == stack.sequence))
        numbers += last * (stack.layers * layer + 3 * width)
    numbers += last * int(getattr(bundle.spec.head, "vocab_size", 0))
    return numbers * next(bundle.model.parameters()).element_size()


def _check_memory(bundle: Bundle, ready: Ready) -> None:
    if (needed := memory_of(bundle, ready)) > MEMORY:
        raise TooLargeError(
            f"a trace of this input would hold about {needed / 2**30:.1f} GiB, and at most "
            f"{MEMORY / 2**30:.0f} are kept for one; shorten the input"
        )


def take(
    bundle: Bundle, given: Given | Mapping[str, Any], changes: Several[Change] = (), *, model: str = "model"
) -> Trace:
    """Read the input once and keep what was seen.

    given: the input, or JSON's words for it. changes: what is done to the model or its input on the way.
    model: what the model is called. Attention matrices are not worked out here: see `trace.tensors`.
    """
    check_shown(bundle)
    begun = time.perf_counter()
    given = given if isinstance(given, Given) else Given.of(given)
    ready = ready_for(bundle, given, changes)
    wrote = time.perf_counter() - begun if ready.wrote else 0.0
    _check_memory(bundle, ready)
    run = forward_of(bundle, ready, changes)
    before = time.perf_counter()
    record = observe(run.model, run.ready.inputs, edit=run.edit)
    forward = time.perf_counter() - before
    made = outcome_of(bundle, run.ready, record)
    taken = Trace(
        id=trace_id(model, given, changes),
        model=model,
        bundle=bundle,
        ready=run.ready,
        changes=tuple(changes),
        record=record,
        outcome=made.told,
        seconds={},
        kept={**ready.kept, **made.kept},
    )
    rest = time.perf_counter() - begun - wrote - forward
    return replace(taken, seconds={"forward": forward, "trace": rest, "writing": wrote})
