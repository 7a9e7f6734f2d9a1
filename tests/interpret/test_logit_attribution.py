"""Direct logit attribution against slopes of the logit if one component is scaled and the rest is frozen."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glassformer.core.norms import LayerNorm, RMSNorm
from glassformer.core.observe import Observer
from glassformer.errors import InvalidValueError, UnsupportedError
from glassformer.interpret.logit_attribution import attribute_logit
from glassformer.interpret.outline import describe_stacks
from glassformer.interpret.trace import Trace
from tests.interpret.models import example_values, tiny_bundle, trace_of

FAMILIES = ("original", "t5", "bart", "gpt2", "llama", "gemma2", "gpt_neox", "falcon", "bert", "vit", "detr")
OTHERS = ("marian", "palm", "electra", "deberta", "modernbert", "dinov2", "swin", "yolos", "vilt")


class Frozen(nn.Module):
    """A norm with the scale that it has at x."""

    def __init__(self, norm: Any, x: Tensor) -> None:
        super().__init__()
        self.norm = norm
        with torch.no_grad():
            if isinstance(norm, RMSNorm):
                self.scale = (x.pow(2).mean(-1, keepdim=True) + norm.eps).sqrt()
            else:
                self.scale = (x.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.norm, RMSNorm):
            return x / self.scale * self.norm.scale
        y = (x - x.mean(-1, keepdim=True)) / self.scale * self.norm.weight
        return y if self.norm.bias is None else y + self.norm.bias


def freeze_norms(trace: Trace, stack: str) -> Any:
    """A copy of the model whose norms of one stack keep their scales."""
    model = copy.deepcopy(trace.bundle.model)
    inputs: dict[str, Tensor] = {}
    norms = [(n, m) for n, m in model.named_modules() if isinstance(m, LayerNorm | RMSNorm) and stack in n]

    def remember(name: str) -> Callable[..., None]:
        return lambda module, given, output: inputs.__setitem__(name, given[0].detach())

    hooks = [module.register_forward_hook(remember(name)) for name, module in norms]
    with torch.no_grad():
        model(**trace.prepared.inputs)
    for hook in hooks:
        hook.remove()
    for name, module in norms:
        owner, _, attribute = name.rpartition(".")
        if "q_norm" not in name and "k_norm" not in name:
            setattr(model.get_submodule(owner), attribute, Frozen(module, inputs[name]))
    return model


def scaled_head(head: int, scale: float) -> Callable[[Tensor], Tensor]:
    def edit(x: Tensor) -> Tensor:
        x = x.clone()
        x[:, head] *= scale
        return x

    return edit


@pytest.mark.parametrize("family", FAMILIES)
def test_contributions_equal_the_slopes_of_the_logit(family: str) -> None:
    bundle = tiny_bundle(family)
    trace = trace_of(bundle, example_values(bundle))
    result = attribute_logit(trace)
    stack = describe_stacks(bundle)[-1]
    model, record = freeze_norms(trace, f"{stack.path}."), trace.record
    written = [
        name
        for name in record
        if name.startswith(f"{stack.path}.blocks.") and name.endswith((".ffn.down", "_attn.out"))
    ]

    def logit(edits: dict[str, Any]) -> float:
        with torch.no_grad():
            output = model(**trace.prepared.inputs, obs=Observer((), edits))
        logits = (output if isinstance(output, Tensor) else output.logits)[0].double()
        return float((logits if result.position is None else logits[result.position])[result.prediction.id])

    plain = logit({})
    assert plain == pytest.approx(result.value, abs=1e-4)
    step = 1e-2
    for part in result.contributions:
        if part.kind not in ("head", "ffn"):
            continue
        own = f"{part.name}.out" if part.kind == "head" else f"{part.name}.down"
        later = written[written.index(own) + 1 :]
        edits: dict[str, Any] = {name: lambda x, name=name: record[name] for name in later}
        slopes = []
        for scale in (1 + step, 1 - step):
            edit: Any = scaled_head(part.head, scale) if part.head is not None else lambda x, s=scale: x * s
            slopes.append(logit({**edits, f"{part.name}.heads" if part.kind == "head" else own: edit}))
        assert (slopes[0] - slopes[1]) / (2 * step) == pytest.approx(part.value, abs=2e-3, rel=2e-2)


@pytest.mark.parametrize("family", FAMILIES + OTHERS)
def test_contributions_sum_exactly_to_the_logit(family: str) -> None:
    bundle = tiny_bundle(family)
    trace = trace_of(bundle, example_values(bundle))
    logits = trace.record["head.logits"][0].double()
    result = attribute_logit(trace)
    row = logits if result.position is None else logits[result.position]
    assert result.value == float(row[result.prediction.id])
    assert sum(part.value for part in result.contributions) == pytest.approx(result.value, abs=1e-9)
    other = int(row.argmin())
    against = attribute_logit(trace, result.position, result.prediction.id, against=other)
    assert against.value == float(row[result.prediction.id] - row[other])
    assert sum(part.value for part in against.contributions) == pytest.approx(against.value, abs=1e-9)
    if family in ("t5", "gpt2", "llama", "gpt_neox"):  # a linear head without bias adds nothing itself
        assert abs(result.contributions[-1].value) < 1e-5


def test_models_without_logits_and_unknown_outputs_are_refused() -> None:
    sentence = tiny_bundle("sentence")
    with pytest.raises(UnsupportedError):
        attribute_logit(trace_of(sentence, example_values(sentence)))
    trace = trace_of(tiny_bundle("gpt2"), {"text": "the sea"})
    for options in ({"position": 99}, {"id": 10**6}, {"against": -1}):
        with pytest.raises(InvalidValueError):
            attribute_logit(trace, **options)
