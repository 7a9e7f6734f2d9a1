"""The kernels of a decoding step against their plain definitions, on a GPU or by Triton's interpreter."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is first imported
pytest.importorskip("triton", reason="not installed: triton")

from glassformer.core.backend import ACTIVATIONS  # noqa: E402
from glassformer.core.positions import rotate  # noqa: E402
from glassformer.inference.gpu.decode_attention import decode_attention  # noqa: E402
from glassformer.inference.gpu.launch import num_sms  # noqa: E402
from glassformer.inference.gpu.linear import product  # noqa: E402
from glassformer.inference.gpu.linear_kernels import NormWeights, normalize  # noqa: E402
from glassformer.inference.gpu.top_k import top_k  # noqa: E402

DEVICE = "cuda" if HAS_GPU else "cpu"
LOW = torch.bfloat16 if HAS_GPU else torch.float16  # the interpreter has no bfloat16


def error(got: Tensor, wanted: Tensor) -> float:
    """How far apart two tensors are, relative to the second's size."""
    assert got.isfinite().all()
    return float((got.double() - wanted.double()).norm() / wanted.double().norm().clamp(min=1e-30))


def bound(dtype: torch.dtype) -> float:
    return 1e-5 if dtype == torch.float32 else 5e-3


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to(DEVICE, dtype)


@pytest.fixture(autouse=True)
def _same_chance() -> None:
    torch.manual_seed(0)


def plain_norm(x: Tensor, norm: NormWeights) -> Tensor:
    """The norm in float64, rounded to the precision of x as a layer of its own would be."""
    y = x.double()
    if norm.kind == "layer":
        y = y - y.mean(-1, keepdim=True)
    y = y / (y.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    y = y if norm.weight is None else y * norm.weight.double()
    return (y if norm.bias is None else y + norm.bias.double()).to(x.dtype)


def plain_product(x: Tensor, weight: Tensor, **words: Any) -> Tensor:
    x = plain_norm(x, words["norm"]) if words.get("norm") else x
    y = x.double() @ weight.double().T
    if words.get("scale") is not None:
        y = y * words["scale"].double()
    if words.get("bias") is not None:
        y = y + words["bias"].double()
    bend = ACTIVATIONS[words["activation"]] if words.get("activation") else lambda z: z
    if words.get("gated"):
        gate, up = y.chunk(2, -1)
        y = bend(gate) * up
    else:
        y = bend(y)
    return y if words.get("residual") is None else y + words["residual"].double()


SHAPES = [(1, 96, 40), (1, 2816, 12), (5, 96, 40), (32, 704, 64), (40, 64, 48)]
WORDS: list[dict[str, Any]] = [
    {},
    {"bias": True, "activation": "relu"},
    {"activation": "quick_gelu"},
    {"activation": "tanh", "residual": True},
    {"norm": "rms", "activation": "silu", "gated": True},
    {"norm": "layer", "bias": True, "residual": True, "activation": "gelu"},
    {"scale": True, "bias": True, "residual": True, "activation": "gelu_tanh", "gated": True},
]


@pytest.mark.parametrize("dtype", [torch.float32, LOW], ids=str)
@pytest.mark.parametrize(("rows", "width", "outs"), SHAPES)
@pytest.mark.parametrize("words", WORDS, ids=lambda words: "-".join(words) or "plain")
def test_a_product_is_its_definition(
    rows: int, width: int, outs: int, words: dict[str, Any], dtype: torch.dtype
) -> None:
    words = dict(words)
    lines = outs * 2 if words.get("gated") else outs
    x = drawn(rows, width, dtype=dtype)
    weight = drawn(lines, width, dtype=dtype)
    if words.get("scale"):
        weight = torch.randint(-127, 128, (lines, width), dtype=torch.int8, device=DEVICE)
        words["scale"] = torch.rand(lines, device=DEVICE) / 127
    if words.get("bias"):
        words["bias"] = drawn(lines, dtype=dtype)
    if words.get("residual"):
        words["residual"] = drawn(rows, outs, dtype=dtype)
    if words.get("norm"):
        shift = drawn(width, dtype=dtype) if words["norm"] == "layer" else None
        words["norm"] = NormWeights(
            kind=words["norm"], weight=drawn(width, dtype=dtype), bias=shift, eps=1e-5
        )
        x = x * 3 + 2
    got = product(x, weight, **words)
    assert got.shape == (rows, outs) and got.dtype == dtype
    assert error(got, plain_product(x, weight, **words)) < bound(dtype)


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_a_norm_alone(kind: Any) -> None:
    x = drawn(3, 100) + 5
    norm = NormWeights(kind=kind, weight=drawn(100), bias=drawn(100), eps=1e-5)
    assert error(normalize(x, norm), plain_norm(x, norm)) < 1e-5


def plain_attention(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float, bias: Tensor | float = 0.0
) -> Tensor:
    """q (B, W, H, K), k and v (B, G, S, K), seen (B, W, S), bias (H, S) -> (B, W, H, K), in float64."""
    each = q.shape[2] // k.shape[1]
    k, v = (t.double().repeat_interleave(each, 1) for t in (k, v))
    scores = torch.einsum("bwhk,bhsk->bwhs", q.double(), k) * scale + bias
    weights = scores.masked_fill(~seen[:, :, None], float("-inf")).softmax(-1).nan_to_num()
    return torch.einsum("bwhs,bhsk->bwhk", weights, v)


def sentences(crowd: str) -> int:
    """A few, for whom a look fetches ahead, or as many as make it spare the registers."""
    return 2 if crowd == "few" else num_sms(torch.empty(0, device=DEVICE)) + 1


@pytest.mark.parametrize("dtype", [torch.float32, LOW], ids=str)
@pytest.mark.parametrize("crowd", ["few", "many"])
@pytest.mark.parametrize(("room", "turned"), [(70, 0), (70, 24), (1100, 8)])
def test_a_look_is_attention_and_keeps_the_new_key(
    room: int, turned: int, crowd: str, dtype: torch.dtype
) -> None:
    batch, heads, groups, width, filled = sentences(crowd), 6, 2, 24, room - 3
    cache_k, cache_v = (drawn(batch, groups, room, width, dtype=dtype) for _ in range(2))
    fused = drawn(batch, 1, heads + 2 * groups, width, dtype=dtype)
    q, k, v = fused.split((heads, groups, groups), 2)
    rotary = None
    want_q, want_k = q, k
    if turned:
        angle = torch.rand(batch, turned // 2, device=DEVICE).repeat(1, 2)
        rotary = angle.cos()[:, None, None], angle.sin()[:, None, None]  # (B, 1, 1, R)
        want_q, want_k = (rotate(t.transpose(1, 2), rotary).transpose(1, 2) for t in (q, k))
    real = torch.rand(batch, room, device=DEVICE) > 0.3
    keys, values = cache_k.clone(), cache_v.clone()
    keys[:, :, filled], values[:, :, filled] = want_k[:, 0], v[:, 0]
    length = torch.tensor(filled, device=DEVICE)
    got = decode_attention(q, k, v, cache_k, cache_v, length, scale=0.3, mask=real, rotary=rotary)
    seen = torch.arange(room, device=DEVICE)[None, None] < filled
    seen = seen & real[:, None]
    seen[:, :, filled] = True
    assert error(cache_k, keys) < bound(dtype) and torch.equal(cache_v, values)
    assert error(got, plain_attention(want_q, keys, values, seen, 0.3)) < bound(dtype)


@pytest.mark.parametrize("kind", ["slopes", "table", "window"])
@pytest.mark.parametrize("crowd", ["few", "many"])
@pytest.mark.parametrize("beams", [1, 3])
def test_a_look_of_beams_by_distance(beams: int, crowd: str, kind: str) -> None:
    batch, heads, groups, width = sentences(crowd), 4, 2, 96
    shared, steps = 37, 30  # so the new slots lie on two tiles
    room = shared + beams * (steps + 1) + 5
    filled = shared + beams * steps
    cache_k, cache_v = (drawn(batch, groups, room, width) for _ in range(2))
    q, k, v = (drawn(batch, beams, n, width) for n in (heads, groups, groups))
    ancestors = torch.rand(batch, beams, room, device=DEVICE) > 0.4
    new = torch.arange(filled, filled + beams, device=DEVICE)
    ancestors[:, :, new] = torch.eye(beams, device=DEVICE).bool()
    slots = torch.arange(room, device=DEVICE)
    position = torch.where(slots < shared, slots, shared + (slots - shared) // beams)
    distance = shared + steps - position
    words: dict[str, Any] = {}
    seen = ancestors & (slots < filled + beams)
    bias: Tensor | float = 0.0
    if kind == "slopes":
        words["bias"] = torch.rand(heads, device=DEVICE)
        bias = -words["bias"][:, None] * distance
    elif kind == "table":
        words["bias"] = drawn(heads, shared + steps + 9)
        bias = words["bias"][:, distance.clamp(min=0)]
    else:
        words["window"] = 17
        seen = seen & (distance < 17)
    keys, values = cache_k.clone(), cache_v.clone()
    keys[:, :, new], values[:, :, new] = k.transpose(1, 2), v.transpose(1, 2)
    length = torch.tensor(filled, device=DEVICE)
    got = decode_attention(
        q, k, v, cache_k, cache_v, length, scale=0.1, ancestors=ancestors, prompt_length=shared, **words
    )
    assert torch.equal(cache_k, keys) and torch.equal(cache_v, values)
    assert error(got, plain_attention(q, keys, values, seen, 0.1, bias)) < 1e-5


def test_a_look_across_sees_what_is_real_and_nothing_gives_zeros() -> None:
    q, (k, v) = drawn(3, 4, 6, 20), drawn(3, 150, 4, 20).transpose(1, 2).split(2, 1)  # as one product gives
    real = torch.rand(3, 150, device=DEVICE) > 0.5
    real[1] = False
    got = decode_attention(q, None, None, k, v, None, scale=0.2, mask=real)
    assert error(got, plain_attention(q, k, v, real[:, None].expand(3, 4, 150), 0.2)) < 1e-5
    assert not got[1].any()


@pytest.mark.parametrize("dtype", [torch.float32, LOW], ids=str)
@pytest.mark.parametrize(("rows", "words", "count"), [(1, 5000, 1), (3, 5000, 8), (70, 37, 16)])
def test_the_best_are_the_first_of_a_stable_sort(
    rows: int, words: int, count: int, dtype: torch.dtype
) -> None:
    logits = drawn(rows, words, dtype=dtype).mul(8).round().div(4)  # many of them equal
    logits[0, : words // 2] = float("-inf")
    values, tokens, sums = top_k(logits, count)
    wanted, order = logits.float().sort(stable=True, dim=-1, descending=True)
    assert torch.equal(values, wanted[:, :count]) and torch.equal(tokens, order[:, :count])
    assert error(sums, logits.double().logsumexp(-1)) < 1e-6
