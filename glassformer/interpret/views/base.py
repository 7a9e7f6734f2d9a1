"""A view of the explorer: what it prepares, shows and suggests for the models of one kind."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Unpack

import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core.inputs import tensor_of
from glassformer.core.observe import Record, observe
from glassformer.errors import MissingValueError, UnsupportedError
from glassformer.generation import GenerationOptions
from glassformer.interpret import schema
from glassformer.interpret.film import Film
from glassformer.interpret.generated_text import GenerationInput
from glassformer.interpret.interventions import IntervenedForward
from glassformer.interpret.outline import describe_attentions, describe_stacks
from glassformer.interpret.patching import resolve_patches
from glassformer.interpret.prepared_input import PreparedInput
from glassformer.interpret.readout import HeadReadout, head_readout
from glassformer.processors.text import select_tokens

Result = tuple[schema.Outcome, Mapping[str, Tensor]]
MAX_BYTES = 3 << 30  # of one trace


class ViewRun(NamedTuple):
    """What a view recorded and computed for one input.

    tensors: those that the outcome names. film: further steps, of a drawing
    """

    prepared: PreparedInput
    record: Record
    outcome: schema.Outcome
    tensors: Mapping[str, Tensor]
    seconds: float
    film: Film | None = None


class OutputUnit(NamedTuple):
    """One of the outputs of a model: a token or a label at a position; without one, of the whole input."""

    position: int | None
    id: int


class View:
    """Base class of views.

    kind: the name that the page knows. needs: fields of an input. generates: whether there is a search.
    """

    kind: ClassVar[schema.Kind]
    needs: tuple[str, ...] = ()
    generates: ClassVar[bool] = False

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle

    def run(self, input: schema.TraceInput, interventions: Sequence[schema.Intervention]) -> ViewRun:
        """Run the model once on an input and record everything."""
        interventions = resolve_patches(self, input, interventions)
        prepared = self.prepare(input, interventions)
        self.check_size(prepared)
        forward = IntervenedForward(self.bundle.model, prepared.inputs, interventions)
        prepared = _reorder(replace(prepared, inputs=forward.inputs), forward.orders)
        start = time.perf_counter()
        record = observe(forward.model, forward.inputs, edit=forward.edit)
        seconds = time.perf_counter() - start
        with torch.inference_mode():
            outcome, tensors = self.outcome(prepared, record)
        return ViewRun(prepared, record, outcome, {**prepared.tensors, **tensors}, seconds)

    def check(self, input: schema.TraceInput) -> None:
        """Raise if an input lacks what the model needs."""
        for name in self.needs:
            if getattr(input, name) is None:
                raise MissingValueError(name, f"by {self.bundle.display_name}")

    def check_size(self, prepared: PreparedInput) -> None:
        """Raise if a trace of the input would be too large."""
        if (needed := estimate_bytes(self.bundle, prepared)) > MAX_BYTES:
            what, hint = "a trace of this input", "shorten the input"
            raise schema.TooLargeError(what, needed, MAX_BYTES, "bytes", hint)

    def prepare(
        self, input: schema.TraceInput, interventions: Sequence[schema.Intervention] = ()
    ) -> PreparedInput:
        """Prepare an input for the model's forward."""
        raise NotImplementedError

    def outcome(self, prepared: PreparedInput, record: Record) -> Result:
        """Return what the task reports, and the tensors that it refers to by name."""
        raise NotImplementedError

    def attentions(self, record: Record) -> tuple[schema.AttentionInfo, ...]:
        """Describe the recorded attention layers, in the order of the data flow."""
        return describe_attentions(self.bundle.model, record)

    def generation(self, input: schema.TraceInput, **options: Unpack[GenerationOptions]) -> GenerationInput:
        """Return how the model generates a text from an input."""
        raise UnsupportedError(self.bundle.display_name, "text generation")

    def image(self, prepared: PreparedInput) -> Tensor:
        """Return the image (1, C, H, W) of an input."""
        return tensor_of(next(iter(prepared.inputs.values())))

    def with_images(self, prepared: PreparedInput, images: Tensor) -> dict[str, Any]:
        """Return the inputs with other images (N, C, H, W)."""
        inputs = prepared.repeated(len(images))
        name, value = next(iter(inputs.items()))
        return inputs | {name: images if isinstance(value, Tensor) else replace(value, pixels=images)}

    def readout(self) -> HeadReadout:
        """Return how the output of the head is converted to predictions; raise if it has none."""
        return head_readout(self.bundle)

    def outputs(self, prepared: PreparedInput, record: Record) -> list[OutputUnit]:
        """Return what can be explained: the labels, or one prediction for each of some positions."""
        readout = self.readout()
        if readout.whole_input:
            return [OutputUnit(None, n) for n in range(record["head.logits"].shape[-1])]
        best = record["head.logits"][0].argmax(-1).tolist()
        return [OutputUnit(position, id) for position, id in enumerate(best)]

    def explained_outputs(self, prepared: PreparedInput, record: Record) -> list[OutputUnit]:
        """Return the outputs; raise if there are none."""
        if not (outputs := self.outputs(prepared, record)):
            raise MissingValueError("an output", "to explain", hint="the input has none")
        return outputs

    def scores(self, prepared: PreparedInput, record: Record, inputs: Mapping[str, Any]) -> Tensor:
        """Return what occlusion compares for N changed inputs: a score of each of the outputs, (N, L).

        By default, the log-odds of labels and the log-probabilities of tokens, in nats.
        """
        model: Any = self.bundle.model
        output, readout = model(**inputs), self.readout()
        logits: Tensor = (output if isinstance(output, Tensor) else output.logits).float()
        if readout.whole_input:
            return readout.log_odds(logits)
        positions, ids = (
            torch.tensor(one, device=logits.device)
            for one in zip(*self.explained_outputs(prepared, record), strict=True)
        )
        logits = logits[:, positions]  # (N, L, V)
        scores = logits.log_softmax(-1) if readout.labels is None else readout.log_odds(logits)
        return scores.gather(-1, ids[None, :, None].expand(len(logits), -1, 1))[..., 0]

    def example(self) -> schema.TraceInput:
        """Return the default input."""
        raise NotImplementedError

    def examples(self, first: schema.TraceInput) -> Sequence[schema.TraceInput]:
        """Return further inputs; `first` is the default one."""
        return ()

    def languages(self) -> tuple[str, ...] | None:
        """Return the languages that a model translates to, if it does."""
        return None

    def with_target(self, input: schema.TraceInput) -> schema.TraceInput:
        """Return the input with which snapshots of a training run are compared."""
        return replace(input, target=None)

    def prediction(self, input: schema.TraceInput, outcome: schema.Outcome) -> str | None:
        """Return what a snapshot predicts, as a short text."""
        return None

    def split(self, text: str, to: str | None = None) -> list[str]:
        """Split a text into the parts that are traced one by one."""
        return [text]

    def main_position(self, outcome: schema.Outcome) -> int | None:
        """Return the position of the prediction that matters most; None for all positions."""
        return None


def estimate_bytes(bundle: Bundle, prepared: PreparedInput) -> int:
    """Estimate the size in bytes of a trace of this input."""
    rows = len(prepared.rows or (0,))
    numbers, positions = 0, 0
    for stack in describe_stacks(bundle):
        width = stack.d_model
        inner, shared = stack.heads * stack.head_dim, stack.kv_heads * stack.head_dim
        attention = 2 * inner + 2 * shared + 3 * width
        layer = attention * (2 if stack.cross else 1) + 3 * width + stack.d_ff * (3 if stack.gated else 2)
        lengths = {sequence.name: len(sequence) for sequence in prepared.sequences}
        positions = rows * lengths[stack.sequence]
        numbers += positions * (stack.layers * layer + 3 * width)
    numbers += positions * int(getattr(bundle.spec.head, "vocab_size", 0))
    return numbers * next(bundle.model.parameters()).element_size()


def _reorder(prepared: PreparedInput, orders: dict[str, list[int]]) -> PreparedInput:
    sequences = tuple(
        replace(sequence, tokens=tuple(sequence.tokens[n] for n in order))
        for sequence in prepared.sequences
        for order in [orders.get(sequence.name, range(len(sequence)))]
    )
    question = prepared.question
    if question is not None and "input" in orders:  # an answer is found by its tokens
        question = replace(question, encoded=select_tokens(question.encoded, orders["input"]))
    return replace(prepared, sequences=sequences, question=question)
