"""What a model made of an input, read off the recorded output, as the verbs tell it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.core.heads import Span, Twice, pool_mean
from glassformer.core.observe import Record
from glassformer.interpret import series
from glassformer.interpret.outline import stacks_of
from glassformer.interpret.ready import Ready
from glassformer.interpret.stations import last_of
from glassformer.tasks.answer import best_answer
from glassformer.tasks.classify import labels_of, probabilities
from glassformer.tasks.picturing import reads_pictures
from glassformer.tasks.reading import tokenizer_of
from glassformer.tasks.writing.prompts import following

GUESSES = 10  # for each mask


@dataclass(frozen=True, kw_only=True)
class Made:
    """An outcome as JSON, and the tensors it speaks of by name."""

    told: dict[str, Any]
    kept: Mapping[str, Tensor] = field(default_factory=dict)


@torch.inference_mode()
def outcome_of(bundle: Bundle, ready: Ready, record: Record) -> Made:
    """The outcome of a forward, by the model's kind."""
    match ready.kind:
        case "translate":
            (_, target), written = ready.sequences, ready.inputs["tgt"].shape[1] - ready.start
            return Made(
                told={"kind": "translate", "text": target.text, "written": written, "ended": ready.ended}
            )
        case "generate":
            return Made(told=_continued(bundle, ready))
        case "fill":
            return Made(told={"kind": "fill", "masks": _filled(bundle, ready, record)})
        case "classify" | "image":
            return Made(told={"kind": ready.kind, "labels": _labels(bundle, record.output)})
        case "answer":
            return Made(told=_answered(bundle, ready, record.output))
        case "forecast":
            told, kept = series.outcome(ready.about, record.output)
            return Made(told=told, kept=kept)
        case "embed":
            return _embedded(bundle, ready, record)


def _continued(bundle: Bundle, ready: Ready) -> dict[str, Any]:
    ids = ready.inputs["ids"][0].tolist()
    prompt, written = ids[: ready.start], ids[ready.start :]
    text = following(tokenizer_of(bundle), prompt, written)
    return {"kind": "generate", "text": text, "written": len(written), "ended": ready.ended}


def _filled(bundle: Bundle, ready: Ready, record: Record) -> list[dict[str, Any]]:
    """The guesses at each mask."""
    tokenizer = tokenizer_of(bundle)
    logits: Tensor = record.output[0]  # (T, V)
    places = (
        ready.inputs["inputs"][0].eq(tokenizer.mask_id if tokenizer.mask_id is not None else -1).nonzero()
    )
    found = []
    for place in places[:, 0].tolist():
        probability = logits[place].float().softmax(-1)
        best = probability.topk(min(GUESSES, len(probability))).indices.tolist()
        words = [
            {
                "id": n,
                "text": tokenizer.pieces([n])[0],
                "probability": float(probability[n]),
                "logit": float(logits[place, n]),
            }
            for n in best
        ]
        found.append({"position": place, "guesses": words})
    return found


def _labels(bundle: Bundle, output: Any) -> list[dict[str, Any]]:
    scores: Tensor = output.logits if isinstance(output, Twice) else output
    row = scores[0].float().cpu()
    names = labels_of(bundle, len(row))
    told = probabilities(bundle, len(row))(row)
    order = told.argsort(descending=True, stable=True).tolist()
    return [{"label": names[n], "probability": float(told[n])} for n in order]


def _answered(bundle: Bundle, ready: Ready, output: Span) -> dict[str, Any]:
    made, context = ready.about
    scores = [(output.start[0].float().cpu(), output.end[0].float().cpu())]
    best = best_answer(made, [list(range(len(made)))], scores, context, cls_id=tokenizer_of(bundle).cls_id)
    return {"kind": "answer", "text": best.text, "start": best.start, "end": best.end, "score": best.score}


def _embedded(bundle: Bundle, ready: Ready, record: Record) -> Made:
    """The vector of a text or a picture, pooled by the model's own head or as `verbs.embed` does."""
    if isinstance(bundle.spec.head, specs.Embed):
        name, vector, kept = "head.embedding", record["head.embedding"], dict[str, Tensor]()
    else:
        x = record[last_of(stacks_of(bundle)[-1])]  # (1, T, D)
        pictured = reads_pictures(bundle)
        first = pictured and ready.sequences[0].prefix > 0
        vector = x[:, 0] if first else pool_mean(x, None)
        name, kept = "embedding", {"embedding": vector}
    told = {
        "kind": "embed",
        "vector_name": name,
        "dims": vector.shape[-1],
        "norm": float(vector[0].float().norm()),
    }
    return Made(told=told, kept=kept)
