"""Convert the input of a trace to the arguments of the model's forward, using the task's preprocessing.

C channels, S source positions, T target positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.data.image_files import decode_base64, load_image
from glassformer.data.image_processing import Size
from glassformer.data.windows import Doubles, Scaler
from glassformer.errors import (
    EmptyInputError,
    InputTooLongError,
    InvalidValueError,
    MissingValueError,
    NonFiniteError,
    ShapeError,
)
from glassformer.generation import GenerationOptions, generate_batched
from glassformer.generation.inference_model import max_positions
from glassformer.generation.step_decoder import decoder_start_ids
from glassformer.interpret.interventions import IntervenedModel, no_padding_mask
from glassformer.interpret.outline import input_names, model_kind, stack_names
from glassformer.interpret.schema import Intervention, Kind, TokenSequence, TraceInput
from glassformer.interpret.tokens import (
    detection_sequences,
    encoded_sequence,
    generated_tokens,
    image_sequence,
    merged_sequences,
    series_sequence,
    tokens_of,
)
from glassformer.tasks.base import (
    NO_CALLBACKS,
    RejectedInputError,
    collate,
    require_tokenizer,
    select_tokens,
)
from glassformer.tasks.classification import Classifier
from glassformer.tasks.detection import Detector
from glassformer.tasks.embedding import Embedder
from glassformer.tasks.encoder import EncoderTask
from glassformer.tasks.fill_mask import MaskFiller
from glassformer.tasks.forecasting import WindowScale, check_columns, forecast_steps, scale_of
from glassformer.tasks.images import ImageCollator, reads_images
from glassformer.tasks.question_answering import EncodedQuestion, QuestionAnswerer
from glassformer.tasks.series_classification import SeriesClassifier, reads_series, series_preparation
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
MAX_GENERATED = 128  # tokens of the model's own answer


@dataclass(frozen=True, kw_only=True)
class PastValues:
    """The input columns of a forecast, in the units of the data.

    values (context, C): the steps that the model reads. truth (n, C): held-out steps, at most `horizon`.
    """

    names: tuple[str, ...]
    values: Doubles
    truth: Doubles | None
    scale: Scaler | WindowScale
    horizon: int


@dataclass(frozen=True, kw_only=True)
class PreparedInput:
    """An input prepared for `model(**inputs)`.

    inputs: the arguments of the forward: src (1, S) and tgt (1, T) of an encoder-decoder, ids (1, T) of a
    decoder, inputs of an encoder, with masks, types or positions. sequences: the tokens at each position.
    rows: names of the batch rows, if there are several. start: number of target positions before the
    generated tokens. finish_reason: why generation stopped, if the model generated the target. question,
    past, size (height and width of the image): needed to compute the outcome. tensors: additional tensors of
    the input, by name.
    """

    kind: Kind
    input: TraceInput
    sequences: tuple[TokenSequence, ...]
    inputs: Mapping[str, Any]
    rows: tuple[str, ...] | None = None
    start: int = 0
    finish_reason: str | None = None
    question: EncodedQuestion | None = None
    past: PastValues | None = None
    size: Size | None = None
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


def prepare_input(
    bundle: Bundle, input: TraceInput, interventions: Sequence[Intervention] = ()
) -> PreparedInput:
    """Prepare the input according to the kind of the model."""
    kind = model_kind(bundle)
    needed = "context" if kind == "answer" else "text"
    needed = "series" if reads_series(bundle) else needed
    needed = "image" if reads_images(bundle) or kind == "detect" else needed
    for name in ("image", "text") if kind == "similarity" else (needed,):
        if getattr(input, name) is None:
            raise MissingValueError(name, f"by {bundle.display_name}")
    match kind:
        case "similarity":
            return _prepare_pair(bundle, input)
        case "detect":
            return _prepare_detection(bundle, input)
        case "translate":
            return _prepare_source(bundle, input, interventions)
        case "generate":
            return _prepare_prompt(bundle, input)
        case "forecast":
            return _prepare_series(bundle, input)
        case "classify" if needed == "series":
            return _prepare_labeled_series(bundle, input)
        case "answer":
            return _prepare_question(bundle, input)
    return _prepare_image(bundle, input) if needed == "image" else _prepare_text(bundle, input, kind)


def _check_length(length: int, limit: int = MAX_TOKENS) -> None:
    if length > limit:
        raise InputTooLongError(length, limit, hint="shorten it")


def _prepare_text(bundle: Bundle, input: TraceInput, kind: Kind) -> PreparedInput:
    tasks = {"classify": Classifier, "fill": MaskFiller}
    task: EncoderTask[Any, Any] = tasks.get(kind, Embedder)(bundle)
    text, tokenizer = task.prepare_text(input.text or ""), require_tokenizer(bundle)
    try:  # does not use the task's preprocess, so that a text without masks can be traced
        (encoded,) = EncoderTask.preprocess(task, [input.text or ""], 1, NO_CALLBACKS)
    except RejectedInputError as error:
        raise error.reason from None
    assert encoded is not None
    _check_length(len(encoded))
    if not isinstance(bundle.spec, specs.EncoderDecoderSpec):
        sequence = encoded_sequence(tokenizer, encoded, text, "input")
        inputs = _single_stack_inputs(bundle, encoded)
        return PreparedInput(kind=kind, input=input, sequences=(sequence,), inputs=inputs)
    # an encoder-decoder classifier reads the same text in both stacks
    ids = collate(bundle, [encoded]).ids
    if bundle.spec.start_id is None:
        raise MissingValueError("start_id", f"by the decoder of {bundle.display_name}")
    shifted = torch.cat((torch.full_like(ids[:, :1], bundle.spec.start_id), ids[:, :-1]), 1)
    sequences = (
        encoded_sequence(tokenizer, encoded, text, "source"),
        _target_sequence(tokenizer, shifted[0].tolist(), 1, text),
    )
    return PreparedInput(
        kind=kind, input=input, sequences=sequences, inputs={"src": ids, "tgt": shifted}, start=1
    )


def _single_stack_inputs(bundle: Bundle, encoded: Encoded) -> dict[str, Any]:
    batch = collate(bundle, [encoded])
    spec: Any = bundle.spec
    name = "ids" if isinstance(spec, specs.DecoderOnlySpec) else "inputs"
    return {name: batch.ids, **no_padding_mask("mask", batch.ids, spec.input), **batch.kwargs()}


def _prepare_question(bundle: Bundle, input: TraceInput) -> PreparedInput:
    question, context = input.question or "", input.context or ""
    item = QuestionAnswerer(bundle, window=MAX_TOKENS).preprocess(question, context)
    _check_length(len(item.encoded), len(item.windows[0]))
    text, tokenizer = f"{question}\n{context}", require_tokenizer(bundle)
    sequence = encoded_sequence(tokenizer, item.encoded, text, "input", second=len(question) + 1)
    inputs = _single_stack_inputs(bundle, item.encoded)
    return PreparedInput(kind="answer", input=input, sequences=(sequence,), inputs=inputs, question=item)


def _prepare_image(bundle: Bundle, input: TraceInput) -> PreparedInput:
    collator = ImageCollator(bundle)
    image = collator.process(decode_base64(input.image or ""))
    return PreparedInput(
        kind=model_kind(bundle),
        input=input,
        sequences=merged_sequences(
            image_sequence(collator.read, collator.image_size), len(stack_names(bundle.model))
        ),
        inputs={"inputs": collator.collate([image])},
        tensors={"input.pixels": torch.from_numpy(image.pixels.copy())},
    )


def _prepare_detection(bundle: Bundle, input: TraceInput) -> PreparedInput:
    task = Detector(bundle)
    spec: Any = bundle.spec
    image = load_image(decode_base64(input.image or ""))
    fitted, size = task.processor.fit(image), (image.height, image.width)
    pixels = task.processor.collate([fitted], [size]).pixels
    pixels = pixels.to(bundle.device, next(bundle.model.parameters()).dtype)
    shape = (pixels.shape[2], pixels.shape[3])
    sequences: tuple[TokenSequence, ...]
    if isinstance(bundle.spec, specs.EncoderDecoderSpec):
        sequences = detection_sequences(spec.source, shape, spec.target.num_queries)
    else:
        sequences = (image_sequence(spec.input, shape),)
    return PreparedInput(
        kind="detect",
        input=input,
        sequences=sequences,
        inputs={input_names(bundle.model)[sequences[0].name].ids: pixels},
        size=size,
        tensors={"input.pixels": torch.from_numpy(fitted.copy())},
    )


def _prepare_pair(bundle: Bundle, input: TraceInput) -> PreparedInput:
    """Prepare an image and a text for a model with two towers."""
    collator = ImageCollator(bundle.tower("image"))
    image = collator.process(decode_base64(input.image or ""))
    text = _prepare_text(bundle.tower("text"), input, "embed")
    tokens, ids = text.sequences[0], text.inputs["inputs"]
    padding = tokens_of(require_tokenizer(bundle), ids[0, len(tokens) :].tolist())
    tokens = replace(
        tokens, name="text", tokens=(*tokens.tokens, *(replace(token, special=True) for token in padding))
    )
    mask = {"mask": text.inputs["mask"]} if "mask" in text.inputs else {}
    return PreparedInput(
        kind="similarity",
        input=input,
        sequences=(image_sequence(collator.read, collator.image_size, "image"), tokens),
        inputs={"images": collator.collate([image]), "ids": ids, **mask},
        tensors={"input.pixels": torch.from_numpy(image.pixels.copy())},
    )


def _prepare_labeled_series(bundle: Bundle, input: TraceInput) -> PreparedInput:
    spec: Any = bundle.spec
    task, values = SeriesClassifier(bundle), _series_values(bundle, column_names(bundle), input)
    names = column_names(bundle)
    if task.preparation.difference:
        names += tuple(f"difference of {name}" for name in names)
    return PreparedInput(
        kind="classify",
        input=input,
        sequences=(series_sequence(spec.input),),
        inputs={"inputs": torch.from_numpy(task.preprocess([values])).to(bundle.device)},  # (1, T, C)
        rows=names,
    )


def column_names(bundle: Bundle) -> tuple[str, ...]:
    """Return the columns that a model of series reads; numbers if the folder does not name them."""
    channels = series_preparation(bundle).channels
    return bundle.job.columns or tuple(f"series {n + 1}" for n in range(channels))


def _prepare_series(bundle: Bundle, input: TraceInput) -> PreparedInput:
    spec: Any = bundle.spec
    past = _past_values(bundle, input)
    scaled = torch.from_numpy(past.scale.transform(past.values[None])).to(bundle.device)
    return PreparedInput(
        kind="forecast",
        input=input,
        sequences=(series_sequence(spec.input),),
        inputs={"inputs": scaled},  # (1, context, C)
        rows=past.names,
        past=past,
    )


def _past_values(bundle: Bundle, input: TraceInput) -> PastValues:
    assert input.series is not None
    holdout = input.series.holdout or 0
    names = bundle.job.columns or tuple(input.series.columns)
    check_columns(bundle, names)
    values = _series_values(bundle, names, input)
    context, horizon = forecast_steps(bundle)
    context, end = context or 1, len(values) - holdout
    if end < context:
        raise ShapeError("the series", [end], f"at least {context} steps before the holdout")
    read = values[end - context : end]
    return PastValues(
        names=names,
        values=read,
        truth=values[end : end + horizon] if holdout else None,
        scale=scale_of(bundle, read),
        horizon=horizon,
    )


def _series_values(bundle: Bundle, names: Sequence[str], input: TraceInput) -> Doubles:
    """Return the values of the named columns: (rows, C)."""
    assert input.series is not None
    columns = input.series.columns
    for name in names:
        if name not in columns:
            raise MissingValueError(f"the column '{name}'", f"by {bundle.display_name}")
        if len(columns[name]) != len(columns[names[0]]):
            raise ShapeError(f"the column '{name}'", [len(columns[name])], f"{len(columns[names[0]])} values")
    values = np.array([columns[name] for name in names], np.float64).T
    if not np.isfinite(values).all():
        raise NonFiniteError("the series")
    return values


def generation_task(
    bundle: Bundle, to: str | None = None, **options: Unpack[GenerationOptions]
) -> TextGenerationTask[str]:
    """Create the task of a generating model, with the input as a single segment."""
    if model_kind(bundle) == "generate":
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
    _check_length(len(segments[0].ids))
    return segments[0]


def _prepare_source(
    bundle: Bundle, input: TraceInput, interventions: Sequence[Intervention]
) -> PreparedInput:
    """Prepare a source and its target: the given one, else the output of the intervened model."""
    task = generation_task(bundle, input.to)
    segment = encode_segment(task, input.text or "")
    starts = list(decoder_start_ids(bundle.model, task.params.start_ids))
    finish_reason: str | None = None
    if input.target is None:
        target, finish_reason = _generate_target(task, segment, len(starts), interventions)
        text = task.decode(segment, target)
    else:
        target = target_ids(bundle, input)
        text = " ".join(task.tokenizer.decode(target).splitlines()).strip()
    _check_length(len(starts) + len(target))
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
            **{"src": src, **no_padding_mask("src_mask", src, spec.source)},
            **{"tgt": tgt, **no_padding_mask("tgt_mask", tgt, spec.target, first=1)},
        },
        start=len(starts),
        finish_reason=finish_reason,
    )


def _source_sequence(task: TextGenerationTask[str], segment: Segment, to: str | None) -> TokenSequence:
    """Return the tokens of a source with their text spans, for which it is encoded again."""
    tokenizer = task.tokenizer
    language = target_language(task.bundle, to) if isinstance(task, Translator) else NO_LANGUAGE
    text = language.prefix + segment.text
    encoded = tokenizer.encode(text)
    if language.tag is not None:
        (encoded,) = encode_tagged(tokenizer, [text], language.tag)
    if encoded.ids == segment.ids:
        return encoded_sequence(tokenizer, encoded, text, "source")
    if task.bundle.job.name != "restore":
        text = tokenizer.decode(segment.ids)  # with the prefix of a summarizer
    tokens = generated_tokens(tokenizer, segment.ids, text, "source")
    return TokenSequence(name="source", kind="text", text=text, tokens=tokens)


def _target_sequence(tokenizer: Tokenizer, ids: Sequence[int], start: int, text: str) -> TokenSequence:
    first = [replace(token, special=True) for token in tokens_of(tokenizer, ids[:start], "target")]
    rest = generated_tokens(tokenizer, ids[start:], text, "target")
    return TokenSequence(name="target", kind="text", text=text, tokens=(*first, *rest), prefix=start)


def vocab_size(bundle: Bundle) -> int:
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
    for index in ids:
        if not 0 <= index < vocabulary:
            raise InvalidValueError(name, index, f"token ids from 0 to {vocabulary - 1}")


def _generate_target(
    task: TextGenerationTask[str], segment: Segment, starts: int, interventions: Sequence[Intervention]
) -> tuple[list[int], str]:
    """Generate a target with the intervened model; return the ids and the finish reason."""
    bundle, params = task.bundle, task.params
    model: Any = bundle.model
    params = replace(
        params,
        config=replace(params.config, do_sample=False, num_return_sequences=1),
        max_new_tokens=min(params.limit(len(segment.ids), starts), MAX_GENERATED),
    )
    with memory_errors():
        runs = IntervenedModel(model, interventions) if interventions else bundle.inference_model()
        ((output,),) = generate_batched(runs, [segment.ids], params)
    # the last token needs no position to be generated, but needs one to be read
    return output.ids[: positions_left(bundle, starts, MAX_GENERATED)], output.finish_reason


def positions_left(bundle: Bundle, used: int, limit: int) -> int:
    """Return how many tokens fit after `used` positions in the position table, at most `limit`."""
    model: Any = bundle.model
    positions = max_positions(model.tgt_embed if hasattr(model, "tgt_embed") else model.embed)
    return limit if positions is None else min(limit, positions - used)


def _prepare_prompt(bundle: Bundle, input: TraceInput) -> PreparedInput:
    task, text = generation_task(bundle), input.text or ""
    tokenizer, prompt = task.tokenizer, encode_segment(task, text).ids
    target = target_ids(bundle, input)
    _check_length(len(prompt) + len(target), min(task.max_input_tokens or MAX_TOKENS, MAX_TOKENS))
    encoded = tokenizer.encode(text)
    if text and encoded.ids[: len(prompt)] == prompt:
        read = encoded_sequence(tokenizer, select_tokens(encoded, range(len(prompt))), text, "input").tokens
    else:  # an empty prompt starts with a special token
        read = tuple(replace(token, special=True) for token in tokens_of(tokenizer, prompt))
    whole = text + decode_continuation(tokenizer, prompt, target)
    after = generated_tokens(tokenizer, target, whole, "target", first=len(text))
    spec: Any = bundle.spec
    ids = torch.tensor([[*prompt, *target]], device=bundle.device)
    return PreparedInput(
        kind="generate",
        input=input,
        sequences=(TokenSequence(name="input", kind="text", text=whole, tokens=(*read, *after)),),
        inputs={"ids": ids, **no_padding_mask("mask", ids, spec.input)},
        start=len(prompt),
        finish_reason="end" if target and target[-1] in task.params.eos_ids else None,
    )


def split_sentences(bundle: Bundle, text: str, to: str | None = None) -> list[str]:
    """Split a text into the segments that `translate` translates; a single one for other models.

    Symbols outside the vocabulary, which are copied next to the translation, stay with their segment.
    """
    task = source_task(bundle, to) if model_kind(bundle) == "translate" else None
    if not isinstance(task, Translator):
        return [text]
    (document,) = task.preprocess([text])
    sentences, copied = list[str](), ""
    for part in document:
        if isinstance(part, Segment):
            sentences.append(copied + part.text)
            copied = ""
        elif part.strip() and sentences:
            sentences[-1] += part
        elif part.strip():
            copied += part
    return sentences or [text]
