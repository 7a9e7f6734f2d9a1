"""A tiny random reference model, its folder, and the same inputs given to both libraries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from glassformer.core.heads import PooledOutput, SpanLogits
from glassformer.core.model import AnyModel, EncoderDecoder
from glassformer.core.series.distributions import Gaussian, NegativeBinomial, StudentT
from glassformer.core.vision.heads import BackboneOutput, BoxOutput, DistilledLogits, MaskOutput
from glassformer.core.vision.segmenter import PromptedMaskOutput
from glassformer.core.vision.two_tower import TwoTowerOutput

LENGTH, BATCH = 9, 3
MAIN = (
    "logits",
    "last_hidden_state",
    "prediction_outputs",
    "prediction_logits",
    "prediction_output",
    "regression_outputs",
)


def reference(name: str, settings: dict[str, Any], seed: int = 0) -> nn.Module:
    """The reference's model with every number drawn anew, large enough for a mistake to show."""
    torch.manual_seed(seed)
    kind = getattr(transformers, name)
    if "attn_logit_softcapping" in settings:  # some versions of transformers ignore it in their fast kernel
        settings = {**settings, "attn_implementation": "eager"}
    model = kind(kind.config_class(**settings)).eval()
    with torch.no_grad():
        for value in model.parameters():
            if value.dim() == 4:  # a convolution, which some references freeze
                value.requires_grad_().copy_(torch.randn_like(value) * 0.8 / value[0].numel() ** 0.5)
            elif not value.requires_grad:
                continue  # a table by formula
            elif value.dim() >= 2:
                value.copy_(torch.randn_like(value) * 0.8 / value.shape[-1] ** 0.5)
            else:
                value.add_(torch.randn_like(value) * 0.1)
        for key, value in model.named_buffers():
            if key.endswith(("normalization.weight", "normalization.bias")):  # of a frozen batch norm
                value.add_(torch.randn_like(value) * 0.3)
            elif key.endswith(("running_mean", "logits_bias")):
                value.copy_(torch.randn_like(value) * 0.1)
            elif key.endswith("running_var"):
                value.copy_(torch.rand_like(value) + 0.5)
            elif key == "attn_mask_probs":
                value.fill_(seed % 2)  # masked attention off or on
            elif key.endswith("empty_weight"):
                value.copy_(torch.rand_like(value))
    return model


def token_batch(vocab: int, avoid: set[int], side: str, seed: int = 1) -> tuple[Tensor, Tensor]:
    """ids (B, T) without the ids in `avoid`, and the bool mask of real tokens, padded on `side`."""
    generator = torch.Generator().manual_seed(seed)
    choices = torch.tensor([n for n in range(vocab) if n not in avoid])
    ids = choices[torch.randint(len(choices), (BATCH, LENGTH), generator=generator)]
    real = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    for row, short in enumerate((0, 2, 5)):
        if side == "right" and short:
            real[row, LENGTH - short :] = False
        elif side == "left" and short:
            real[row, :short] = False
    return ids, real


def two_batches(model: EncoderDecoder, side: str) -> tuple[Tensor, Tensor, Tensor]:
    """Source ids padded on `side`, which of them are real, and unpadded target ids.

    Where the head reads the vector at the end token, each source ends with one.
    """
    end = getattr(model.head, "end_id", -1)
    avoid = pad_of(model) | {end}
    src, real = token_batch(model.src_embed.token.num_embeddings, avoid, side)
    tgt, _ = token_batch(model.tgt_embed.token.num_embeddings, avoid, "none", seed=2)
    if end >= 0:
        last = torch.where(real, torch.arange(LENGTH), 0).amax(-1)
        src[torch.arange(BATCH), last] = end
    pad = model.src_embed.pad_id
    return (src if pad is None else src.masked_fill(~real, pad)), real, tgt


def outputs(result: Any) -> Iterator[tuple[str, Tensor]]:
    """Our result as named tensors, the names being the reference's."""
    match result:
        case SpanLogits(start, end):
            yield from (("start_logits", start), ("end_logits", end))
        case PooledOutput(hidden, pooled):
            yield from (("last_hidden_state", hidden), ("pooler_output", pooled))
        case TwoTowerOutput():
            yield from result._asdict().items()
        case DistilledLogits(logits, first, second):
            yield from (("logits", logits), ("cls_logits", first), ("distillation_logits", second))
        case PromptedMaskOutput(masks, iou):
            yield from (("pred_masks", masks), ("iou_scores", iou))
        case StudentT() | Gaussian() | NegativeBinomial():
            yield from result._asdict().items()
        case MaskOutput(logits, masks):
            yield from (("class_queries_logits", logits), ("masks_queries_logits", masks))
        case BoxOutput(logits, boxes):
            yield from (("logits", logits), ("pred_boxes", boxes))
        case BackboneOutput(maps):
            yield from ((f"feature_maps.{n}", one) for n, one in enumerate(maps))
        case Tensor():
            yield "main", result


def theirs(result: Any, name: str) -> Tensor:
    """The reference's tensor of that name; "main" is its first tensor."""
    if name.startswith("feature_maps."):
        maps: Tensor = result["feature_maps"][int(name.rpartition(".")[2])]
        return maps
    if name == "pooler_output" and name not in result:  # the pooled vector, projected
        name = next(key for key in ("text_embeds", "image_embeds") if key in result)
    if name != "main":
        return result[name]
    for key in MAIN:
        if key in result and result[key] is not None:
            return result[key]
    raise AssertionError(f"no main output in {list(result.keys())}")


def worst(ours: Any, reference_result: Any, real: Tensor | None) -> float:
    """The largest difference over all outputs, at real tokens only."""
    gap = 0.0
    for name, mine in outputs(ours):
        other = theirs(reference_result, name)
        assert mine.shape == other.shape, (name, mine.shape, other.shape)
        difference = (mine - other).abs()
        if real is not None and mine.shape[:2] == real.shape:
            difference = difference[real]
        if isinstance(ours, BackboneOutput):  # hidden states without a norm may be large
            difference = difference / max(1.0, float(other.abs().max()))
        gap = max(gap, float(difference.max()))
    return gap


def save_reference(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def text_batch(model: Any, side: str) -> tuple[Tensor, Tensor]:
    """Token ids for a text encoder, and which are real; each row has end tokens if the head reads one."""
    end = getattr(model.head, "end_id", -1)
    avoid = pad_of(model) | {end}
    ids, real = token_batch(model.embed.token.num_embeddings, avoid, side)
    if end >= 0:  # the first of two counts
        ids[:, -4] = ids[:, -3] = end
    return (ids if model.embed.pad_id is None else ids.masked_fill(~real, model.embed.pad_id)), real


def pad_of(model: AnyModel) -> set[int]:
    inputs = [model.src_embed, model.tgt_embed] if isinstance(model, EncoderDecoder) else [model.embed]
    return {m.pad_id for m in inputs if getattr(m, "pad_id", None) is not None}
