"""Tables of positions against the formulas and against what the forward itself used."""

from __future__ import annotations

import math

import pytest
import torch

from glassformer.core import spec
from glassformer.core.positions import alibi_slopes
from glassformer.interpret.outline import describe_stacks
from glassformer.interpret.position_tables import MAX_DISTANCE, position_tensor
from glassformer.interpret.schema import ItemNotFoundError
from tests.interpret.models import bundle, given, trace_of


@pytest.mark.parametrize(
    ("family", "owner", "kind"),
    [
        ("original", "src_embed", "sinusoidal"),
        ("marian", "tgt_embed", "sinusoidal"),
        ("bart", "tgt_embed", "learned"),
        ("gpt2", "embed", "learned"),
        ("vit", "embed", "learned"),
        ("patchtst", "embed", "learned"),
    ],
)
def test_added_tables_are_what_the_forward_added(family: str, owner: str, kind: str) -> None:
    made = bundle(family)
    trace = trace_of(made, given(made))
    added = trace.record[f"{owner}.position"][0]  # (T, D)
    table = position_tensor(made.model, owner, "table")
    assert torch.equal(table[: len(added)], added)
    stack = next(one for one in describe_stacks(made) if one.embed == owner)
    assert (stack.position.kind, stack.position.name) == (kind, f"{owner}.position")
    assert stack.position.max_len == len(table)
    similarity = position_tensor(made.model, owner, "similarity")
    rows = table[:MAX_DISTANCE].double()
    for distance in (0, 1, len(rows) // 2):
        pairs = (rows[: len(rows) - distance] * rows[distance:]).sum(-1).mean()
        assert float(similarity[distance]) == pytest.approx(
            float(pairs / rows.square().sum(-1).mean()), abs=1e-4
        )


@pytest.mark.parametrize("scaling", [None, spec.LinearScaling(factor=4.0)], ids=["plain", "linear"])
def test_rotary_tables_turn_queries_as_the_forward_did(scaling: spec.LinearScaling | None) -> None:
    made = bundle("llama", rope_scaling=scaling)
    trace = trace_of(made, given(made))
    table = position_tensor(made.model, "decoder", "table")  # (L, R)
    half = table.shape[1] // 2
    name = "decoder.blocks.0.self_attn"
    x = trace.record["decoder.blocks.0.norm_self"]
    module = made.model.get_submodule(f"{name}.q_proj")
    with torch.no_grad():
        plain = module(x).view(1, x.shape[1], -1, table.shape[1]).transpose(1, 2)
    left, right = plain.chunk(2, -1)
    cos, sin = table[: x.shape[1], :half], table[: x.shape[1], half:]
    turned = torch.cat((left * cos - right * sin, right * cos + left * sin), -1)
    assert torch.allclose(turned, trace.record[f"{name}.q"], atol=1e-5)
    similarity = position_tensor(made.model, "decoder", "similarity")
    factor = 1 if scaling is None else scaling.factor
    wanted = [math.cos(3 / factor * 10000 ** (-2 * i / (2 * half))) for i in range(half)]
    assert float(similarity[3]) == pytest.approx(sum(wanted) / half, abs=1e-5) and similarity[0] == 1
    with pytest.raises(ItemNotFoundError):
        position_tensor(made.model, "decoder", "table_ahead")


@pytest.mark.parametrize(("family", "stack"), [("t5", "encoder"), ("t5", "decoder"), ("falcon", "decoder")])
def test_biases_by_distance_are_those_the_scores_got(family: str, stack: str) -> None:
    words = {"position": "alibi"} if family == "falcon" else {}
    made = bundle(family, **words)
    trace = trace_of(made, given(made))
    bias = trace.record.attended[f"{stack}.blocks.0.self_attn"].bias[0]  # (H, T, S)
    back = position_tensor(made.model, stack, "table")
    causal = made.model.get_submodule(stack).causal
    ahead = None if causal else position_tensor(made.model, stack, "table_ahead")
    for query in range(bias.shape[1]):
        # a rounded bias depends on where a key stands, so there the first key alone is looked at
        for key in range(bias.shape[2] if family == "t5" else 1):
            if key <= query:
                assert torch.allclose(bias[:, query, key], back[:, query - key], atol=1e-6)
            elif ahead is not None:
                assert torch.allclose(bias[:, query, key], ahead[:, key - query], atol=1e-6)
    if causal:
        with pytest.raises(ItemNotFoundError):
            position_tensor(made.model, stack, "table_ahead")
    if family == "falcon":
        slopes = alibi_slopes(4)
        similarity = position_tensor(made.model, stack, "similarity")
        scale = made.model.get_submodule(f"{stack}.position").scale
        assert float(similarity[5]) == pytest.approx(float((-5 * slopes * scale).exp().mean()), abs=1e-3)


def test_a_model_without_positions_of_its_own_says_so() -> None:
    made = bundle("llama")
    for owner in ("embed", "encoder", "nowhere", ""):
        with pytest.raises(ItemNotFoundError):
            position_tensor(made.model, owner, "table")
