"""Convert the input of a trace to the arguments of the model's forward, with the task's processor.

C channels, S source positions, T target positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from glassformer.bundle import Bundle
from glassformer.core.inputs import TextInputs, tensor_of
from glassformer.data.image_files import decode_base64
from glassformer.data.windows import Doubles
from glassformer.errors import MissingValueError, NonFiniteError, ShapeError
from glassformer.interpret.generated_text import (
    MAX_TOKENS,
    check_length,
    prepare_prompt,
    prepare_source,
    target_sequence,
)
from glassformer.interpret.interventions import unpadded
from glassformer.interpret.outline import model_kind, stack_names
from glassformer.interpret.prepared_input import PastValues, PreparedInput
from glassformer.interpret.schema import Intervention, Kind, TokenSequence, TraceInput
from glassformer.interpret.tokens import (
    detection_sequences,
    encoded_sequence,
    image_sequence,
    merged_sequences,
    series_sequence,
    tokens_of,
)
from glassformer.processors.base import Processor
from glassformer.processors.image import FixedSizeVisionProcessor, VisionProcessor, reads_images
from glassformer.processors.series import (
    SeriesProcessor,
    check_columns,
    forecast_steps,
    reads_series,
    scale_of,
    series_preparation,
)
from glassformer.processors.text import require_tokenizer, token_input
from glassformer.tasks.classification import Classifier
from glassformer.tasks.embedding import Embedder
from glassformer.tasks.encoder import EncoderTask
from glassformer.tasks.fill_mask import MaskFiller
from glassformer.tasks.question_answering import QuestionAnswerer
from glassformer.tokenization import Encoded


def prepare_input(
    bundle: Bundle, input: TraceInput, interventions: Sequence[Intervention] = ()
) -> PreparedInput:
    """Prepare the input according to the kind of the model."""
    kind = model_kind(bundle)
    needed = ["context" if kind == "answer" else "text"]
    needed = ["series"] if reads_series(bundle) else needed
    needed = ["image"] if reads_images(bundle) or kind == "detect" else needed
    for name in ["image", "text"] if kind == "similarity" else needed:
        if getattr(input, name) is None:
            raise MissingValueError(name, f"by {bundle.display_name}")
    match kind:
        case "similarity":
            return _prepare_pair(bundle, input)
        case "translate":
            return prepare_source(bundle, input, interventions)
        case "generate":
            return prepare_prompt(bundle, input)
        case "answer":
            return _prepare_question(bundle, input)
    if needed == ["series"]:
        return _prepare_series(bundle, input, kind)
    return _prepare_image(bundle, input) if needed == ["image"] else _prepare_text(bundle, input, kind)


def _text_inputs(bundle: Bundle, processor: Processor[Any, Encoded], encoded: Encoded) -> dict[str, Any]:
    """Return the model inputs of one text. A trace has no padding mask unless the text has pad ids."""
    inputs: dict[str, Any] = {**processor.collate([encoded])}
    for name, text in inputs.items():
        if isinstance(text, TextInputs):
            inputs[name] = replace(unpadded(text.ids, token_input(bundle)), types=text.types)
        else:
            inputs[name] = TextInputs(text)
    return inputs


def _prepare_text(bundle: Bundle, input: TraceInput, kind: Kind) -> PreparedInput:
    tasks: dict[str, type[EncoderTask[Any]]] = {"classify": Classifier, "fill": MaskFiller}
    task: EncoderTask[Any] = tasks.get(kind, Embedder)(bundle)
    # not the task's own `load`, so that a text without masks can be traced
    processor: Any = task.processor
    text, encoded = processor.prepare(input.text or ""), processor.load(input.text or "")
    check_length(len(encoded))
    inputs, tokenizer = _text_inputs(bundle, processor, encoded), require_tokenizer(bundle)
    if "src" not in inputs:
        sequences: tuple[TokenSequence, ...] = (encoded_sequence(tokenizer, encoded, text, "input"),)
    else:  # an encoder-decoder classifier reads the same text in both stacks
        sequences = (
            encoded_sequence(tokenizer, encoded, text, "source"),
            target_sequence(tokenizer, inputs["tgt"].ids[0].tolist(), 1, text),
        )
    start = len(sequences) - 1
    return PreparedInput(kind=kind, input=input, sequences=sequences, inputs=inputs, start=start)


def _prepare_question(bundle: Bundle, input: TraceInput) -> PreparedInput:
    question, context = input.question or "", input.context or ""
    task = QuestionAnswerer(bundle, window=MAX_TOKENS)
    item = task.encode(question, context)
    check_length(len(item.encoded), len(item.windows[0]))
    text, tokenizer = f"{question}\n{context}", require_tokenizer(bundle)
    sequence = encoded_sequence(tokenizer, item.encoded, text, "input", second=len(question) + 1)
    inputs = _text_inputs(bundle, task.processor, item.encoded)
    return PreparedInput(kind="answer", input=input, sequences=(sequence,), inputs=inputs, question=item)


def _prepare_image(bundle: Bundle, input: TraceInput) -> PreparedInput:
    spec: Any = bundle.spec
    kind = model_kind(bundle)
    processor = (VisionProcessor if kind == "detect" else FixedSizeVisionProcessor).from_bundle(bundle)
    image = processor.load(decode_base64(input.image or ""))
    inputs: dict[str, Any] = {**processor.collate([image])}
    _, _, height, width = tensor_of(next(iter(inputs.values()))).shape
    if "src" in inputs:
        sequences: tuple[TokenSequence, ...] = detection_sequences(
            spec.source, (height, width), spec.target.num_queries
        )
    else:
        stacks = 1 if kind == "detect" else len(stack_names(bundle.model))
        sequences = merged_sequences(image_sequence(processor.read, (height, width)), stacks)
    return PreparedInput(
        kind=kind,
        input=input,
        sequences=sequences,
        inputs=inputs,
        size=image.size,
        tensors={"input.pixels": torch.from_numpy(image.pixels.copy())},
    )


def _prepare_pair(bundle: Bundle, input: TraceInput) -> PreparedInput:
    """Prepare an image and a text for a model with two towers."""
    image = _prepare_image(bundle.tower("image"), input)
    text = _prepare_text(bundle.tower("text"), input, "embed")
    tokens, texts = text.sequences[0], text.inputs["inputs"]
    padding = tokens_of(require_tokenizer(bundle), texts.ids[0, len(tokens) :].tolist())
    tokens = replace(
        tokens, name="text", tokens=(*tokens.tokens, *(replace(token, special=True) for token in padding))
    )
    return replace(
        image,
        kind="similarity",
        sequences=(replace(image.sequences[0], name="image"), tokens),
        inputs={"images": image.inputs["inputs"], "texts": texts},
    )


def _prepare_series(bundle: Bundle, input: TraceInput, kind: Kind) -> PreparedInput:
    spec: Any = bundle.spec
    past: PastValues | None = None
    if kind == "forecast":
        past = _past_values(bundle, input)
        names, inputs = past.names, past.scale.transform(past.values[None])  # (1, context, C)
        tensors: Mapping[str, Any] = {"inputs": torch.from_numpy(inputs).to(bundle.device)}
    else:
        processor, names = SeriesProcessor(bundle), column_names(bundle)
        tensors = processor.collate([processor.load(_series_values(bundle, names, input))])
        if processor.preparation.difference:
            names += tuple(f"difference of {name}" for name in names)
    sequence = series_sequence(spec.input)
    return PreparedInput(
        kind=kind, input=input, sequences=(sequence,), inputs={**tensors}, rows=names, past=past
    )


def column_names(bundle: Bundle) -> tuple[str, ...]:
    """Return the columns that a model of series reads; numbers if the folder does not name them."""
    channels = series_preparation(bundle).channels
    return bundle.job.columns or tuple(f"series {n + 1}" for n in range(channels))


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
