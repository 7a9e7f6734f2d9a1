"""Convert head outputs to predictions, and a forward pass to the outcome that the task reports.

C channels, D d_model, N vectors, Q quantiles, T positions, V vocabulary or labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.bundle import Bundle
from glassformer.core.heads import (
    HeadContext,
    SpanLogits,
)
from glassformer.core.observe import Record
from glassformer.core.vision.heads import DistilledLogits, box_corners
from glassformer.errors import UnsupportedError
from glassformer.interpret import schema
from glassformer.interpret.outline import describe_stacks, stack_output
from glassformer.interpret.prepared_input import PastValues, PreparedInput
from glassformer.processors.image import reads_images
from glassformer.processors.text import require_tokenizer
from glassformer.tasks.classification import LabelScorer, label_activation, label_names
from glassformer.tasks.forecasting import LEVELS, quantiles
from glassformer.tasks.question_answering import QuestionAnswerer
from glassformer.tasks.text_generation import decode_continuation

MAX_PREDICTIONS = 10  # for each mask
MIN_SCORE = 0.5  # of the objects in an outcome

Result = tuple[schema.Outcome, Mapping[str, Tensor]]


@dataclass(frozen=True, kw_only=True)
class HeadReadout:
    """Converts the output of a model's head to predictions.

    stack: the stack whose output is the head's input. whole_input: one row of logits for the input, not one
    per position.
    """

    bundle: Bundle
    stack: schema.StackInfo
    whole_input: bool
    labels: Sequence[str] | None  # None if the model predicts tokens

    @property
    def final_norm(self) -> nn.Module | None:
        """The norm between the last block and the head, if any."""
        return self.bundle.model.get_submodule(stack_output(self.stack)) if self.stack.final_norm else None

    def sites(self) -> list[str]:
        """Return the names of the residual stream before the first block and after each block."""
        path = f"{self.stack.path}.blocks"
        return [f"{path}.0.resid_in", *(f"{path}.{n}.resid_out" for n in range(self.stack.layers))]

    def logits(self, residual: Tensor, context: HeadContext) -> Tensor:
        """Apply the final norm and the head to a residual (1, N, D); logits (N, V), or (1, V)."""
        x = residual if self.final_norm is None else self.final_norm(residual)
        model: Any = self.bundle.model
        output: Any = model.head(x, context)
        logits: Tensor = output if isinstance(output, Tensor) else output.logits
        return logits[0].float() if logits.dim() == 3 else logits.float()

    @property
    def _scorer(self) -> LabelScorer:
        names = self.labels
        return LabelScorer((), "softmax" if names is None else label_activation(self.bundle, len(names)))

    def probabilities(self, logits: Tensor) -> Tensor:
        """Convert logits (V,) to probabilities, by softmax, or by sigmoid for multi-label models."""
        return self._scorer.probabilities(logits)

    def log_probabilities(self, logits: Tensor) -> Tensor | None:
        """Convert logits (N, V) to log-probabilities (N, M); None for a regression model.

        A multi-label model has M = 2V: the log-probabilities of all labels, then of their complements.
        """
        match self._scorer.activation:
            case "softmax":
                return logits.log_softmax(-1)
            case "sigmoid":
                return F.logsigmoid(torch.cat((logits, -logits), -1))
        return None

    def texts(self, ids: Sequence[int]) -> list[str]:
        if self.labels is not None:
            return [self.labels[index] for index in ids]
        if (tokenizer := self.bundle.tokenizer) is None:
            return [f"<id {index}>" for index in ids]
        side: Literal["source", "target"] = "target" if self.stack.name == "decoder" else "source"
        return [tokenizer.pieces([index], side=side)[0] for index in ids]

    def top(self, logits: Tensor, count: int) -> tuple[schema.Prediction, ...]:
        """Return the `count` best predictions for logits (V,)."""
        values, ids = logits.topk(min(count, len(logits)))
        texts, probability = self.texts(ids.tolist()), self.probabilities(logits)[ids].tolist()
        rows = zip(ids.tolist(), texts, probability, values.tolist(), strict=True)
        return tuple(schema.Prediction(id=n, text=t, probability=p, logit=v) for n, t, p, v in rows)


def head_readout(bundle: Bundle) -> HeadReadout:
    """Return the readout of a model that predicts tokens or labels; raise for others."""
    model: Any = bundle.model
    tokens = model.spec.yields in ("next tokens", "masked tokens")
    whole_input = model.spec.yields == "label"
    if not (tokens or whole_input or model.spec.yields == "token labels"):
        raise UnsupportedError(bundle.display_name, "predictions of tokens or labels")
    return HeadReadout(
        bundle=bundle,
        stack=describe_stacks(bundle)[-1],
        whole_input=whole_input,
        labels=None if tokens else label_names(bundle, model.spec.head.num_labels),
    )


@torch.inference_mode()
def read_outcome(bundle: Bundle, prepared: PreparedInput, record: Record) -> Result:
    """Return the outcome according to the model's kind, and the tensors that it refers to by name."""
    output: Any = record.output
    match prepared.kind:
        case "translate":
            target = prepared.sequences[1]
            text, count = target.text or "", len(target) - prepared.start
            return schema.TextOutcome(
                kind="translate", text=text, num_tokens=count, finish_reason=prepared.finish_reason
            ), {}
        case "generate":
            ids = prepared.inputs["inputs"].ids[0].tolist()
            prompt, generated = ids[: prepared.start], ids[prepared.start :]
            text, count = decode_continuation(require_tokenizer(bundle), prompt, generated), len(generated)
            return schema.TextOutcome(
                kind="generate", text=text, num_tokens=count, finish_reason=prepared.finish_reason
            ), {}
        case "fill":
            is_mask = prepared.inputs["inputs"].ids[0] == require_tokenizer(bundle).mask_id
            masks = is_mask.nonzero()[:, 0].tolist() if isinstance(is_mask, Tensor) else []
            top = head_readout(bundle).top
            predictions = {n: top(output[0, n].float(), MAX_PREDICTIONS) for n in masks}
            return schema.FillOutcome(
                masks=tuple(schema.MaskPredictions(position=n, predictions=predictions[n]) for n in masks)
            ), {}
        case "classify" | "image":
            logits: Tensor = output.logits if isinstance(output, DistilledLogits) else output
            scored = LabelScorer.of(bundle)(logits[0].cpu())
            labels = tuple(
                schema.LabelProbability(label=label.label, probability=label.score) for label in scored
            )
            return schema.LabelsOutcome(kind=prepared.kind, labels=labels), {}
        case "similarity":
            cosine = float(output.image_embeds[0].float() @ output.text_embeds[0].float())
            return schema.SimilarityOutcome(cosine=cosine, logit=float(output.logits_per_image[0, 0])), {}
        case "answer":
            return _answer(bundle, prepared, output), {}
        case "forecast":
            assert prepared.past is not None
            return _forecast(prepared.past, output)
        case "detect":
            return _detections(bundle, prepared, record)
        case "embed":
            return _embedding(bundle, prepared, record)
    raise UnsupportedError(bundle.display_name, f"the outcome {prepared.kind}")


def _answer(bundle: Bundle, prepared: PreparedInput, output: SpanLogits) -> schema.AnswerOutcome:
    assert prepared.question is not None
    scores = [(output.start[0].float().cpu(), output.end[0].float().cpu())]
    best = QuestionAnswerer(bundle).answer(prepared.question, scores)
    return schema.AnswerOutcome(text=best.text, start=best.start, end=best.end, score=best.score)


def _forecast(past: PastValues, output: Any) -> Result:
    """Convert the output (1, N, C) to a forecast in the units of the columns, with tensors (C, steps)."""
    point = output if isinstance(output, Tensor) else output.mean
    arrays = {
        "past": past.values.T,
        "forecast": past.scale.inverse(point[0].float().cpu().numpy()).T,
        "persistence": np.repeat(past.values[-1:].T, past.horizon, 1),
    }
    if past.truth is not None:
        arrays["truth"] = past.truth.T
    if not isinstance(output, Tensor):
        values = quantiles(output, LEVELS)[:, 0].float().cpu().numpy()  # (Q, N, C)
        arrays["quantiles"] = past.scale.inverse(values).transpose(2, 0, 1)
    outcome = schema.ForecastOutcome(
        columns=past.names,
        horizon=past.horizon,
        past=len(past.values),
        quantiles=tuple(LEVELS) if "quantiles" in arrays else None,
        names=schema.ForecastTensors(**{name: f"forecast.{name}" for name in arrays}),
    )
    tensors = {f"forecast.{name}": torch.from_numpy(array.copy()) for name, array in arrays.items()}
    return outcome, tensors


def _detections(bundle: Bundle, prepared: PreparedInput, record: Record) -> Result:
    """Read the boxes after every layer with the final norm and the head, which are trained for the last."""
    model: Any = bundle.model
    labels = label_names(bundle, model.spec.head.num_labels)
    readout = HeadReadout(bundle=bundle, stack=describe_stacks(bundle)[-1], whole_input=False, labels=labels)
    norm = readout.final_norm or nn.Identity()
    outputs = [model.head(norm(record[site]), HeadContext()) for site in readout.sites()[1:]]
    probabilities = torch.cat([output.logits for output in outputs]).float().softmax(-1)  # (layers, Q, L + 1)
    boxes = box_corners(torch.cat([output.boxes for output in outputs]).float()).cpu()  # (layers, Q, 4)
    assert prepared.size is not None
    height, width = prepared.size
    scores, classes = probabilities[-1, :, :-1].max(-1)
    pixels = boxes[-1].clamp(0, 1) * torch.tensor((width, height, width, height))
    objects = tuple(
        schema.DetectedBox(
            query=n, label=labels[classes[n]], score=float(scores[n]), box=(x_min, y_min, x_max, y_max)
        )
        for n in scores.argsort(descending=True, stable=True).tolist()
        for x_min, y_min, x_max, y_max in [pixels[n].tolist()]
        if scores[n] > MIN_SCORE
    )
    sequence = prepared.sequences[-1]
    outcome = schema.DetectOutcome(
        objects=objects,
        first_query=len(sequence) - boxes.shape[1],
        boxes="detect.boxes",
        probabilities="detect.probabilities",
    )
    return outcome, {"detect.boxes": boxes, "detect.probabilities": probabilities.cpu()}


def _embedding(bundle: Bundle, prepared: PreparedInput, record: Record) -> Result:
    if bundle.spec.yields == "embedding":
        name, vector, tensors = "head.embedding", record["head.embedding"], {}
    else:
        x = record[stack_output(describe_stacks(bundle)[-1])]  # (1, T, D)
        first = reads_images(bundle) and prepared.sequences[0].prefix > 0
        name, vector = "embedding", x[:, 0] if first else x.mean(1)
        tensors = {name: vector}
    outcome = schema.EmbeddingOutcome(
        vector_name=name, dims=vector.shape[-1], norm=float(vector[0].float().norm())
    )
    return outcome, tensors
