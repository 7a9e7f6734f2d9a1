"""The logit lens, next-token predictions, and the tokens that feed-forward units promote.

The logit lens applies the stack's final norm and the head to the residual stream after each block; after the
last block that is the model's own output. F d_ff, N vectors, D d_model, T positions, V vocabulary or labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.bundle import Bundle
from glassformer.core.feedforward import FeedForward, GatedFeedForward
from glassformer.core.heads import (
    ClassifyHead,
    ClassifyTwiceHead,
    Context,
    LanguageModelHead,
    MaskedLanguageModelHead,
    TokenClassifyHead,
)
from glassformer.core.model import EncoderDecoder, EncoderOnly
from glassformer.core.norms import LayerNorm
from glassformer.errors import InvalidValueError, UnsupportedError
from glassformer.interpret.schema import (
    ItemNotFoundError,
    LensInfo,
    LensLayer,
    NextInfo,
    Prediction,
    UnitInfo,
)
from glassformer.interpret.trace import Trace
from glassformer.tasks.classification import LabelScorer, label_activation, label_names

MAX_LOGITS: Final = 1 << 22  # held at a time while all positions are read
MAX_PREDICTIONS: Final = 1000
MAX_UNIT_TOKENS: Final = 200  # on each side
UNREAD: Final = -1  # in a table: not computed yet


@dataclass(frozen=True, kw_only=True)
class HeadReadout:
    """How to read a model's head as predictions.

    stack: whose vectors the head reads. per: one row of logits per position, or one for the whole input.
    """

    bundle: Bundle
    stack: str
    head: nn.Module
    per: Literal["position", "input"]
    predicts: Literal["tokens", "labels"]

    @property
    def final_norm(self) -> nn.Module | None:
        """The norm between the last block and the head, if any."""
        norm: nn.Module | None = getattr(self.bundle.model, self.stack).final_norm
        return norm

    def sites(self) -> list[str]:
        """The residual stream before the first block and after each."""
        blocks = getattr(self.bundle.model, self.stack).blocks
        path = f"{self.stack}.blocks"
        return [f"{path}.0.resid_in", *(f"{path}.{n}.resid_out" for n in range(len(blocks)))]

    def logits(self, residual: Tensor, context: Context) -> Tensor:
        """The head's logits for a residual (1, N, D), as if no block followed: (N, V), or (1, V)."""
        x = residual if self.final_norm is None else self.final_norm(residual)
        output: Any = self.head(x, context)
        logits: Tensor = output if isinstance(output, Tensor) else output.logits
        return logits[0].float() if logits.dim() == 3 else logits.float()

    def probabilities(self, logits: Tensor) -> Tensor:
        """Logits (V,) as probabilities, by softmax or as the model's labels are defined."""
        if self.predicts == "tokens":
            return logits.softmax(-1)
        return LabelScorer((), label_activation(self.bundle, len(logits))).probabilities(logits)

    def log_probabilities(self, logits: Tensor) -> Tensor | None:
        """Logits (N, V) as log-probabilities (N, M); None for a regression.

        With independent labels, those of each label followed by those of its complement.
        """
        labels = self.predicts == "labels"
        match label_activation(self.bundle, logits.shape[-1]) if labels else "softmax":
            case "softmax":
                return logits.log_softmax(-1)
            case "sigmoid":
                return F.logsigmoid(torch.cat((logits, -logits), -1))
        return None

    def texts(self, ids: Sequence[int]) -> list[str]:
        """Each token or label as readable text."""
        if self.predicts == "labels":
            head: Any = self.bundle.spec.head
            labels = label_names(self.bundle, head.num_labels)
            return [str(labels[index]) for index in ids]
        tokenizer = self.bundle.tokenizer
        if tokenizer is None:
            return [f"<id {index}>" for index in ids]
        side: Literal["source", "target"] = "target" if self.stack == "decoder" else "source"
        return [tokenizer.pieces([index], side=side)[0] for index in ids]

    def top(self, logits: Tensor, count: int) -> tuple[Prediction, ...]:
        """The `count` best predictions of a row of logits (V,)."""
        if count < 1:
            raise InvalidValueError("count", count, "at least 1")
        values, ids = logits.topk(min(count, MAX_PREDICTIONS, len(logits)))
        texts, probability = self.texts(ids.tolist()), self.probabilities(logits)[ids].tolist()
        rows = zip(ids.tolist(), texts, probability, values.tolist(), strict=True)
        return tuple(Prediction(id=n, text=t, probability=p, logit=v) for n, t, p, v in rows)


def head_readout(bundle: Bundle) -> HeadReadout:
    """How to read the head of a model that predicts tokens or labels."""
    model: Any = bundle.model
    stack = "encoder" if isinstance(model, EncoderOnly) else "decoder"
    match head := model.head:
        case LanguageModelHead() | MaskedLanguageModelHead():
            return HeadReadout(bundle=bundle, stack=stack, head=head, per="position", predicts="tokens")
        case TokenClassifyHead():
            return HeadReadout(bundle=bundle, stack=stack, head=head, per="position", predicts="labels")
        case ClassifyHead() | ClassifyTwiceHead():
            return HeadReadout(bundle=bundle, stack=stack, head=head, per="input", predicts="labels")
    raise UnsupportedError(bundle.display_name, "predictions of tokens or labels")


@torch.inference_mode()
def logit_lens(trace: Trace, position: int | None = None, top: int = 10) -> LensInfo:
    """The predictions after each layer at one position, by default the last.

    A model that classifies its whole input has one answer for all positions.
    """
    readout = head_readout(trace.bundle)
    at = _check_position(trace, readout.stack, position)
    context = _head_context(trace)

    def logits_at(site: str) -> Tensor:
        residual = trace.record[site]
        if readout.per == "position":
            return readout.logits(residual[:, at : at + 1], Context())[0]
        return readout.logits(residual, context)[0]

    sites = readout.sites()
    final = int(logits_at(sites[-1]).argmax())
    layers = []
    for site in sites:
        logits = logits_at(site)
        logs = readout.log_probabilities(logits[None])
        layers.append(
            LensLayer(
                site=site,
                words=readout.top(logits, top),
                entropy=None if logs is None else float(torch.special.entr(logs.exp()).sum()),
                rank_of_final=int((logits > logits[final]).sum()) + 1,
            )
        )
    return LensInfo(position=at, stack=readout.stack, layers=tuple(layers))


@torch.inference_mode()
def lens_table(trace: Trace, stack: str, positions: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
    """The best token after each layer at each position (layers + 1, T), and its probability.

    Only the given positions (by default all) are guaranteed to be computed, since each costs a run of the
    head per layer. Results are stored with the trace.
    """
    readout = head_readout(trace.bundle)
    if readout.stack != stack or readout.per != "position":
        known = [readout.stack] if readout.per == "position" else []
        raise ItemNotFoundError("logit lens", stack, known)
    sites = readout.sites()
    length = trace.record[sites[0]].shape[1]
    names = f"{stack}.lens.top", f"{stack}.lens.prob"
    if names[0] not in trace.derived:
        trace.derived[names[1]] = torch.zeros(len(sites), length)
        trace.derived[names[0]] = torch.full((len(sites), length), UNREAD, dtype=torch.int32)
    top, prob = trace.derived[names[0]], trace.derived[names[1]]
    missing = [at for at in (range(length) if positions is None else positions) if top[0, at] == UNREAD]
    if not missing:
        return top, prob
    rows = max(1, MAX_LOGITS // readout.logits(trace.record[sites[0]][:, :1], Context()).shape[-1])
    for part in torch.tensor(missing).split(rows):
        for n, site in reversed(list(enumerate(sites))):  # row 0 comes last: it marks a position as computed
            residual = trace.record[site]
            logits = readout.logits(residual[:, part.to(residual.device)], Context())  # (rows, V)
            best = logits.max(-1)
            prob[n, part] = (best.values - logits.logsumexp(-1)).exp().cpu()
            top[n, part] = best.indices.int().cpu()
    return top, prob


@torch.inference_mode()
def next_tokens(trace: Trace, position: int | None = None, count: int = 50) -> NextInfo:
    """The model's own best predictions at one position, by default the last."""
    readout = head_readout(trace.bundle)
    at = _check_position(trace, readout.stack, position)
    logits = trace.record["head.logits"][0].float()
    logits = logits[at] if readout.per == "position" else logits
    return NextInfo(
        position=at,
        vocabulary=len(logits),
        logsumexp=float(logits.logsumexp(-1)),
        words=readout.top(logits, count),
        logits="head.logits",
    )


def _head_context(trace: Trace) -> Context:
    """What the head received besides the vectors."""
    inputs = trace.prepared.inputs
    decoder = isinstance(trace.bundle.model, EncoderDecoder)
    mask = inputs.get("tgt_mask" if decoder else "mask")
    ids = inputs.get("src", inputs.get("ids", inputs.get("inputs")))
    return Context(ids=ids, padding=mask if isinstance(mask, Tensor) else getattr(mask, "padding", None))


def _check_position(trace: Trace, stack: str, position: int | None) -> int:
    length = int(trace.record[f"{stack}.blocks.0.resid_in"].shape[1])
    if position is None:
        return length - 1
    if not 0 <= position < length:
        raise InvalidValueError("position", position, f"0 to {length - 1}")
    return position


@torch.inference_mode()
def unit_tokens(trace: Trace, ffn: str, unit: int, top: int = 12) -> UnitInfo:
    """The tokens whose logits a feed-forward unit raises and lowers most.

    The unit's output vector (D,) goes through the linear part of the norms that follow (centred, weighted)
    and the head; nonlinearities and later blocks are ignored. Empty if the head predicts no tokens or does
    not read this stack.
    """
    model: Any = trace.bundle.model
    try:
        layer = model.get_submodule(ffn) if ffn else None
    except AttributeError:
        layer = None
    if not isinstance(layer, FeedForward | GatedFeedForward):
        raise ItemNotFoundError("feed-forward layer", ffn)
    if not 0 <= unit < layer.down.in_features:
        raise InvalidValueError("unit", unit, f"0 to {layer.down.in_features - 1}")
    if not isinstance(model.head, LanguageModelHead | MaskedLanguageModelHead):
        return UnitInfo()
    readout = head_readout(trace.bundle)
    if readout.stack != ffn.split(".")[0]:
        return UnitInfo()
    logits = _unit_logits(readout, ffn, layer.down.weight[:, unit].float())

    def extreme(largest: bool) -> tuple[Prediction, ...]:
        values, ids = logits.topk(min(top, MAX_UNIT_TOKENS, len(logits)), largest=largest)
        rows = zip(ids.tolist(), readout.texts(ids.tolist()), values.tolist(), strict=True)
        return tuple(Prediction(id=n, text=text, logit=value) for n, text, value in rows)

    return UnitInfo(promotes=extreme(True), suppresses=extreme(False))


def _unit_logits(readout: HeadReadout, ffn: str, vector: Tensor) -> Tensor:
    """What a feed-forward output (D,) adds to the logits (V,)."""
    block: Any = readout.bundle.model.get_submodule(ffn.rpartition(".")[0])
    head: Any = readout.head
    if block.wiring == "post":
        vector = _linear_part(block.norm_ffn, vector)
    if readout.final_norm is not None:
        vector = _linear_part(readout.final_norm, vector)
    if isinstance(head, MaskedLanguageModelHead):
        vector = _linear_part(head.norm, head.dense.weight.float() @ vector)
    else:
        vector = head.transform(vector)
    logits: Tensor = head.weight.float() @ vector
    return logits


def _linear_part(norm: nn.Module, vector: Tensor) -> Tensor:
    """A norm without its division: centred if it centres, times its weight."""
    if isinstance(norm, LayerNorm | nn.LayerNorm):
        vector = vector - vector.mean()
    weight = getattr(norm, "weight", None)
    return vector if weight is None else vector * weight.float()
