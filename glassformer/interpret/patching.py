"""Activation patching: copy activations of one input into the forward of another and see what comes back.

Two inputs, "clean" and "corrupted", lead to different answers. An activation of the clean forward replaces
that of the corrupted one; the share of the difference between the answers' logits that returns says how much
of the information is in this activation: of one token between two layers, of one head, or of its attention.

N patched copies, T positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from glassformer.core.observe import Observer, Record, observe
from glassformer.errors import ConflictError, InvalidValueError, UnsupportedError
from glassformer.interpret import schema
from glassformer.interpret.interventions import Replacement
from glassformer.interpret.outline import describe_stacks, stack_names
from glassformer.interpret.prepared_input import PreparedInput, copies_per_batch
from glassformer.interpret.schema import ItemNotFoundError, TokenSequence

if TYPE_CHECKING:
    from glassformer.interpret.trace import Trace
    from glassformer.interpret.views.base import View

Pairs = tuple[tuple[int, int], ...]


def align_positions(here: TokenSequence, there: TokenSequence) -> Pairs:
    """Return pairs of positions of the same token, or of tokens in the same place, in two sequences.

    Runs of different tokens are paired if they are equally long. Images and series are paired by position.
    """
    if here.kind != "text" or there.kind != "text":
        return tuple((n, n) for n in range(min(len(here), len(there))))
    ours, theirs = ([(token.id, token.piece) for token in one.tokens] for one in (here, there))
    pairs: list[tuple[int, int]] = []
    for tag, a, b, c, d in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        if tag == "equal" or b - a == d - c:
            pairs += zip(range(a, b), range(c, d), strict=True)
    return tuple(pairs)


@dataclass(frozen=True)
class Patching:
    """A clean and a corrupted trace, whose targets are equal up to the position where their outputs differ.

    Create one with `compare_answers`.

    >>> import glassformer
    >>> from glassformer.interpret.schema import TraceInput
    >>> from glassformer.interpret.trace import trace_model
    >>> pipeline = glassformer.load("pocket")
    >>> texts = "My father is very tired.", "My mother is very tired."
    >>> patching = compare_answers(*(trace_model(pipeline, TraceInput(text=text, to="fr")) for text in texts))
    >>> [answer.text for answer in patching.setup().answers]
    [' Mon', ' Ma']
    >>> max(patching.patch("encoder.blocks.0.resid_out").recovered) > 0.8  # at the word that differs
    True
    """

    clean: Trace
    corrupted: Trace
    position: int | None
    ids: tuple[int, int]

    def __post_init__(self) -> None:
        clean, corrupted = self.differences()
        if clean == corrupted:
            raise ConflictError(["clean", "corrupted"], "they differ only in the target")

    def differences(self) -> tuple[float, float]:
        """Return the logit of the clean answer minus that of the corrupted one, for both traces."""
        clean, corrupted = (
            float(self._difference(one.record.output)[0]) for one in (self.clean, self.corrupted)
        )
        return clean, corrupted

    def setup(self) -> schema.PatchingSetup:
        readout = _view(self.clean).readout()
        answers = zip(self.ids, readout.texts(self.ids), strict=True)
        mine, theirs = (schema.Prediction(id=id, text=text) for id, text in answers)
        return schema.PatchingSetup(
            clean=self.clean.id,
            corrupted=self.corrupted.id,
            position=self.position,
            answers=(mine, theirs),
            differences=self.differences(),
            sites=tuple(self.sites()),
        )

    def sites(self) -> list[str]:
        """Return the names of the tensors that can be patched: residual streams, head outputs and weights."""
        record = self.corrupted.record
        sites = []
        for stack in describe_stacks(self.clean.bundle):
            blocks = [f"{stack.path}.blocks.{layer}" for layer in range(stack.layers)]
            sites += [f"{blocks[0]}.resid_in", *(f"{block}.resid_out" for block in blocks)]
        sites = [site for site in sites if site in record]
        for one in self.corrupted.attentions():
            if one.windows is None:
                sites += [f"{one.name}.heads", f"{one.name}.weights"]
        return sites

    @torch.inference_mode()
    def patch(self, name: str) -> schema.PatchedSite:
        """Patch each token of a residual stream, or each head of an attention layer, in batches."""
        if name not in self.sites():
            raise ItemNotFoundError("site", name, self.sites())
        replacements = self.replacements(name)
        clean, corrupted = self.differences()
        found = [one for one in replacements if one is not None]
        size = copies_per_batch(_logits(self.corrupted.record.output), _values(self.corrupted, name))
        batches = (found[n : n + size] for n in range(0, len(found), size))
        values = (value for batch in batches for value in self._patched_differences(name, batch))
        shares = ((value - corrupted) / (clean - corrupted) for value in values)
        recovered = tuple(None if one is None else next(shares) for one in replacements)
        return schema.PatchedSite(name=name, recovered=recovered)

    def _patched_differences(self, name: str, replacements: Sequence[Replacement]) -> list[float]:
        """Run one copy of the corrupted input per replacement; return the differences of the answers."""
        rows = len(self.corrupted.prepared.rows or (0,))

        def edit(x: Tensor) -> Tensor:
            return torch.cat([one(part) for one, part in zip(replacements, x.split(rows), strict=True)])

        model: Any = self.corrupted.bundle.model
        inputs = self.corrupted.prepared.repeated(len(replacements))
        differences: list[float] = self._difference(model(**inputs, obs=Observer((), {name: edit}))).tolist()
        return differences

    def replacements(self, name: str) -> list[Replacement | None]:
        """Return the edits that patch a tensor: one for each token or head; None without a counterpart."""
        values = _values(self.clean, name)
        sequence = _sequence_name(self.corrupted, name)
        pairs = align_positions(self.corrupted.sequence(sequence), self.clean.sequence(sequence))
        if values.dim() == 4:
            return [Replacement(name, head, pairs, values) for head in range(values.shape[1])]
        there = dict(pairs)
        length = len(self.corrupted.sequence(sequence))
        return [
            Replacement(name, None, ((n, there[n]),), values) if n in there else None for n in range(length)
        ]

    def _difference(self, output: Any) -> Tensor:
        """Return logit of the clean answer minus logit of the corrupted one (N,)."""
        logits = _logits(output)
        row = logits if self.position is None else logits[:, self.position]
        return row[:, self.ids[0]].float() - row[:, self.ids[1]].float()


def compare_answers(clean: Trace, corrupted: Trace) -> Patching:
    """Prepare patching from two traces of a model: find the first output that differs.

    Generated texts are compared up to their first different token; both inputs then get the target before it.
    """
    from glassformer.interpret.trace import trace_model

    if clean.bundle is not corrupted.bundle:
        raise ConflictError(["clean", "corrupted"], "they are traces of different models")
    if clean.interventions or corrupted.interventions:
        raise UnsupportedError("a trace with interventions", "patching")
    outputs = [_view(one).outputs(one.prepared, one.record) for one in (clean, corrupted)]
    if len(outputs[0]) and outputs[0][0].position is None:
        best = [int(one.record["head.logits"][0].argmax()) for one in (clean, corrupted)]
        return Patching(clean, corrupted, None, _different(best[0], best[1]))
    if not (clean.prepared.start and "tgt" in clean.prepared.inputs):
        last = [one[-1] for one in outputs]
        length = [len(one.record["head.logits"][0]) for one in (clean, corrupted)]
        if clean.prepared.kind == "generate":
            last = [one._replace(position=-1) for one in last]
        elif last[0].position != last[1].position or length[0] != length[1]:
            raise ConflictError(["clean", "corrupted"], "their outputs are at different positions")
        return Patching(clean, corrupted, last[0].position, _different(last[0].id, last[1].id))
    targets = [[one.id for one in each] for each in outputs]
    common = next(
        (n for n, (mine, theirs) in enumerate(zip(*targets, strict=False)) if mine != theirs),
        min(map(len, targets)),
    )
    if common == min(map(len, targets)):
        raise ConflictError(["clean", "corrupted"], "their outputs are the same")
    prefix = tuple(targets[0][:common])
    traces = [
        trace_model(one.bundle, replace(one.prepared.input, target=prefix), model=one.model)
        for one in (clean, corrupted)
    ]
    return Patching(
        traces[0], traces[1], outputs[0][common].position, (targets[0][common], targets[1][common])
    )


def _different(mine: int, theirs: int) -> tuple[int, int]:
    if mine == theirs:
        raise ConflictError(["clean", "corrupted"], "their outputs are the same")
    return mine, theirs


def _view(trace: Trace) -> View:
    from glassformer.interpret.views import view_of

    return view_of(trace.bundle)


def _logits(output: Any) -> Tensor:
    logits: Tensor = output if isinstance(output, Tensor) else output.logits
    return logits


def _values(trace: Trace, name: str) -> Tensor:
    owner, _, tail = name.rpartition(".")
    return trace.record.weights(owner) if tail == "weights" else trace.record[name]


def _sequence_name(trace: Trace, name: str) -> str:
    """Return the name of the sequence whose positions a tensor has."""
    path = name.partition(".blocks.")[0]
    return next(stack.sequence for stack in stack_names(trace.bundle.model) if stack.path == path)


def resolve_patches(
    view: View, input: schema.TraceInput, interventions: Sequence[schema.Intervention]
) -> list[Any]:
    """Return the interventions, with activations of other inputs in place of their description.

    Each source is run once. Its other activations are freed before the next source is run.
    """
    resolved: list[Any] = list(interventions)
    patches = {n: one for n, one in enumerate(interventions) if isinstance(one, schema.PatchActivation)}
    if not patches:
        return resolved
    here = view.prepare(replace(input, target=()) if view.generates else input)
    while patches:
        source = next(iter(patches.values())).source
        view.check(source)
        there = view.prepare(source)
        view.check_size(there)
        record = observe(view.bundle.model, dict(there.inputs))
        for n in [n for n, one in patches.items() if one.source == source]:
            resolved[n] = _replacement(view, patches.pop(n), here, there, record)
    return resolved


def _replacement(
    view: View, patch: schema.PatchActivation, here: PreparedInput, there: PreparedInput, record: Record
) -> Replacement:
    """Return the edit that applies a patch; `record`: of the input `there`, the source of the patch."""
    stack = next((s for s in stack_names(view.bundle.model) if patch.name.startswith(f"{s.path}.")), None)
    owner, _, tail = patch.name.rpartition(".")
    if stack is None or (
        owner not in record.attention_contexts if tail == "weights" else patch.name not in record
    ):
        raise ItemNotFoundError("site", patch.name, record)
    context = record.attention_contexts.get(owner)
    if context is not None and context.windows is not None:  # its positions are those within a window
        raise UnsupportedError("window attention", "activation patching")
    mine, theirs = (next(s for s in each.sequences if s.name == stack.sequence) for each in (here, there))
    pairs = align_positions(mine, theirs)
    if stack.sequence == "target":  # generated anew: by position
        pairs = tuple((n, n) for n in range(len(theirs)))
    if patch.position is not None:
        pairs = tuple(pair for pair in pairs if pair[0] == patch.position)
        if not pairs:
            expected = "a token with a counterpart in the other input"
            raise InvalidValueError("position", patch.position, expected)
    values = record.weights(owner) if tail == "weights" else record[patch.name]
    return Replacement(patch.name, patch.head, pairs, values)
