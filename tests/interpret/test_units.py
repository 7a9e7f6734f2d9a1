"""What a unit promotes is what its vector says to the head."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glassformer.errors import InvalidValueError
from glassformer.interpret.logit_lens import unit_tokens
from glassformer.interpret.schema import ItemNotFoundError, UnitInfo
from tests.interpret.small import drawn, inputs_for, traced


def pressed(norm: Any, vector: Tensor) -> Tensor:
    """What a norm makes of a vector so long that nothing else counts, its own division taken back."""
    centred = vector - vector.mean() if isinstance(norm, nn.LayerNorm) else vector
    made: Tensor = norm(vector * 1e5) - norm(torch.zeros_like(vector))
    return made * centred.square().mean().sqrt()


@pytest.mark.parametrize("family", ["gpt2", "llama", "t5", "original", "bart", "bert"])
@torch.no_grad()
def test_a_units_words_are_what_its_vector_says_through_the_norms_and_the_head(family: str) -> None:
    model = drawn(family)
    trace = traced(model, inputs_for(model))
    stack: Any = model.get_submodule(name := "encoder" if family == "bert" else "decoder")
    ffn = f"{name}.blocks.1.ffn"
    vector = stack.blocks[1].ffn.down.weight[:, 3]
    if stack.blocks[1].wiring == "post":
        vector = pressed(stack.blocks[1].norm_ffn, vector)
    if stack.final_norm is not None:
        vector = pressed(stack.final_norm, vector)
    head: Any = model.head
    if family == "bert":
        vector = pressed(head.norm, head.dense.weight @ vector)
    scores = head.weight @ vector * getattr(head, "scale", 1.0)
    told = unit_tokens(trace, ffn, 3, top=5)
    for side, best in (("promotes", scores.topk(5)), ("suppresses", scores.topk(5, largest=False))):
        assert [word.id for word in getattr(told, side)] == best.indices.tolist()
        assert [word.logit for word in getattr(told, side)] == pytest.approx(best.values.tolist(), rel=1e-3)


def test_a_stack_the_head_never_sees_and_a_head_without_words_name_nothing() -> None:
    model = drawn("original")
    trace = traced(model, inputs_for(model))
    nothing = UnitInfo()
    assert unit_tokens(trace, "encoder.blocks.0.ffn", 0) == nothing
    picture = drawn("vit")
    assert unit_tokens(traced(picture, inputs_for(picture)), "encoder.blocks.0.ffn", 0) == nothing
    with pytest.raises(ItemNotFoundError):
        unit_tokens(trace, "decoder.blocks.0.self_attn", 0)
    with pytest.raises(InvalidValueError):
        unit_tokens(trace, "decoder.blocks.0.ffn", 99999)
