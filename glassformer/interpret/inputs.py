"""From a trace's input to the arguments of a model's forward, by the preprocessing of the model's task.

C channels, S source positions, T target positions.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.data.stable_stats import Doubles
from glassformer.data.windows import Scaler
from glassformer.errors import (
    EmptyInputError,
    InputTooLongError,
    InvalidValueError,
    MissingValueError,
    NonFiniteError,
    ShapeError,
)
from glassformer.generation import GenerationOptions, generate_batched
from glassformer.generation.decoder import decoder_start_ids
from glassformer.interpret.interventions import IntervenedModel, all_real_mask
from glassformer.interpret.outline import model_kind
from glassformer.interpret.schema import Intervention, Kind, TokenSequence, TraceInput, TraceToken
from glassformer.interpret.tokens import (
    encoded_sequence,
    generated_tokens,
    image_sequence,
    series_sequence,
    tokens_of,
)
from glassformer.tasks.base import (
    NO_CALLBACKS,
    RejectedInputError,
    TextEncoderTask,
    collate,
    select_tokens,
)
from glassformer.tasks.classification import TextClassifier
from glassformer.tasks.embedding import TextEmbedder
from glassformer.tasks.fill_mask import MaskFiller
from glassformer.tasks.forecasting import WindowScale, check_columns, forecast_steps, scale_of
from glassformer.tasks.images import ImageProcessor, reads_images
from glassformer.tasks.question_answering import EncodedQuestion, QuestionAnswerer
from glassformer.tasks.text_generation import (
    NO_LANGUAGE,
    Segment,
    TextGenerationTask,
    TextGenerator,
    decode_continuation,
    memory_errors,
    segments_of,
    target_language,
)
from glassformer.tasks.translation import SequenceToSequenceTask, Translator, source_task
from glassformer.tokenization import Encoded, Tokenizer, encode_tagged

MAX_TOKENS = 1024  # of a trace
MAX_CHARACTERS = 100_000
MAX_IMAGE_BYTES = 16_000_000
MAX_ROWS = 100_000  # of a column
MAX_GENERATED = 128  # tokens of the model's own answer


@dataclass(frozen=True, kw_only=True)
class PastValues:
    """The columns that were read, in their own units.

    values (context, C): what the model reads. truth (n, C): what was held back, at most `horizon` steps.
    """

    names: tuple[str, ...]
    values: Doubles
    truth: Doubles | None
    scale: Scaler | WindowScale
    horizon: int


@dataclass(frozen=True, kw_only=True)
class PreparedInput:
    """An input prepared for `model(**inputs)`.

    inputs: the forward's arguments: src (1, S) and tgt (1, T) of an encoder-decoder, ids (1, T) of a decoder,
    inputs of an encoder, with masks, types or positions. sequences: the tokens at each position. rows: names
    of the batch rows, if there are several. start: positions of the target before what is generated. ended:
    why the model's own answer ended. generated: whether the target is the model's own answer. question, past:
    what reading the outcome needs. tensors: tensors that belong to the input.
    """

    kind: Kind
    input: TraceInput
    sequences: tuple[TokenSequence, ...]
    inputs: Mapping[str, Any]
    rows: tuple[str, ...] | None = None
    start: int = 0
    ended: str | None = None
    generated: bool = False
    question: EncodedQuestion | None = None
    past: PastValues | None = None
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


def prepare_input(
    bundle: Bundle, input: TraceInput, interventions: Sequence[Intervention] = ()
) -> PreparedInput:
    """The input prepared for the model, by the model's kind."""
    for name in ("text", "target", "question", "context"):
        if isinstance(text := getattr(input, name), str) and len(text) > MAX_CHARACTERS:
            raise InputTooLongError(len(text), MAX_CHARACTERS, "characters")
    kind = model_kind(bundle)
    match kind:
        case "translate":
            return _prepare_source(bundle, input, interventions)
        case "generate":
            return _prepare_prompt(bundle, input)
        case "forecast":
            return _prepare_series(bundle, input)
        case "answer":
            return _prepare_question(bundle, input)
        case "image":
            return _prepare_image(bundle, input)
        case "embed" if reads_images(bundle):
            return _prepare_image(bundle, input)
    return _prepare_text(bundle, input, kind)


def _check_length(length: int, limit: int) -> None:
    if length > limit:
        raise InputTooLongError(length, limit, hint="shorten it")


def _prepare_text(bundle: Bundle, input: TraceInput, kind: Kind) -> PreparedInput:
    """A text to classify, embed or fill."""
    if input.text is None:
        raise MissingValueError("text", f"by {bundle.display_name}")
    tasks = {"classify": TextClassifier, "fill": MaskFiller}
    task: TextEncoderTask[Any, Any] = tasks.get(kind, TextEmbedder)(bundle)
    try:  # not by the task's own preprocess: a text without masks can be traced
        (one,) = TextEncoderTask.preprocess(task, [input.text], 1, NO_CALLBACKS)
    except RejectedInputError as error:
        raise error.reason from None
    assert one is not None and bundle.tokenizer is not None
    _check_length(len(one), MAX_TOKENS)
    text, both = task.prepare_text(input.text), isinstance(bundle.spec, specs.EncoderDecoder)
    sequence = encoded_sequence(bundle.tokenizer, one, text, "source" if both else "input")
    if not both:
        return PreparedInput(
            kind=kind, input=input, sequences=(sequence,), inputs=_single_stack_inputs(bundle, one)
        )
    # an encoder-decoder classifier reads the same text in both stacks
    start = getattr(bundle.spec, "start_id", None)
    if start is None:
        raise MissingValueError("start_id", f"by the decoder of {bundle.display_name}")
    ids = collate(bundle, [one]).ids
    shifted = torch.cat((torch.full_like(ids[:, :1], start), ids[:, :-1]), 1)
    target = _target_sequence(bundle.tokenizer, shifted[0].tolist(), 1, text)
    return PreparedInput(
        kind=kind, input=input, sequences=(sequence, target), inputs={"src": ids, "tgt": shifted}, start=1
    )


def _single_stack_inputs(bundle: Bundle, one: Encoded) -> dict[str, Any]:
    """The forward's arguments for a model with one stack."""
    batch = collate(bundle, [one])
    name = "ids" if isinstance(bundle.spec, specs.DecoderOnly) else "inputs"
    spec: Any = bundle.spec
    return {name: batch.ids, **all_real_mask("mask", batch.ids, spec.input), **batch.kwargs()}


def _prepare_question(bundle: Bundle, input: TraceInput) -> PreparedInput:
    """A question and the context that holds its answer, read in one window."""
    question, context = input.question or "", input.context or ""
    item = QuestionAnswerer(bundle, window=MAX_TOKENS).preprocess(question, context)
    _check_length(len(item.encoded), len(item.windows[0]))
    assert bundle.tokenizer is not None
    sequence = encoded_sequence(
        bundle.tokenizer, item.encoded, f"{question}\n{context}", "input", second=len(question) + 1
    )
    return PreparedInput(
        kind="answer",
        input=input,
        sequences=(sequence,),
        inputs=_single_stack_inputs(bundle, item.encoded),
        question=item,
    )


def _prepare_image(bundle: Bundle, input: TraceInput) -> PreparedInput:
    """An image, resized and normalized as in the image tasks."""
    if input.image is None:
        raise MissingValueError("image", f"by {bundle.display_name}")
    processor = ImageProcessor(bundle)
    pixels = processor.process(_image_bytes(input.image)).pixels  # (H, W, C)
    return PreparedInput(
        kind=model_kind(bundle),
        input=input,
        sequences=(image_sequence(processor.read),),
        inputs={"inputs": processor.normalize(pixels[None])},
        tensors={"input.pixels": torch.from_numpy(pixels.copy())},
    )


def _image_bytes(image: str) -> bytes:
    """The file in a data: URL or in bare base64."""
    head, comma, body = image.partition(",")
    expected = "a data:image/...;base64 URL, or base64"
    if comma and not (head.startswith("data:image/") and head.endswith(";base64")):
        raise InvalidValueError("image", image, expected)
    body = body if comma else image
    if len(body) > MAX_IMAGE_BYTES * 4 // 3:
        raise InputTooLongError(len(body) * 3 // 4, MAX_IMAGE_BYTES, "bytes")
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidValueError("image", image, expected) from None


def _prepare_series(bundle: Bundle, input: TraceInput) -> PreparedInput:
    """The last steps of the columns that the model was trained on."""
    read: Any = getattr(bundle.spec, "input", None)
    assert isinstance(read, specs.SeriesPatches)
    past = _past_values(bundle, input)
    scaled = torch.from_numpy(past.scale.transform(past.values[None])).to(bundle.device)
    return PreparedInput(
        kind="forecast",
        input=input,
        sequences=(series_sequence(read),),
        inputs={"inputs": scaled},  # (1, context, C)
        rows=past.names,
        past=past,
    )


def _past_values(bundle: Bundle, input: TraceInput) -> PastValues:
    if input.series is None:
        raise MissingValueError("series", f"by {bundle.display_name}")
    columns = input.series.columns
    names = bundle.job.columns or tuple(columns)
    for name in names:
        if name not in columns:
            raise MissingValueError(f"the column '{name}'", f"by {bundle.display_name}")
        if len(columns[name]) != len(columns[names[0]]):
            raise ShapeError(f"the column '{name}'", [len(columns[name])], f"{len(columns[names[0]])} values")
    check_columns(bundle, names)
    rows = len(columns[names[0]])
    if rows > MAX_ROWS:
        raise InputTooLongError(rows, MAX_ROWS, "steps")
    values = np.array([columns[name] for name in names], np.float64).T  # (rows, C)
    if not np.isfinite(values).all():
        raise NonFiniteError("the series")
    context, horizon = forecast_steps(bundle)
    held_back = input.series.truth or 0
    end = rows - held_back
    if end < (context or 1):
        raise ShapeError("the series", [end], f"at least {context or 1} steps before those held back")
    read = values[end - (context or 1) : end]
    return PastValues(
        names=names,
        values=read,
        truth=values[end : end + horizon] if held_back else None,
        scale=scale_of(bundle, read),
        horizon=horizon,
    )


def generation_task(
    bundle: Bundle, to: str | None = None, **options: Unpack[GenerationOptions]
) -> TextGenerationTask:
    """The task of a model that generates, reading its input as one segment."""
    if model_kind(bundle) == "generate":
        return TextGenerator(bundle, to=to, **options)
    task = source_task(bundle, to, **options)
    if isinstance(task, SequenceToSequenceTask):
        task.segmenter = replace(task.segmenter, split="never")
    return task


def encode_segment(task: TextGenerationTask, text: str) -> Segment:
    """A source or prompt as the task encodes it, within the limit of a trace."""
    if isinstance(task, SequenceToSequenceTask):
        text = " ".join(text.splitlines())
    try:
        (document,) = task.preprocess([text])
    except RejectedInputError as error:
        raise error.reason from None
    segments = segments_of(document)
    if not segments or not segments[0].ids:
        raise EmptyInputError("text")
    _check_length(len(segments[0].ids), MAX_TOKENS)
    return segments[0]


def _prepare_source(
    bundle: Bundle, input: TraceInput, interventions: Sequence[Intervention]
) -> PreparedInput:
    """A source and its target: the given one, else what the intervened model generates."""
    task = generation_task(bundle, input.to)
    segment = encode_segment(task, input.text or "")
    starts = list(decoder_start_ids(bundle.model, task.request.start_ids))
    ended: str | None = None
    generates = input.target is None
    if generates:
        target, ended = _generate_target(task, segment, len(starts), interventions)
        text = task.decode(segment, target)
    else:
        target = target_ids(bundle, input)
        text = " ".join(task.tokenizer.decode(target).splitlines()).strip()
    _check_length(len(starts) + len(target), MAX_TOKENS)
    spec: Any = bundle.spec
    src = torch.tensor([segment.ids], device=bundle.device)
    tgt = torch.tensor([[*starts, *target]], device=bundle.device)
    return PreparedInput(
        kind="translate",
        input=input,
        sequences=(
            _source_sequence(task, segment, input.to),
            _target_sequence(task.tokenizer, [*starts, *target], len(starts), text),
        ),
        inputs={
            **{"src": src, **all_real_mask("src_mask", src, spec.source)},
            **{"tgt": tgt, **all_real_mask("tgt_mask", tgt, spec.target, first=1)},
        },
        start=len(starts),
        ended=ended,
        generated=generates,
    )


def _source_sequence(task: TextGenerationTask, segment: Segment, to: str | None) -> TokenSequence:
    """The tokens of a source; encoded once more for the spans of its tokens."""
    tokenizer, job = task.tokenizer, task.bundle.job
    if job.name == "restore":
        tokens = _tokens_with_gaps(tokenizer, segment.ids, segment.text, str(job.gap))
        return TokenSequence(name="source", kind="text", text=segment.text, tokens=tokens)
    language = target_language(task.bundle, to) if isinstance(task, Translator) else NO_LANGUAGE
    text = language.prefix + segment.text
    one = tokenizer.encode(text)
    if language.tag is not None:
        (one,) = encode_tagged(tokenizer, [text], language.tag)
    if one.ids == segment.ids:
        return encoded_sequence(tokenizer, one, text, "source")
    text = tokenizer.decode(segment.ids)  # with the prefix of a summarizer
    tokens = generated_tokens(tokenizer, segment.ids, text, "source")
    return TokenSequence(name="source", kind="text", text=text, tokens=tokens)


def _tokens_with_gaps(tokenizer: Tokenizer, ids: list[int], text: str, gap: str) -> tuple[TraceToken, ...]:
    """The tokens of a text with gap tokens, each with the span of its mark."""
    gap_id, tokens, at = tokenizer.token_id(gap), list[TraceToken](), 0
    while gap_id in ids:
        cut, start = ids.index(gap_id), text.index(gap, at)
        tokens += generated_tokens(tokenizer, ids[:cut], text[:start], "source", first=at)
        at = start + len(gap)
        tokens.append(replace(tokens_of(tokenizer, ids[cut : cut + 1])[0], start=start, end=at))
        ids = ids[cut + 1 :]
    return (*tokens, *generated_tokens(tokenizer, ids, text, "source", first=at))


def _target_sequence(tokenizer: Tokenizer, ids: Sequence[int], start: int, text: str) -> TokenSequence:
    first = [replace(token, special=True) for token in tokens_of(tokenizer, ids[:start], "target")]
    rest = generated_tokens(tokenizer, ids[start:], text, "target")
    return TokenSequence(name="target", kind="text", text=text, tokens=(*first, *rest), prefix=start)


def vocab_size(bundle: Bundle) -> int:
    """How many tokens the model can generate."""
    head: Any = bundle.spec.head
    size: int = head.vocab_size
    return size


def target_ids(bundle: Bundle, input: TraceInput) -> list[int]:
    """The given target as ids that the model can generate."""
    ids = input.target or ()
    if isinstance(ids, str):
        assert bundle.tokenizer is not None
        ids = tuple(bundle.tokenizer.encode(ids, special=False, side="target").ids)
    check_token_ids("target", ids, vocab_size(bundle))
    return list(ids)


def check_token_ids(name: str, ids: Sequence[int], vocabulary: int) -> None:
    """Reject ids that the model does not have."""
    for index in ids:
        if not 0 <= index < vocabulary:
            raise InvalidValueError(name, index, f"token ids from 0 to {vocabulary - 1}")


def _generate_target(
    task: TextGenerationTask, segment: Segment, starts: int, interventions: Sequence[Intervention]
) -> tuple[list[int], str]:
    """What the task generates with the intervened model: the ids, and why generation ended."""
    bundle, request = task.bundle, task.request
    model: Any = bundle.model
    request = replace(
        request,
        config=replace(request.config, do_sample=False, num_return_sequences=1),
        max_new_tokens=min(request.limit(len(segment.ids), starts), MAX_GENERATED),
    )
    with memory_errors():
        runs = IntervenedModel(model, interventions) if interventions else bundle.inference_model()
        ((output,),) = generate_batched(runs, [segment.ids], request)
    # the last token needs no position to be generated, but needs one to be read
    return output.ids[: positions_left(bundle, starts, MAX_GENERATED)], output.finish_reason


def positions_left(bundle: Bundle, given: int, most: int) -> int:
    """How many tokens can follow `given` ones within the position table, at most `most`."""
    model: Any = bundle.model
    embed = model.tgt_embed if hasattr(model, "tgt_embed") else model.embed
    positions = getattr(getattr(embed, "position", None), "max_len", None)
    return most if positions is None else min(most, positions - given)


def _prepare_prompt(bundle: Bundle, input: TraceInput) -> PreparedInput:
    """A prompt followed by what was generated so far."""
    if input.text is None:
        raise MissingValueError("text", f"by {bundle.display_name}")
    task = generation_task(bundle)
    tokenizer, prompt = task.tokenizer, encode_segment(task, input.text).ids
    target = target_ids(bundle, input)
    _check_length(len(prompt) + len(target), min(task.max_input_tokens or MAX_TOKENS, MAX_TOKENS))
    one = tokenizer.encode(input.text)
    if one.ids[: len(prompt)] == prompt and input.text:
        read = encoded_sequence(tokenizer, select_tokens(one, range(len(prompt))), input.text, "input").tokens
    else:  # an empty prompt starts with a special token
        read = tuple(replace(token, special=True) for token in tokens_of(tokenizer, prompt))
    text = input.text + decode_continuation(tokenizer, prompt, target)
    after = generated_tokens(tokenizer, target, text, "target", first=len(input.text))
    sequence = TokenSequence(name="input", kind="text", text=text, tokens=(*read, *after))
    spec: Any = bundle.spec
    ids = torch.tensor([[*prompt, *target]], device=bundle.device)
    return PreparedInput(
        kind="generate",
        input=input,
        sequences=(sequence,),
        inputs={"ids": ids, **all_real_mask("mask", ids, spec.input)},
        start=len(prompt),
        ended="end" if target and target[-1] in task.request.eos_ids else None,
    )


def split_sentences(bundle: Bundle, text: str, to: str | None = None) -> list[str]:
    """The segments that `translate` reads one by one; the text itself for a model that reads it whole.

    to: the target language, if the model knows several.
    """
    task = source_task(bundle, to) if model_kind(bundle) == "translate" else None
    if not isinstance(task, Translator):
        return [text]
    (document,) = task.preprocess([text])
    return [segment.text for segment in segments_of(document)] or [text]
