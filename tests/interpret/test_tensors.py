"""Tensors by name and slice, against numpy and the definition of attention; hostile slices are refused."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given as drawing
from hypothesis import strategies as st
from torch.nn import functional as F

from glassformer.core import spec
from glassformer.core.observe import Record
from glassformer.core.positions import alibi_slopes
from glassformer.errors import InvalidValueError, ShapeError
from glassformer.interpret import tensors
from glassformer.interpret.outline import describe_stacks
from glassformer.interpret.schema import ItemNotFoundError, TooLargeError
from glassformer.interpret.tensors import MAX_DISTANCE, parse_slice, position_tensor, read_tensor
from glassformer.interpret.trace import Trace
from tests.interpret.models import TEXT, example_values, tiny_bundle, trace_of


@cache
def traced(family: str, text: str = TEXT) -> Trace:
    bundle = tiny_bundle(family)
    return trace_of(
        bundle,
        {**example_values(bundle), "text": text}
        if "text" in example_values(bundle)
        else example_values(bundle),
    )


def numbers(trace: Trace, name: str, slices: str = "", **options: int | Trace | None) -> np.ndarray:
    result = read_tensor(trace, name, slices, **options)  # type: ignore[arg-type]
    return np.frombuffer(result.data(), np.dtype(result.dtype).newbyteorder("<")).reshape(result.shape)


@st.composite
def _slices(draw: st.DrawFn) -> tuple[tuple[int, ...], str, tuple[int | slice, ...]]:
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    items: list[int | slice] = []
    spans = []
    for size in shape[: draw(st.integers(0, len(shape)))]:
        if draw(st.booleans()):
            items.append(draw(st.integers(0, size - 1)))
            spans.append(f" {items[-1]}")
            continue
        begin = draw(st.integers(0, size - 1))
        end, step = draw(st.integers(begin + 1, size)), draw(st.integers(1, 7))
        items.append(slice(begin, end, step))
        first, last = "" if begin == 0 and draw(st.booleans()) else begin, "" if end == size else end
        spans.append(f"{first}:{last}:{step}" if step > 1 else f"{first}:{last}")
    return shape, ",".join(spans), tuple(items)


@drawing(_slices())
def test_slices_match_numpy(case: tuple[tuple[int, ...], str, tuple[int | slice, ...]]) -> None:
    shape, text, items = case
    array = np.arange(math.prod(shape)).reshape(shape)
    result = parse_slice(text, shape)
    assert np.array_equal(array[result], array[items])


HOSTILE = (
    "9",
    "-1",
    "1,1,1,1",
    "a",
    "0:0",
    "2:1",
    "0:9",
    "::0",
    "1.5",
    "0,",
    ",",
    ":,:,:,:",
    "0x1",
    "1e3",
    "\uff11",
    "9" * 500,
)


@pytest.mark.parametrize("text", HOSTILE)
def test_invalid_slices_are_rejected(text: str) -> None:
    with pytest.raises(InvalidValueError):
        parse_slice(text, (3, 3, 3))


@pytest.mark.parametrize("family", ["original", "mistral", "falcon", "t5", "patchtst"])
def test_attention_matrices_match_the_definition_for_requested_heads(family: str) -> None:
    trace = traced(family)
    for about in trace.attentions():
        record, name = trace.record, about.name
        q, k = record[f"{name}.q"], record[f"{name}.k"]
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        dot = q @ k.transpose(-1, -2)
        used = record.attention_contexts[name]
        scaled = dot * about.scale + (0 if used.bias is None else used.bias)
        places = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None]
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
        if about.causal:
            mask &= places[1] <= places[0]
        if about.window is not None:
            mask &= places[1] > places[0] - about.window
        masked = scaled.masked_fill(~mask, -torch.inf)
        wanted = {"dot": dot, "scaled": scaled, "masked": masked, "weights": masked.softmax(-1)}
        for stage, whole in wanted.items():
            assert np.allclose(numbers(trace, f"{name}.{stage}"), whole.numpy(), atol=1e-5)
            one = numbers(trace, f"{name}.{stage}", "0,1")
            assert np.allclose(one, whole[0, 1].numpy(), atol=1e-5)
            some = numbers(trace, f"{name}.{stage}", ":,1:3,0:2,::2")
            assert np.allclose(some, whole[:, 1:3, 0:2, ::2].numpy(), atol=1e-5)


@pytest.mark.parametrize("family", ["original", "mistral", "falcon"])
def test_circuits_of_heads_are_the_products_of_their_weights(family: str) -> None:
    trace = traced(family)
    for about in trace.attentions():
        attention = trace.bundle.model.get_submodule(about.name)
        ov, qk = (torch.tensor(numbers(trace, f"{about.name}.{circuit}")) for circuit in ("ov", "qk"))
        x = torch.randn(1, 1, ov.shape[1])  # one key gets all attention: the output is the sum of the heads
        with torch.no_grad():
            options = {} if about.kind == "self" else {"k_v": x}
            moved = attention(x, **options) - attention(torch.zeros_like(x), **_zeros(options))
        assert torch.allclose(moved[0], x[0] @ ov.sum(0), atol=1e-5)
        for head in range(about.heads):
            shared = head * about.kv_heads // about.heads
            q = attention.q_proj.weight.unflatten(0, (about.heads, -1))[head]
            k = attention.k_proj.weight.unflatten(0, (about.kv_heads, -1))[shared]
            assert torch.allclose(qk[head], q.T @ k, atol=1e-5)
            for circuit, matrix in (("ov", ov), ("qk", qk)):
                alone = numbers(trace, f"{about.name}.{circuit}", f"{head},2:5,::3")
                assert np.allclose(alone, matrix[head, 2:5, ::3], atol=1e-6)
                values = numbers(trace, f"{about.name}.{circuit}_values", f"{head}")
                whole = torch.linalg.svdvals(matrix[head])
                assert np.allclose(values, whole[: len(values)], atol=1e-4)
                assert float(whole[len(values) :].sum()) < 1e-3  # the rank is at most the width of a head


def _zeros(options: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.zeros_like(value) for name, value in options.items()}


def test_one_head_is_computed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = traced("gpt2")
    requested: list[int | None] = []
    real = Record.weights

    def counted(record: Record, name: str, head: int | None = None) -> torch.Tensor:
        requested.append(head)
        return real(record, name, head)

    monkeypatch.setattr(Record, "weights", counted)
    read_tensor(trace, "decoder.blocks.0.self_attn.weights", "0,2")
    read_tensor(trace, "decoder.blocks.0.self_attn.weights", "0,1:3")
    assert requested == [2, 1, 2]


def test_pooling_keeps_maxima_within_the_limit() -> None:
    trace = traced("gpt2", "the old captain sang to the sea")
    whole = numbers(trace, "decoder.blocks.1.self_attn.masked", "0")
    for most in (1, 2, 3, 7, 100):
        small = numbers(trace, "decoder.blocks.1.self_attn.masked", "0", pool=most)
        assert max(small.shape[1:]) <= most and len(small) == len(whole)
        assert np.array_equal(small.max((1, 2)), whole.max((1, 2)))
        patch = -(-whole.shape[-1] // most)
        wanted = F.pad(torch.from_numpy(whole.copy()), (0, (-whole.shape[-1]) % patch) * 2, value=-math.inf)
        wanted = wanted.unfold(1, patch, patch).unfold(2, patch, patch).amax((-1, -2))
        assert np.array_equal(small, wanted.numpy())
    assert numbers(trace, "embed.out", "0,0", pool=5).shape == (5,)


def test_differences_need_equal_shapes() -> None:
    one, other, longer = (
        traced("gpt2", "abcdef"),
        traced("gpt2", "abcxyz"),
        traced("gpt2", "abcdefghi"),
    )
    name = "decoder.blocks.0.self_attn.masked"
    result = numbers(one, name, "0,1", minus=other)
    mine, theirs = numbers(one, name, "0,1"), numbers(other, name, "0,1")
    hidden = np.isinf(mine)
    assert hidden.any() and not result[hidden].any()
    assert np.array_equal(result[~hidden], mine[~hidden] - theirs[~hidden]) and result.any()
    with pytest.raises(ShapeError):
        read_tensor(one, name, minus=longer)
    with pytest.raises(InvalidValueError):
        read_tensor(longer, "embed.out", f"0,{len(longer.sequences[0]) - 1}", minus=one)


def test_missing_and_too_large_tensors_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = traced("gpt2")
    for name in (
        "nothing",
        "decoder.blocks.9.self_attn.weights",
        "decoder.growths",
        "embed.position.waves",
        "",
    ):
        with pytest.raises(ItemNotFoundError):
            read_tensor(trace, name)
    monkeypatch.setattr(tensors, "MAX_BYTES", 1000)
    with pytest.raises(TooLargeError):
        read_tensor(trace, "head.logits")
    assert read_tensor(trace, "head.logits", "0,0,0:200").shape == (200,)
    monkeypatch.setattr(tensors, "MAX_COMPUTED", 1000)
    with pytest.raises(TooLargeError):
        read_tensor(trace, "decoder.blocks.0.self_attn.weights", pool=1)


@pytest.mark.parametrize("family", ["bart", "vit", "patchtst"])
def test_growth_is_the_norm_of_the_residual_stream(family: str) -> None:
    trace = traced(family)
    sites = trace.info().residual_sites
    for stack in describe_stacks(trace.bundle):
        result = numbers(trace, f"{stack.name}.growth")
        wanted = [np.linalg.norm(trace.record[n].numpy(), axis=-1).mean(0) for n in sites[stack.name]]
        assert np.allclose(result, wanted, atol=1e-4)


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
def test_position_tables_equal_what_the_forward_adds(family: str, owner: str, kind: str) -> None:
    bundle = tiny_bundle(family)
    trace = trace_of(bundle, example_values(bundle))
    added = trace.record[f"{owner}.position"][0]  # (T, D)
    table = position_tensor(bundle.model, owner, "table")
    assert torch.equal(table[: len(added)], added)
    stack = next(one for one in describe_stacks(bundle) if one.embed == owner)
    assert (stack.position.kind, stack.position.name) == (kind, f"{owner}.position")
    assert stack.position.max_len == len(table)
    similarity = position_tensor(bundle.model, owner, "similarity")
    rows = table[:MAX_DISTANCE].double()
    for distance in (0, 1, len(rows) // 2):
        pairs = (rows[: len(rows) - distance] * rows[distance:]).sum(-1).mean()
        assert float(similarity[distance]) == pytest.approx(
            float(pairs / rows.square().sum(-1).mean()), abs=1e-4
        )


@pytest.mark.parametrize("scaling", [None, spec.LinearScalingSpec(factor=4.0)], ids=["plain", "linear"])
def test_rotary_tables_rotate_queries_as_the_forward_does(scaling: spec.LinearScalingSpec | None) -> None:
    bundle = tiny_bundle("llama", rope_scaling=scaling)
    trace = trace_of(bundle, example_values(bundle))
    table = position_tensor(bundle.model, "decoder", "table")  # (L, R)
    half = table.shape[1] // 2
    name = "decoder.blocks.0.self_attn"
    x = trace.record["decoder.blocks.0.norm_self"]
    module = bundle.model.get_submodule(f"{name}.q_proj")
    with torch.no_grad():
        plain = module(x).view(1, x.shape[1], -1, table.shape[1]).transpose(1, 2)
    left, right = plain.chunk(2, -1)
    cos, sin = table[: x.shape[1], :half], table[: x.shape[1], half:]
    turned = torch.cat((left * cos - right * sin, right * cos + left * sin), -1)
    assert torch.allclose(turned, trace.record[f"{name}.q"], atol=1e-5)
    similarity = position_tensor(bundle.model, "decoder", "similarity")
    factor = 1 if scaling is None else scaling.factor
    wanted = [math.cos(3 / factor * 10000 ** (-2 * i / (2 * half))) for i in range(half)]
    assert float(similarity[3]) == pytest.approx(sum(wanted) / half, abs=1e-5) and similarity[0] == 1
    with pytest.raises(ItemNotFoundError):
        position_tensor(bundle.model, "decoder", "table_ahead")


@pytest.mark.parametrize(("family", "stack"), [("t5", "encoder"), ("t5", "decoder"), ("falcon", "decoder")])
def test_position_biases_equal_those_of_the_scores(family: str, stack: str) -> None:
    options = {"position": "alibi"} if family == "falcon" else {}
    bundle = tiny_bundle(family, **options)
    trace = trace_of(bundle, example_values(bundle))
    bias = trace.record.attention_contexts[f"{stack}.blocks.0.self_attn"].bias[0]  # (H, T, S)
    back = position_tensor(bundle.model, stack, "table")
    causal = bundle.model.get_submodule(stack).causal
    ahead = None if causal else position_tensor(bundle.model, stack, "table_ahead")
    for query in range(bias.shape[1]):
        # a rounded bias depends on the key's position, so only the first key is compared
        for key in range(bias.shape[2] if family == "t5" else 1):
            if key <= query:
                assert torch.allclose(bias[:, query, key], back[:, query - key], atol=1e-6)
            elif ahead is not None:
                assert torch.allclose(bias[:, query, key], ahead[:, key - query], atol=1e-6)
    if causal:
        with pytest.raises(ItemNotFoundError):
            position_tensor(bundle.model, stack, "table_ahead")
    if family == "falcon":
        slopes = alibi_slopes(4)
        similarity = position_tensor(bundle.model, stack, "similarity")
        scale = bundle.model.get_submodule(f"{stack}.position").scale
        assert float(similarity[5]) == pytest.approx(float((-5 * slopes * scale).exp().mean()), abs=1e-3)


def test_models_without_positions_have_no_position_tensors() -> None:
    bundle = tiny_bundle("llama")
    for owner in ("embed", "encoder", "nowhere", ""):
        with pytest.raises(ItemNotFoundError):
            position_tensor(bundle.model, owner, "table")
