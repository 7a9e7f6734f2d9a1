"""Views of encoders of text: a filled mask, an answer in a context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core.inputs import TextInputs
from glassformer.core.observe import Record
from glassformer.interpret import schema
from glassformer.interpret.generated_text import MAX_TOKENS, check_length, target_sequence
from glassformer.interpret.interventions import unpadded
from glassformer.interpret.prepared_input import PreparedInput
from glassformer.interpret.readout import head_readout
from glassformer.interpret.schema import Intervention, Kind, TokenSequence, TraceInput
from glassformer.interpret.tokens import best_encoded, encoded_sequence
from glassformer.interpret.views.base import OutputUnit, Result, View
from glassformer.processors.base import Processor
from glassformer.processors.text import require_tokenizer, token_input
from glassformer.tasks.encoder import EncoderTask
from glassformer.tasks.fill_mask import MaskFiller
from glassformer.tasks.question_answering import QuestionAnswerer
from glassformer.tokenization import Encoded

MAX_PREDICTIONS = 10  # for each mask
_MASKED = ("The capital of France is [MASK].", "the cat [MASK] on the mat.", "프랑스의 수도는 [MASK]이다.")
_QUESTION = "What is the tower made of?"
_CONTEXT = "The tower stands by the river. It is made of glass and can be seen from far away."


def text_inputs(bundle: Bundle, processor: Processor[Any, Encoded], encoded: Encoded) -> dict[str, Any]:
    """Return the model inputs of one text. A trace has no padding mask unless the text has pad ids."""
    inputs: dict[str, Any] = {**processor.collate([encoded])}
    for name, text in inputs.items():
        if isinstance(text, TextInputs):
            inputs[name] = replace(unpadded(text.ids, token_input(bundle)), types=text.types)
        else:
            inputs[name] = TextInputs(text)
    return inputs


def prepare_text(task: EncoderTask[Any], kind: Kind, input: TraceInput) -> PreparedInput:
    """Prepare a text as a task does, except that it need not have masks."""
    bundle = task.bundle
    processor: Any = task.processor
    text, encoded = processor.prepare(input.text or ""), processor.load(input.text or "")
    check_length(len(encoded))
    inputs, tokenizer = text_inputs(bundle, processor, encoded), require_tokenizer(bundle)
    if "src" not in inputs:
        sequences: tuple[TokenSequence, ...] = (encoded_sequence(tokenizer, encoded, text, "input"),)
    else:  # an encoder-decoder classifier reads the same text in both stacks
        sequences = (
            encoded_sequence(tokenizer, encoded, text, "source"),
            target_sequence(tokenizer, inputs["tgt"].ids[0].tolist(), 1, text),
        )
    start = len(sequences) - 1
    return PreparedInput(kind=kind, input=input, sequences=sequences, inputs=inputs, start=start)


class FillView(View):
    """An encoder that predicts masked tokens."""

    kind, needs = "fill", ("text",)

    def prepare(self, input: TraceInput, interventions: Sequence[Intervention] = ()) -> PreparedInput:
        return prepare_text(MaskFiller(self.bundle), self.kind, input)

    def outcome(self, prepared: PreparedInput, record: Record) -> Result:
        output: Any = record.output
        is_mask = prepared.inputs["inputs"].ids[0] == require_tokenizer(self.bundle).mask_id
        masks = is_mask.nonzero()[:, 0].tolist() if isinstance(is_mask, Tensor) else []
        top = head_readout(self.bundle).top
        predictions = {n: top(output[0, n].float(), MAX_PREDICTIONS) for n in masks}
        return schema.FillOutcome(
            masks=tuple(schema.MaskPredictions(position=n, predictions=predictions[n]) for n in masks)
        ), {}

    def outputs(self, prepared: PreparedInput, record: Record) -> list[OutputUnit]:
        """Return the best prediction of each mask; of each token, if there is no mask."""
        outcome: Any = self.outcome(prepared, record)[0]
        masks = [OutputUnit(mask.position, mask.predictions[0].id) for mask in outcome.masks]
        return masks or super().outputs(prepared, record)

    def example(self) -> TraceInput:
        return TraceInput(text=best_encoded(self.bundle, _MASKED))

    def prediction(self, input: TraceInput, outcome: Any) -> str | None:
        return " ".join(mask.predictions[0].text.strip() for mask in outcome.masks) or None

    def main_position(self, outcome: Any) -> int | None:
        return outcome.masks[0].position if outcome.masks else -1


class AnswerView(View):
    """An encoder that marks the answer to a question in a context."""

    kind, needs = "answer", ("context",)

    def prepare(self, input: TraceInput, interventions: Sequence[Intervention] = ()) -> PreparedInput:
        question, context = input.question or "", input.context or ""
        task = QuestionAnswerer(self.bundle, window=MAX_TOKENS)
        item = task.encode(question, context)
        check_length(len(item.encoded), len(item.windows[0]))
        text, tokenizer = f"{question}\n{context}", require_tokenizer(self.bundle)
        sequence = encoded_sequence(tokenizer, item.encoded, text, "input", second=len(question) + 1)
        inputs = text_inputs(self.bundle, task.processor, item.encoded)
        return PreparedInput(kind=self.kind, input=input, sequences=(sequence,), inputs=inputs, question=item)

    def outcome(self, prepared: PreparedInput, record: Record) -> Result:
        assert prepared.question is not None
        output: Any = record.output
        scores = [(output.start[0].float().cpu(), output.end[0].float().cpu())]
        best = QuestionAnswerer(self.bundle).answer(prepared.question, scores)
        return schema.AnswerOutcome(text=best.text, start=best.start, end=best.end, score=best.score), {}

    def scores(self, prepared: PreparedInput, record: Record, inputs: Mapping[str, Any]) -> Tensor:
        """Return the log-probabilities (N, 1) of the most likely start and end together."""
        model: Any = self.bundle.model
        pairs = zip(record.output, model(**inputs), strict=True)
        return sum(after.float().log_softmax(-1)[:, before[0].argmax()] for before, after in pairs)[:, None]

    def example(self) -> TraceInput:
        return TraceInput(question=_QUESTION, context=_CONTEXT)

    def prediction(self, input: TraceInput, outcome: Any) -> str | None:
        return str(outcome.text)


VIEWS = (FillView, AnswerView)
