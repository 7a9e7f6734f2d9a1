"""From a trace's input to the arguments of a model's forward, for every kind of model.

C channels, S source positions, T target positions.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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
from glassformer.generation import GenerationConfig, GenerationRequest, generate_batched
from glassformer.generation.decoder import decoder_start_ids
from glassformer.generation.stopping import truncate_at_stop
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
from glassformer.tasks.embed import beginning, sentence_words
from glassformer.tasks.fill import MASK, mark_of
from glassformer.tasks.forecast import steps_of
from glassformer.tasks.picturing import Ready as ImagePreprocessor
from glassformer.tasks.picturing import reads_pictures
from glassformer.tasks.reading import encoded, picked, room_of, together, tokenizer_of
from glassformer.tasks.units import WindowScale, check_columns, scale_of
from glassformer.tasks.writing.capitals import Capitals
from glassformer.tasks.writing.checks import within_bounds
from glassformer.tasks.writing.ends import Ends, ends_of
from glassformer.tasks.writing.pieces import Place
from glassformer.tasks.writing.prompts import following, prompt_ids
from glassformer.tasks.writing.rewriting import searching, translating, usual_limit
from glassformer.tasks.writing.signs import Signs
from glassformer.tasks.writing.sources import Language, language, mending
from glassformer.tasks.writing.stand_ins import Stands, put_back
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
    why the model's own answer ended. generated: whether the target is the model's own answer. encoded, past:
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
    encoded: Encoded | None = None
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
        case "embed" if reads_pictures(bundle):
            return _prepare_image(bundle, input)
    return _prepare_text(bundle, input, kind)


def _check_length(length: int, limit: int) -> None:
    if length > limit:
        raise InputTooLongError(length, limit, hint="shorten it")


def _prepare_text(bundle: Bundle, input: TraceInput, kind: Kind) -> PreparedInput:
    """A text to classify, embed or fill."""
    text, tokenizer = input.text, tokenizer_of(bundle)
    if text is None:
        raise MissingValueError("text", f"by {bundle.display_name}")
    limit = room_of(bundle)
    if kind == "embed":
        options = sentence_words(bundle)
        limit = min(limit, options.get("max_seq_length") or limit)
        text = beginning(bundle, None) + text
        text = text.lower() if options.get("do_lower_case") else text
    if kind == "fill":
        mask = mark_of(tokenizer, bundle)
        text = text if mask in text else text.replace(MASK, mask)
    (one,) = encoded(
        bundle,
        [text],
        first=1,
        room=min(limit, MAX_TOKENS),
        special_in_text="keep" if kind == "fill" else "plain",
    )
    assert one is not None
    if not isinstance(bundle.spec, specs.EncoderDecoder):
        sequence = encoded_sequence(tokenizer, one, text, "input")
        return PreparedInput(
            kind=kind, input=input, sequences=(sequence,), inputs=_single_stack_inputs(bundle, one)
        )
    # an encoder-decoder classifier reads the same text in both stacks
    sequence = encoded_sequence(tokenizer, one, text, "source")
    start = getattr(bundle.spec, "start_id", None)
    if start is None:
        raise MissingValueError("decoder_start_token_id", f"by {bundle.display_name}")
    ids = together([one], bundle).ids
    shifted = torch.cat((torch.full_like(ids[:, :1], start), ids[:, :-1]), 1)
    target = _target_sequence(tokenizer, shifted[0].tolist(), 1, text)
    return PreparedInput(
        kind=kind, input=input, sequences=(sequence, target), inputs={"src": ids, "tgt": shifted}, start=1
    )


def _single_stack_inputs(bundle: Bundle, one: Encoded) -> dict[str, Any]:
    """The forward's arguments for a model with one stack."""
    batch = together([one], bundle)
    name = "ids" if isinstance(bundle.spec, specs.DecoderOnly) else "inputs"
    spec: Any = bundle.spec
    return {name: batch.ids, **all_real_mask("mask", batch.ids, spec.input), **batch.words()}


def _prepare_question(bundle: Bundle, input: TraceInput) -> PreparedInput:
    """A question and the context that holds its answer."""
    question, context = input.question or "", input.context or ""
    for name, value in (("question", question), ("context", context)):
        if not value.strip():
            raise MissingValueError(name, f"by {bundle.display_name}")
    tokenizer = tokenizer_of(bundle)
    one = tokenizer.encode(question, context)
    _check_length(len(one), min(room_of(bundle), MAX_TOKENS))
    if 1 not in one.sequences:
        raise EmptyInputError("context", hint="the tokenizer knows none of its characters")
    sequence = encoded_sequence(tokenizer, one, f"{question}\n{context}", "input", second=len(question) + 1)
    return PreparedInput(
        kind="answer",
        input=input,
        sequences=(sequence,),
        inputs=_single_stack_inputs(bundle, one),
        encoded=one,
    )


def _prepare_image(bundle: Bundle, input: TraceInput) -> PreparedInput:
    """An image, resized and normalized as in the image tasks."""
    if input.image is None:
        raise MissingValueError("image", f"by {bundle.display_name}")
    preprocessor = ImagePreprocessor(bundle)
    pixels = preprocessor.pixels(_image_bytes(input.image))  # (H, W, C)
    scaled = preprocessor.scaled(pixels[None])
    dtype = next(bundle.model.parameters()).dtype
    return PreparedInput(
        kind=model_kind(bundle),
        input=input,
        sequences=(image_sequence(preprocessor.read),),
        inputs={"inputs": scaled.to(dtype)},
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
    context, horizon = steps_of(bundle)
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


def _prepare_source(
    bundle: Bundle, input: TraceInput, interventions: Sequence[Intervention]
) -> PreparedInput:
    """A source and its target: the given one, else what the intervened model generates."""
    tokenizer, ends = tokenizer_of(bundle), ends_of(bundle)
    to = language(bundle, input.to, by="`to`")
    source = source_sequence(bundle, input, to)
    _check_length(len(source), min(ends.reads or MAX_TOKENS, MAX_TOKENS))
    starts = list(decoder_start_ids(bundle.model, ends.start_ids))
    ids = [token.id for token in source.tokens if token.id is not None]
    spec: Any = bundle.spec
    src = torch.tensor([ids], device=bundle.device)
    ended: str | None = None
    stop: tuple[str, ...] = ()
    generates = input.target is None
    if generates:
        settings = replace(searching(bundle, {}, to), do_sample=False, num_return_sequences=1)
        target, ended = _generate_target(bundle, ids, interventions, ends, settings)
        stop = settings.stop_strings
    else:
        target = target_ids(bundle, input)
    _check_length(len(starts) + len(target), MAX_TOKENS)
    text = decode_line(tokenizer, target, stop)
    tgt = torch.tensor([[*starts, *target]], device=bundle.device)
    return PreparedInput(
        kind="translate",
        input=input,
        sequences=(source, _target_sequence(tokenizer, [*starts, *target], len(starts), text)),
        inputs={
            **{"src": src, **all_real_mask("src_mask", src, spec.source)},
            **{"tgt": tgt, **all_real_mask("tgt_mask", tgt, spec.target, first=1)},
        },
        start=len(starts),
        ended=ended,
        generated=generates,
    )


def source_sequence(bundle: Bundle, input: TraceInput, to: Language) -> TokenSequence:
    """The source as the model reads it: with its prefix or language tag, gap tokens and stand-ins."""
    tokenizer, body = tokenizer_of(bundle), (input.text or "").strip()
    if not body:
        raise EmptyInputError("text")
    job = bundle.job
    if job.name == "restore":
        (ids,) = mending(bundle, gap=job.gap, before=job.before)([body])
        tokens = _tokens_with_gaps(tokenizer, ids, body, str(job.gap))
        return TokenSequence(name="source", kind="text", text=body, tokens=tokens)
    text = to.prefix + replace_emoji(bundle, body, input.to)[0]
    if to.tag is None:
        one = tokenizer.encode(text)
    else:
        (one,) = encode_tagged(tokenizer, [text], to.tag)
    if not one.ids:
        raise EmptyInputError("text", hint="the tokenizer knows none of its characters")
    return encoded_sequence(tokenizer, one, text, "source")


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


def decode_line(tokenizer: Tokenizer, ids: Sequence[int], stop: Sequence[str] = ()) -> str:
    """Generated ids as one line of text, as `translate` returns it."""
    return " ".join(truncate_at_stop(tokenizer.decode(ids), stop).splitlines()).strip()


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
    if not input.target:
        return []
    ids = input.target
    if isinstance(ids, str):
        ids = tuple(tokenizer_of(bundle).encode(ids, special=False, side="target").ids)
    check_token_ids("target", ids, vocab_size(bundle))
    return list(ids)


def check_token_ids(name: str, ids: Sequence[int], vocabulary: int) -> None:
    """Reject ids that the model does not have."""
    for index in ids:
        if not 0 <= index < vocabulary:
            raise InvalidValueError(name, index, f"token ids from 0 to {vocabulary - 1}")


def _generate_target(
    bundle: Bundle,
    source: list[int],
    interventions: Sequence[Intervention],
    ends: Ends,
    settings: GenerationConfig,
) -> tuple[list[int], str]:
    """What the task generates for a source with the intervened model: the ids, and why generation ended."""
    model: Any = bundle.model
    starts = len(decoder_start_ids(model, ends.start_ids))
    limit = generation_limit(settings, given=starts, default=usual_limit(len(source)))
    with within_bounds():
        ((output,),) = generate_batched(
            IntervenedModel(model, interventions) if interventions else bundle.ready(),
            [source],
            GenerationRequest(
                config=settings,
                start_ids=ends.start_ids,
                eos_token_id=ends.eos_ids,
                pad_token_id=ends.pad_id,
                max_new_tokens=min(limit, MAX_GENERATED),
                decode=tokenizer_of(bundle).decode,
            ),
        )
    # the last token needs no position to be generated, but needs one to be read
    return output.ids[: positions_left(bundle, starts, MAX_GENERATED)], output.finish_reason


def generation_limit(settings: GenerationConfig, *, given: int, default: int) -> int:
    """The most tokens generated after `given` ones, by the settings or by default."""
    if settings.max_new_tokens is not None:
        return settings.max_new_tokens
    return default if settings.max_length is None else max(0, settings.max_length - given)


def positions_left(bundle: Bundle, given: int, most: int) -> int:
    """How many tokens can follow `given` ones within the position table, at most `most`."""
    model: Any = bundle.model
    embed = model.tgt_embed if hasattr(model, "tgt_embed") else model.embed
    positions = getattr(getattr(embed, "position", None), "max_len", None)
    return most if positions is None else min(most, positions - given)


def _prepare_prompt(bundle: Bundle, input: TraceInput) -> PreparedInput:
    """A prompt followed by what was generated so far."""
    tokenizer, ends = tokenizer_of(bundle), ends_of(bundle)
    if input.text is None:
        raise MissingValueError("text", f"by {bundle.display_name}")
    (prompt,) = prompt_ids(bundle, ends, [input.text])
    target = target_ids(bundle, input)
    _check_length(len(prompt) + len(target), min(ends.reads or MAX_TOKENS, MAX_TOKENS))
    one = tokenizer.encode(input.text)
    if one.ids[: len(prompt)] == prompt and input.text:
        read = encoded_sequence(tokenizer, picked(one, range(len(prompt))), input.text, "input").tokens
    else:  # an empty prompt starts with a special token
        read = tuple(replace(token, special=True) for token in tokens_of(tokenizer, prompt))
    text = input.text + following(tokenizer, prompt, target)
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
        ended="end" if target and target[-1] in ends.eos_ids else None,
    )


def split_sentences(bundle: Bundle, text: str, to: str | None = None) -> list[str]:
    """The parts that `translate` reads one by one; the text itself for a model that reads it whole.

    to: the target language, if the model knows several.
    """
    if not _splits(bundle, to):
        return [text]
    (layout,) = translating(bundle, {}, to=to).layouts([text])
    return [put_back(part.text, part.stands) for part in layout if isinstance(part, Place)] or [text]


def replace_emoji(bundle: Bundle, text: str, to: str | None = None) -> tuple[str, Stands]:
    """One part as the model reads it: letters replace emoji that its vocabulary lacks."""
    if not _splits(bundle, to):
        return text, ()
    tokenizer = tokenizer_of(bundle)
    text, signs = Capitals(tokenizer).read(text), Signs(tokenizer)
    return signs.read(text) if signs.carried(text) == [text] else (text, ())


def emoji_note(bundle: Bundle, text: str, to: str | None = None) -> str | None:
    """A note on the letters that replace emoji in one part, if any do."""
    _, stand_ins = replace_emoji(bundle, text, to)
    if not stand_ins:
        return None
    return "letters replace emoji in the model's input: " + ", ".join(
        f"{letter} for {emoji}" for letter, emoji in stand_ins
    )


def _splits(bundle: Bundle, to: str | None) -> bool:
    """Whether `translate` splits texts for this model; texts to restore or summarize are read whole."""
    if model_kind(bundle) != "translate":
        return False
    job = bundle.job.name
    if job is not None or to is not None:
        return job in (None, "translate")
    tasks = bundle.config.get("task_specific_params")
    return not any(name.startswith("summarization") for name in (tasks if isinstance(tasks, Mapping) else ()))
