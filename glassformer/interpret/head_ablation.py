"""Head ablation: how much the output changes if one attention head is switched off.

B rows, H heads, N ablated copies, T positions, K head size, V vocabulary or labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from glassformer.core.heads import SpanLogits
from glassformer.core.inputs import ModelInputs
from glassformer.core.observe import Observer
from glassformer.errors import UnsupportedError
from glassformer.interpret import schema
from glassformer.interpret.comparison import kl_divergence
from glassformer.interpret.readout import head_readout
from glassformer.interpret.trace import Trace
from glassformer.interpret.views import view_of

MAX_NUMBERS: Final = 1 << 25  # output values per forward pass; heads are ablated in batches below it


@torch.inference_mode()
def ablate_heads(trace: Trace, attention: str) -> schema.HeadAblation:
    """Switch off each head of an attention layer in turn and measure the effect on the output.

    The copies run as one batch: copy n of the input has head n zeroed. A generated target is kept, so the
    effects of different heads are comparable.
    """
    if trace.interventions:
        raise UnsupportedError("a trace with interventions", "head ablation")
    if attention not in trace.record.attention_contexts:
        raise schema.ItemNotFoundError("attention", attention, trace.record.attentions())
    heads = trace.record[f"{attention}.q"].shape[1]
    before = _output(trace.record.output)
    most = max(1, MAX_NUMBERS // max(before.numel(), 1))
    effects: list[float] = []
    for part in torch.arange(heads).split(most):
        after = _ablated_output(trace, attention, part.tolist())
        measure, values = _effects(trace, before, after)
        effects += values.tolist()
    return schema.HeadAblation(attention=attention, measure=measure, effects=tuple(effects))


def _ablated_output(trace: Trace, attention: str, heads: Sequence[int]) -> Tensor:
    """Run a batch with one copy of the input per head, in which that head is zeroed; output (N, ...)."""
    copies = len(heads)
    inputs = {name: _repeat(value, copies) for name, value in trace.prepared.inputs.items()}

    def ablate(x: Tensor) -> Tensor:  # (N * B, H, T, K)
        x = x.clone()
        for copy, head in zip(x.view(copies, -1, *x.shape[1:]), heads, strict=True):
            copy[:, head] = 0
        return x

    model: Any = trace.bundle.model
    return _output(model(**inputs, obs=Observer((), {f"{attention}.heads": ablate})))


def _repeat(inputs: ModelInputs, copies: int) -> ModelInputs:
    """Return the inputs with each row repeated."""
    if isinstance(inputs, Tensor):
        return inputs.repeat_interleave(copies, 0)
    tensors = {name: value for name, value in vars(inputs).items() if isinstance(value, Tensor)}
    repeated: Any = {name: value.repeat_interleave(copies, 0) for name, value in tensors.items()}
    return replace(inputs, **repeated)


def _output(output: Any) -> Tensor:
    """Return the main tensor of a model output: logits, embeddings, span logits or the mean forecast."""
    if isinstance(output, Tensor):
        return output.float()
    if isinstance(output, SpanLogits):
        return torch.stack(output, -1).float()
    named: dict[str, Tensor] = output._asdict()
    if "logits_per_image" in named:  # of each image and its text
        return named["logits_per_image"].diagonal()[:, None].float()
    mean: Tensor | None = getattr(output, "mean", None)  # of a predicted distribution
    return (named[min({"logits", "pooled"} & {*named})] if mean is None else mean).float()


def _effects(trace: Trace, before: Tensor, after: Tensor) -> tuple[schema.AblationMeasure, Tensor]:
    """Compare outputs (1, ...) and (N, ...); return the name of the measure and the effects (N,)."""
    try:
        readout = head_readout(trace.bundle)
        p, q = readout.log_probabilities(before), readout.log_probabilities(after)
    except UnsupportedError:
        p = q = None
    if p is None or q is None:
        return "difference", (after - before).abs().flatten(1).mean(-1)
    if (at := view_of(trace.bundle).main_position(trace.outcome)) is not None:
        p, q = p[:, at], q[:, at]
    return "kl", kl_divergence(p, q).flatten(1).mean(-1) if q.dim() > 2 else kl_divergence(p, q)
