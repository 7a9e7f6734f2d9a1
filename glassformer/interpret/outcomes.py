"""The outcome of a forward, read from the recorded output as the tasks report it. C channels, Q quantiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.core.heads import Span, Twice
from glassformer.core.observe import Record
from glassformer.interpret.inputs import PastValues, PreparedInput
from glassformer.interpret.outline import describe_stacks, stack_output
from glassformer.interpret.schema import (
    AnswerOutcome,
    EmbeddingOutcome,
    FillOutcome,
    ForecastOutcome,
    ForecastTensors,
    LabelProbability,
    LabelsOutcome,
    MaskPredictions,
    Outcome,
    Prediction,
    TextOutcome,
)
from glassformer.tasks.base import require_tokenizer
from glassformer.tasks.classification import LabelScorer
from glassformer.tasks.forecasting import LEVELS, quantiles
from glassformer.tasks.images import reads_images
from glassformer.tasks.question_answering import QuestionAnswerer
from glassformer.tasks.text_generation import decode_continuation

MAX_GUESSES = 10  # for each mask

Result = tuple[Outcome, Mapping[str, Tensor]]


@torch.inference_mode()
def read_outcome(bundle: Bundle, prepared: PreparedInput, record: Record) -> Result:
    """The outcome by the model's kind, and the tensors that it refers to by name."""
    match prepared.kind:
        case "translate":
            target = prepared.sequences[1]
            return _text(prepared, target.text or "", len(target) - prepared.start), {}
        case "generate":
            ids = prepared.inputs["ids"][0].tolist()
            prompt, generated = ids[: prepared.start], ids[prepared.start :]
            text = decode_continuation(require_tokenizer(bundle), prompt, generated)
            return _text(prepared, text, len(generated)), {}
        case "fill":
            return FillOutcome(masks=_fill(bundle, prepared, record.output[0])), {}
        case "classify" | "image":
            return LabelsOutcome(kind=prepared.kind, labels=_labels(bundle, record.output)), {}
        case "answer":
            return _answer(bundle, prepared, record.output), {}
        case "forecast":
            assert prepared.past is not None
            return _forecast(prepared.past, record.output)
        case "embed":
            return _embedding(bundle, prepared, record)


def _text(prepared: PreparedInput, text: str, generated: int) -> TextOutcome:
    kind: Any = prepared.kind
    return TextOutcome(kind=kind, text=text, written=generated, ended=prepared.ended)


def _fill(bundle: Bundle, prepared: PreparedInput, logits: Tensor) -> tuple[MaskPredictions, ...]:
    """The best tokens at each mask; logits (T, V)."""
    tokenizer = require_tokenizer(bundle)
    mask_id = tokenizer.mask_id if tokenizer.mask_id is not None else -1
    masks = []
    for position in prepared.inputs["inputs"][0].eq(mask_id).nonzero()[:, 0].tolist():
        probability = logits[position].float().softmax(-1)
        best = probability.topk(min(MAX_GUESSES, len(probability))).indices.tolist()
        guesses = tuple(
            Prediction(
                id=n,
                text=tokenizer.pieces([n])[0],
                probability=float(probability[n]),
                logit=float(logits[position, n]),
            )
            for n in best
        )
        masks.append(MaskPredictions(position=position, guesses=guesses))
    return tuple(masks)


def _labels(bundle: Bundle, output: Any) -> tuple[LabelProbability, ...]:
    logits: Tensor = output.logits if isinstance(output, Twice) else output
    labels = LabelScorer.of(bundle)(logits[0].cpu())
    return tuple(LabelProbability(label=one.label, probability=one.score) for one in labels)


def _answer(bundle: Bundle, prepared: PreparedInput, output: Span) -> AnswerOutcome:
    assert prepared.question is not None
    scores = [(output.start[0].float().cpu(), output.end[0].float().cpu())]
    best = QuestionAnswerer(bundle).postprocess(prepared.question, scores)
    return AnswerOutcome(text=best.text, start=best.start, end=best.end, score=best.score)


def _forecast(past: PastValues, output: Any) -> Result:
    """The output (1, N, C) in the units of the columns, with tensors (C, steps)."""
    point = output if isinstance(output, Tensor) else output.mean
    arrays = {
        "forecast.past": past.values.T,
        "forecast.values": past.scale.inverse(point[0].float().cpu().numpy()).T,
        "forecast.persistence": np.repeat(past.values[-1:].T, past.horizon, 1),
    }
    if past.truth is not None:
        arrays["forecast.truth"] = past.truth.T
    levels: tuple[float, ...] | None = None
    if not isinstance(output, Tensor):
        levels = tuple(LEVELS)
        values = quantiles(output, LEVELS)[:, 0].float().cpu().numpy()  # (Q, N, C)
        arrays["forecast.quantiles"] = past.scale.inverse(values).transpose(2, 0, 1)
    outcome = ForecastOutcome(
        columns=past.names,
        horizon=past.horizon,
        past=len(past.values),
        quantiles=levels,
        names=ForecastTensors(
            past="forecast.past",
            forecast="forecast.values",
            truth="forecast.truth" if past.truth is not None else None,
            quantiles="forecast.quantiles" if levels else None,
            persistence="forecast.persistence",
        ),
    )
    return outcome, {name: torch.from_numpy(np.ascontiguousarray(one)) for name, one in arrays.items()}


def _embedding(bundle: Bundle, prepared: PreparedInput, record: Record) -> Result:
    """The embedding of a text or image, pooled by the model's head or as `embed` does."""
    tensors: dict[str, Tensor] = {}
    if isinstance(bundle.spec.head, specs.Embed):
        name, vector = "head.embedding", record["head.embedding"]
    else:
        x = record[stack_output(describe_stacks(bundle)[-1])]  # (1, T, D)
        first = reads_images(bundle) and prepared.sequences[0].prefix > 0
        name, vector = "embedding", x[:, 0] if first else x.mean(1)
        tensors[name] = vector
    outcome = EmbeddingOutcome(vector_name=name, dims=vector.shape[-1], norm=float(vector[0].float().norm()))
    return outcome, tensors
