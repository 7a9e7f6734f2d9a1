"""The input of a generating model, and the target that is given or generated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from glassformer.bundle import Bundle
from glassformer.core.inputs import tensor_of
from glassformer.errors import EmptyInputError, InputTooLongError, InvalidValueError
from glassformer.generation import GenerationOptions, GenerationOutput, GenerationParams, generate
from glassformer.generation.inference_model import max_positions
from glassformer.interpret.interventions import IntervenedModel
from glassformer.interpret.prepared_input import PreparedInput
from glassformer.interpret.schema import Intervention, TokenSequence, TraceInput
from glassformer.interpret.tokens import encoded_sequence, generated_tokens, tokens_of
from glassformer.processors.text import require_tokenizer
from glassformer.tasks.base import RejectedInputError
from glassformer.tasks.text_generation import (
    NO_LANGUAGE,
    Segment,
    TextGenerationTask,
    TextGenerator,
    generation_architecture,
    memory_errors,
    segments_of,
    target_language,
)
from glassformer.tasks.translation import SequenceToSequenceTask, Translator, source_task
from glassformer.tokenization import Tokenizer, encode_tagged

MAX_TOKENS = 1024  # of a trace
MAX_GENERATED = 128  # tokens of the model's own answer


def check_length(length: int, limit: int = MAX_TOKENS) -> None:
    """Raise if an input is too long for a trace."""
    if length > limit:
        raise InputTooLongError(length, limit, hint="shorten it")


def generation_task(
    bundle: Bundle, to: str | None = None, **options: Unpack[GenerationOptions]
) -> TextGenerationTask[str]:
    """Create the task of a generating model, with the input as a single segment."""
    if generation_architecture(bundle) == "decoder-only":
        return TextGenerator(bundle, to=to, **options)
    task = source_task(bundle, to, **options)
    if isinstance(task, SequenceToSequenceTask):
        task.segmenter = replace(task.segmenter, split="never")
    return task


def encode_segment(task: TextGenerationTask[str], text: str) -> Segment:
    """Encode a source or prompt as the task does; raise if it is too long for a trace."""
    if isinstance(task, SequenceToSequenceTask):
        text = " ".join(text.splitlines())
    try:
        (document,) = task.preprocess([text])
    except RejectedInputError as error:
        raise error.reason from None
    segments = segments_of(document)
    if not segments or not segments[0].ids:
        raise EmptyInputError("text")
    check_length(len(segments[0].ids))
    return segments[0]


def source_sequence(task: TextGenerationTask[str], segment: Segment, to: str | None) -> TokenSequence:
    """Return the tokens of a source with their text spans, for which it is encoded again."""
    tokenizer = task.tokenizer
    language = target_language(task.bundle, to) if isinstance(task, Translator) else NO_LANGUAGE
    text = language.prefix + segment.text
    encoded = tokenizer.encode(text)
    if language.tag is not None:
        (encoded,) = encode_tagged(tokenizer, [text], language.tag)
    if encoded.ids == segment.ids:
        return encoded_sequence(tokenizer, encoded, text, "source")
    if task.bundle.job.gap is None:
        text = tokenizer.decode(segment.ids)  # with the prefix of a summarizer
    tokens = generated_tokens(tokenizer, segment.ids, text, "source")
    return TokenSequence(name="source", kind="text", text=text, tokens=tokens)


def target_sequence(tokenizer: Tokenizer, ids: Sequence[int], start: int, text: str) -> TokenSequence:
    """Return the tokens of a target. start: number of start tokens, which are special."""
    first = [replace(token, special=True) for token in tokens_of(tokenizer, ids[:start], "target")]
    rest = generated_tokens(tokenizer, ids[start:], text, "target")
    return TokenSequence(name="target", kind="text", text=text, tokens=(*first, *rest), prefix=start)


def vocab_size(bundle: Bundle) -> int:
    """Return the size of the vocabulary that a model generates."""
    head: Any = bundle.spec.head
    return int(head.vocab_size)


def target_ids(bundle: Bundle, input: TraceInput) -> list[int]:
    """Return the given target as ids that the model can generate."""
    target = input.target or ()
    if isinstance(target, str):
        target = tuple(require_tokenizer(bundle).encode(target, special=False, side="target").ids)
    check_token_ids("target", target, vocab_size(bundle))
    return list(target)


def check_token_ids(name: str, ids: Sequence[int], vocabulary: int) -> None:
    """Raise unless all ids are in the vocabulary."""
    for index in ids:
        if not 0 <= index < vocabulary:
            raise InvalidValueError(name, index, f"token ids from 0 to {vocabulary - 1}")


@dataclass(frozen=True, kw_only=True)
class GenerationInput:
    """A source, an image or a prompt, and how a text is generated from it.

    prefix: ids before the first generated one: the start of the target, or the prompt. decode: converts
    generated ids to text. source: the encoder's input and its tokens; None for a language model.
    """

    bundle: Bundle
    params: GenerationParams
    prefix: list[int]
    decode: Callable[[list[int]], str]
    source: PreparedInput | None = None

    @property
    def inputs(self) -> Tensor:
        """The source or prompt: ids (1, S), or an image (1, C, height, width)."""
        if self.source is None:
            return torch.tensor([self.prefix], device=self.bundle.device).long()
        return tensor_of(self.source.inputs["src"])

    @property
    def limit(self) -> int:
        """The maximum number of new tokens."""
        length = 0 if self.inputs.is_floating_point() else self.inputs.shape[1]
        return self.params.limit(length, len(self.prefix))

    def run(self, model: nn.Module, params: GenerationParams) -> list[GenerationOutput]:
        """Generate with a model and these parameters; return the outputs, best first."""
        inputs = self.inputs
        mask = None if inputs.is_floating_point() else torch.ones_like(inputs, dtype=torch.bool)
        with memory_errors():
            (outputs,) = generate(model, inputs, params, attention_mask=mask)
        return outputs

    def target(self, interventions: Sequence[Intervention]) -> tuple[list[int], str]:
        """Generate a target with the intervened model; return the ids and the finish reason."""
        bundle, params = self.bundle, self.params
        params = replace(
            params,
            config=replace(params.config, do_sample=False, num_return_sequences=1),
            max_new_tokens=min(self.limit, MAX_GENERATED),
        )
        model: Any = bundle.model
        (output,) = self.run(
            IntervenedModel(model, interventions) if interventions else bundle.inference_model(), params
        )
        # the last token needs no position to be generated, but needs one to be read
        return output.ids[: positions_left(bundle, len(self.prefix), MAX_GENERATED)], output.finish_reason


def positions_left(bundle: Bundle, used: int, limit: int) -> int:
    """Return how many tokens fit after `used` positions in the position table, at most `limit`."""
    model: Any = bundle.model
    positions = max_positions(model.decoder_embed)
    return limit if positions is None else min(limit, positions - used)
