"""Triton kernels match torch, on a GPU or in Triton's interpreter."""

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
from glassformer.core.kernels import attend  # noqa: E402
from glassformer.core.masks import Mask  # noqa: E402
from glassformer.core.positions import rotate  # noqa: E402
from glassformer.core.vision.attention import WindowLayout  # noqa: E402
from glassformer.inference.gpu.decode_attention import decode_attention  # noqa: E402
from glassformer.inference.gpu.launch import num_sms  # noqa: E402
from glassformer.inference.gpu.linear import fused_linear  # noqa: E402
from glassformer.inference.gpu.linear_kernels import NormWeights, normalize  # noqa: E402
from glassformer.inference.gpu.top_k import top_k  # noqa: E402
from glassformer.inference.gpu.window_attention import window_attention  # noqa: E402

DEVICE = "cuda" if HAS_GPU else "cpu"
LOW = torch.bfloat16 if HAS_GPU else torch.float16  # the interpreter has no bfloat16


def error(actual: Tensor, expected: Tensor) -> float:
    """How far apart two tensors are, relative to the second's size."""
    assert actual.isfinite().all()
    return float((actual.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-30))


def bound(dtype: torch.dtype) -> float:
    return 1e-5 if dtype == torch.float32 else 5e-3


def random_tensor(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to(DEVICE, dtype)


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


def plain_norm(x: Tensor, norm: NormWeights) -> Tensor:
    """The norm in float64, rounded to the precision of x as a layer of its own would be."""
    y = x.double()
    if norm.kind == "layer":
        y = y - y.mean(-1, keepdim=True)
    y = y / (y.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    y = y if norm.weight is None else y * norm.weight.double()
    return (y if norm.bias is None else y + norm.bias.double()).to(x.dtype)


def plain_product(x: Tensor, weight: Tensor, **options: Any) -> Tensor:
    x = plain_norm(x, options["norm"]) if options.get("norm") else x
    y = x.double() @ weight.double().T
    if options.get("scale") is not None:
        y = y * options["scale"].double()
    if options.get("bias") is not None:
        y = y + options["bias"].double()
    activation = ACTIVATIONS[options["activation"]] if options.get("activation") else lambda z: z
    if options.get("gated"):
        gate, up = y.chunk(2, -1)
        y = activation(gate) * up
    else:
        y = activation(y)
    return y if options.get("residual") is None else y + options["residual"].double()


SHAPES = [(1, 96, 40), (1, 2816, 12), (5, 96, 40), (32, 704, 64), (40, 64, 48)]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"bias": True, "activation": "relu"},
    {"activation": "quick_gelu"},
    {"activation": "tanh", "residual": True},
    {"norm": "rms", "activation": "silu", "gated": True},
    {"norm": "layer", "bias": True, "residual": True, "activation": "gelu"},
    {"scale": True, "bias": True, "residual": True, "activation": "gelu_tanh", "gated": True},
]


PRECISIONS = [(*shape, torch.float32) for shape in SHAPES]
PRECISIONS += [(*shape, LOW) for shape in (SHAPES if HAS_GPU else SHAPES[2:3])]


@pytest.mark.parametrize(("rows", "width", "outs", "dtype"), PRECISIONS)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
def test_product_matches_torch(
    rows: int, width: int, outs: int, options: dict[str, Any], dtype: torch.dtype
) -> None:
    options = dict(options)
    lines = outs * 2 if options.get("gated") else outs
    x = random_tensor(rows, width, dtype=dtype)
    weight = random_tensor(lines, width, dtype=dtype)
    if options.get("scale"):
        weight = torch.randint(-127, 128, (lines, width), dtype=torch.int8, device=DEVICE)
        options["scale"] = torch.rand(lines, device=DEVICE) / 127
    if options.get("bias"):
        options["bias"] = random_tensor(lines, dtype=dtype)
    if options.get("residual"):
        options["residual"] = random_tensor(rows, outs, dtype=dtype)
    if options.get("norm"):
        shift = random_tensor(width, dtype=dtype) if options["norm"] == "layer" else None
        options["norm"] = NormWeights(
            kind=options["norm"], weight=random_tensor(width, dtype=dtype), bias=shift, eps=1e-5
        )
        x = x * 3 + 2
    actual = fused_linear(x, weight, **options)
    assert actual.shape == (rows, outs) and actual.dtype == dtype
    assert error(actual, plain_product(x, weight, **options)) < bound(dtype)


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_normalize_matches_torch(kind: Any) -> None:
    x = random_tensor(3, 100) + 5
    norm = NormWeights(kind=kind, weight=random_tensor(100), bias=random_tensor(100), eps=1e-5)
    assert error(normalize(x, norm), plain_norm(x, norm)) < 1e-5


def plain_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Tensor,
    scale: float,
    bias: Tensor | float = 0.0,
    softcap: float | None = None,
) -> Tensor:
    """q (B, W, H, K), k and v (B, G, S, K), visible (B, W, S), bias (H, S) -> (B, W, H, K), in float64."""
    repeats = q.shape[2] // k.shape[1]
    k, v = (t.double().repeat_interleave(repeats, 1) for t in (k, v))
    scores = torch.einsum("bwhk,bhsk->bwhs", q.double(), k) * scale
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    scores = scores + bias
    weights = scores.masked_fill(~visible[:, :, None], float("-inf")).softmax(-1).nan_to_num()
    return torch.einsum("bwhs,bhsk->bwhk", weights, v)


def batch_size(batch_kind: str) -> int:
    """A small batch, for which the kernel prefetches, or one that fills the GPU."""
    return 2 if batch_kind == "small" else num_sms(torch.empty(0, device=DEVICE)) + 1


@pytest.mark.parametrize("dtype", [torch.float32, LOW], ids=str)
@pytest.mark.parametrize("batch_kind", ["small", "large"])
@pytest.mark.parametrize(("capacity", "rotary_dim"), [(70, 0), (70, 24), (1100, 8)])
def test_decode_attention_matches_torch_and_appends_the_new_key(
    capacity: int, rotary_dim: int, batch_kind: str, dtype: torch.dtype
) -> None:
    batch, heads, groups, width, filled = batch_size(batch_kind), 6, 2, 24, capacity - 3
    cache_k, cache_v = (random_tensor(batch, groups, capacity, width, dtype=dtype) for _ in range(2))
    fused = random_tensor(batch, 1, heads + 2 * groups, width, dtype=dtype)
    q, k, v = fused.split((heads, groups, groups), 2)
    rotary = None
    want_q, want_k = q, k
    if rotary_dim:
        angle = torch.rand(batch, rotary_dim // 2, device=DEVICE).repeat(1, 2)
        rotary = angle.cos()[:, None, None], angle.sin()[:, None, None]  # (B, 1, 1, R)
        want_q, want_k = (rotate(t.transpose(1, 2), rotary).transpose(1, 2) for t in (q, k))
    real = torch.rand(batch, capacity, device=DEVICE) > 0.3
    keys, values = cache_k.clone(), cache_v.clone()
    keys[:, :, filled], values[:, :, filled] = want_k[:, 0], v[:, 0]
    length = torch.tensor(filled, device=DEVICE)
    actual = decode_attention(q, k, v, cache_k, cache_v, length, scale=0.3, mask=real, rotary=rotary)
    visible = torch.arange(capacity, device=DEVICE)[None, None] < filled
    visible = visible & real[:, None]
    visible[:, :, filled] = True
    assert error(cache_k, keys) < bound(dtype) and torch.equal(cache_v, values)
    assert error(actual, plain_attention(want_q, keys, values, visible, 0.3)) < bound(dtype)


@pytest.mark.parametrize("kind", ["slopes", "table", "window", "softcap"])
@pytest.mark.parametrize("batch_kind", ["small", "large"])
@pytest.mark.parametrize("beams", [1, 3])
def test_decode_attention_of_beams_with_bias_window_and_cap(beams: int, batch_kind: str, kind: str) -> None:
    batch, heads, groups, width = batch_size(batch_kind), 4, 2, 96
    shared, steps = 37, 30  # so the new slots lie on two tiles
    capacity = shared + beams * (steps + 1) + 5
    filled = shared + beams * steps
    cache_k, cache_v = (random_tensor(batch, groups, capacity, width) for _ in range(2))
    q, k, v = (random_tensor(batch, beams, n, width) for n in (heads, groups, groups))
    ancestors = torch.rand(batch, beams, capacity, device=DEVICE) > 0.4
    new = torch.arange(filled, filled + beams, device=DEVICE)
    ancestors[:, :, new] = torch.eye(beams, device=DEVICE).bool()
    slots = torch.arange(capacity, device=DEVICE)
    position = torch.where(slots < shared, slots, shared + (slots - shared) // beams)
    distance = shared + steps - position
    options: dict[str, Any] = {}
    visible = ancestors & (slots < filled + beams)
    bias: Tensor | float = 0.0
    if kind == "slopes":
        options["bias"] = torch.rand(heads, device=DEVICE)
        bias = -options["bias"][:, None] * distance
    elif kind == "table":
        options["bias"] = random_tensor(heads, shared + steps + 9)
        bias = options["bias"][:, distance.clamp(min=0)]
    else:
        options["window"] = 17
        visible = visible & (distance < 17)
        if kind == "softcap":
            options["softcap"] = 0.7
    keys, values = cache_k.clone(), cache_v.clone()
    keys[:, :, new], values[:, :, new] = k.transpose(1, 2), v.transpose(1, 2)
    length = torch.tensor(filled, device=DEVICE)
    actual = decode_attention(
        q, k, v, cache_k, cache_v, length, scale=0.1, ancestors=ancestors, prompt_length=shared, **options
    )
    assert torch.equal(cache_k, keys) and torch.equal(cache_v, values)
    expected = plain_attention(q, keys, values, visible, 0.1, bias, options.get("softcap"))
    assert error(actual, expected) < 1e-5


def test_cross_decode_attention_masks_padding_and_gives_zeros_if_fully_masked() -> None:
    q, (k, v) = (
        random_tensor(3, 4, 6, 20),
        random_tensor(3, 150, 4, 20).transpose(1, 2).split(2, 1),
    )
    real = torch.rand(3, 150, device=DEVICE) > 0.5
    real[1] = False
    actual = decode_attention(q, None, None, k, v, None, scale=0.2, mask=real)
    assert error(actual, plain_attention(q, k, v, real[:, None].expand(3, 4, 150), 0.2)) < 1e-5
    assert not actual[1].any()


@pytest.mark.parametrize("dtype", [torch.float32, LOW], ids=str)
@pytest.mark.parametrize(("rows", "options", "count"), [(1, 5000, 1), (3, 5000, 8), (70, 37, 16)])
def test_top_k_matches_a_stable_sort(rows: int, options: int, count: int, dtype: torch.dtype) -> None:
    logits = random_tensor(rows, options, dtype=dtype).mul(8).round().div(4)  # many of them equal
    logits[0, : options // 2] = float("-inf")
    values, tokens, sums = top_k(logits, count)
    expected, order = logits.float().sort(stable=True, dim=-1, descending=True)
    assert torch.equal(values, expected[:, :count]) and torch.equal(tokens, order[:, :count])
    assert error(sums, logits.double().logsumexp(-1)) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, LOW])
@pytest.mark.parametrize(
    ("grid", "size", "shift", "heads", "head_dim"),
    [((14, 14), 7, 3, 2, 32), ((14, 21), 7, 0, 3, 16), ((8, 12), 4, 2, 1, 24)],
)
def test_window_attention_matches_the_reference(
    grid: tuple[int, int], size: int, shift: int, heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    layout, batch = WindowLayout(grid, size, shift), 3  # the last program has fewer windows than the others
    qkv = random_tensor(batch, grid[0] * grid[1], 3 * heads * head_dim, dtype=dtype)
    bias = random_tensor(heads, size**2, size**2, dtype=dtype)
    q, k, v = layout.partition(qkv).view(-1, size**2, 3, heads, head_dim).permute(2, 0, 3, 1, 4).double()
    allowed = layout.allowed(batch, qkv.device)
    mask = None if allowed is None else Mask(allowed=allowed)
    expected = attend(q, k, v, mask=mask, bias=bias[None].double(), scale=0.2, kernel="explicit")
    actual = window_attention(qkv, bias, layout, 0.2)
    assert error(actual, layout.merge(expected.transpose(1, 2).flatten(2))) < bound(dtype)
