"""The logit lens, next-token predictions, and the tokens that feed-forward units promote.

The logit lens applies the stack's final norm and the head to the residual stream after each block; after the
last block that is the model's own output. D d_model, T positions, V vocabulary or labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from glassformer.core.feedforward import FeedForward
from glassformer.core.heads import HeadContext, MaskedLanguageModelHead
from glassformer.core.inputs import tensor_of
from glassformer.core.masks import Mask
from glassformer.errors import InvalidValueError, UnsupportedError
from glassformer.interpret import schema
from glassformer.interpret.outline import find_submodule, input_names
from glassformer.interpret.readout import HeadReadout, head_readout
from glassformer.interpret.trace import Trace

MAX_LOGITS: Final = 1 << 22  # in memory at a time
UNREAD: Final = -1  # in a table: not computed yet


@torch.inference_mode()
def logit_lens(trace: Trace, position: int | None = None, top: int = 10) -> schema.LensInfo:
    """Return the predictions after each layer at one position, by default the last.

    A model that classifies its whole input has the same prediction at all positions.
    """
    readout = head_readout(trace.bundle)
    at = _check_position(trace, readout.stack.path, position)
    part, context = slice(at, at + 1), HeadContext()
    if readout.whole_input:
        part, context = slice(None), head_context(trace)
    rows = {site: readout.logits(trace.record[site][:, part], context)[0] for site in readout.sites()}
    final = int(rows[readout.sites()[-1]].argmax())
    layers = []
    for site, logits in rows.items():
        logs = readout.log_probabilities(logits[None])
        layers.append(
            schema.LensLayer(
                site=site,
                predictions=readout.top(logits, top),
                entropy=None if logs is None else float(torch.special.entr(logs.exp()).sum()),
                rank_of_final=int((logits > logits[final]).sum()) + 1,
            )
        )
    return schema.LensInfo(position=at, stack=readout.stack.name, layers=tuple(layers))


@torch.inference_mode()
def lens_table(trace: Trace, stack: str, positions: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
    """Return the top token after each layer at each position (layers + 1, T), and its probability.

    Only the given positions (by default all) are guaranteed to be computed, because each position needs one
    evaluation of the head per layer. Results are stored with the trace.
    """
    readout = head_readout(trace.bundle)
    if readout.stack.name != stack or readout.whole_input:
        known = [] if readout.whole_input else [readout.stack.name]
        raise schema.ItemNotFoundError("logit lens", stack, known)
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
    rows = max(1, MAX_LOGITS // readout.logits(trace.record[sites[0]][:, :1], HeadContext()).shape[-1])
    for part in torch.tensor(missing).split(rows):
        for n, site in reversed(list(enumerate(sites))):  # row 0 last: it marks a position as computed
            residual = trace.record[site]
            logits = readout.logits(residual[:, part.to(residual.device)], HeadContext())  # (rows, V)
            best = logits.max(-1)
            prob[n, part] = (best.values - logits.logsumexp(-1)).exp().cpu()
            top[n, part] = best.indices.int().cpu()
    return top, prob


@torch.inference_mode()
def next_tokens(trace: Trace, position: int | None = None, top: int = 50) -> schema.NextTokenInfo:
    """Return the model's top predictions at one position, by default the last."""
    readout = head_readout(trace.bundle)
    at = _check_position(trace, readout.stack.path, position)
    logits = trace.record["head.logits"][0].float()
    logits = logits if readout.whole_input else logits[at]
    return schema.NextTokenInfo(
        position=at,
        vocab_size=len(logits),
        logsumexp=float(logits.logsumexp(-1)),
        predictions=readout.top(logits, top),
        logits="head.logits",
    )


def head_context(trace: Trace, sequence: str | None = None) -> HeadContext:
    """Return the context that the head received in addition to the hidden states of a sequence.

    sequence: by default that of the model's only head; each tower has its own
    """
    inputs = trace.prepared.inputs
    names = input_names(trace.bundle.model)
    argument = names[sequence].argument if sequence in names else next(iter(inputs))
    first = inputs[argument]
    mask = inputs.get("mask", getattr(inputs.get("tgt", first), "mask", None))
    grid = trace.sequences[-1].grid if trace.sequences else None
    return HeadContext(ids=tensor_of(first), padding=Mask.of(mask, padding=True).padding, grid=grid)


def _check_position(trace: Trace, stack: str, position: int | None) -> int:
    length = int(trace.record[f"{stack}.blocks.0.resid_in"].shape[1])
    position = length - 1 if position is None else position
    if not 0 <= position < length:
        raise InvalidValueError("position", position, f"0 to {length - 1}")
    return position


@torch.inference_mode()
def unit_tokens(trace: Trace, ffn: str, unit: int, top: int = 12) -> schema.FeedForwardUnitInfo:
    """Return the tokens whose logits a feed-forward unit raises and lowers most.

    The unit's output vector (D,) is passed through the linear part of the following norms (centering,
    scaling) and the head; nonlinearities and later blocks are ignored. Empty if the head predicts no tokens
    or does not read this stack.
    """
    layer = find_submodule(trace.bundle.model, ffn, (FeedForward,))
    if layer is None:
        raise schema.ItemNotFoundError("feed-forward layer", ffn)
    if not 0 <= unit < layer.down.in_features:
        raise InvalidValueError("unit", unit, f"0 to {layer.down.in_features - 1}")
    try:
        readout = head_readout(trace.bundle)
    except UnsupportedError:
        return schema.FeedForwardUnitInfo()
    if readout.labels is not None or not ffn.startswith(f"{readout.stack.path}."):
        return schema.FeedForwardUnitInfo()
    logits = _unit_logits(readout, ffn, layer.down.weight[:, unit].float())

    def extreme(largest: bool) -> tuple[schema.Prediction, ...]:
        values, ids = logits.topk(min(top, len(logits)), largest=largest)
        rows = zip(ids.tolist(), readout.texts(ids.tolist()), values.tolist(), strict=True)
        return tuple(schema.Prediction(id=n, text=text, logit=value) for n, text, value in rows)

    return schema.FeedForwardUnitInfo(promotes=extreme(True), suppresses=extreme(False))


def _unit_logits(readout: HeadReadout, ffn: str, vector: Tensor) -> Tensor:
    """Return the contribution of a feed-forward output (D,) to the logits (V,)."""
    model: Any = readout.bundle.model
    block, head = model.get_submodule(ffn.rpartition(".")[0]), model.head
    norms: tuple[Any, ...] = (
        block.norm_ffn if block.wiring == "post" else block.norm_ffn_out,
        readout.final_norm,
    )
    for one in norms:
        vector = vector if one is None else one.linear_part(vector)
    if isinstance(head, MaskedLanguageModelHead):
        norm: Any = head.norm
        vector = norm.linear_part(head.dense.weight.float() @ vector)
    else:
        vector = head.transform(vector)
    logits: Tensor = head.weight.float() @ vector
    return logits
