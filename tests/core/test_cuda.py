"""GPU kernels match the explicit kernel, forward and backward, including fully masked rows."""

from __future__ import annotations

import pytest
import torch

import glassformer
from glassformer import Mask, attend
from glassformer.core.kernels import Kernel, choose_kernel

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

B, H, G, T, K = 2, 4, 2, 192, 64


def masks() -> dict[str, Mask]:
    torch.manual_seed(0)
    padding = torch.ones(B, T, dtype=torch.bool, device="cuda")
    padding[0, :70] = False  # left padding: with causality, its first rows see nothing
    padding[1] = False  # and one row of the batch is padding altogether
    segments = (torch.arange(T, device="cuda") // 50)[None].expand(B, T).contiguous()
    allowed = torch.rand(B, H, T, T, device="cuda") > 0.5
    allowed[0, 1, 5] = False
    return {
        "none": Mask(),
        "causal": Mask(causal=True),
        "window": Mask(causal=True, window=17),
        "two-sided window": Mask(window=9),
        "padding": Mask(causal=True, padding=padding),
        "segments": Mask(causal=True, segments=segments),
        "allowed": Mask(allowed=allowed),
    }


def run(kernel: Kernel, mask: Mask, dtype: torch.dtype, biased: bool) -> list[torch.Tensor]:
    """The output and the gradients of q, k, v and the bias."""
    torch.manual_seed(1)
    q = torch.randn(B, H, T, K, device="cuda").to(dtype).requires_grad_()
    k, v = (torch.randn(B, G, T, K, device="cuda").to(dtype).requires_grad_() for _ in range(2))
    bias = torch.randn(1, H, T, T, device="cuda") if biased else None
    out = attend(q, k, v, mask=mask, bias=bias, kernel=kernel)
    (out.float() ** 2).sum().backward()
    assert q.grad is not None and k.grad is not None and v.grad is not None
    return [out.detach().float(), q.grad.float(), k.grad.float(), v.grad.float()]


@pytest.mark.parametrize("name", list(masks()) if torch.cuda.is_available() else ["none"])
@pytest.mark.parametrize("kernel", ["sdpa", "flex"])
def test_gpu_kernels_match_the_explicit_kernel(kernel: Kernel, name: str) -> None:
    """float32 to 2e-3 of the largest number (products may run in tf32); bfloat16 by the ratio rule."""
    mask = masks()[name]
    torch.compiler.reset()
    if kernel == "flex" and name in ("padding", "allowed"):
        with pytest.raises(glassformer.GlassformerError, match="use kernel='sdpa'"):
            run(kernel, mask, torch.bfloat16, False)
        return
    for biased in (False,) if kernel == "flex" else (False, True):
        truth = run("explicit", mask, torch.float32, biased)
        ours = run(kernel, mask, torch.float32, biased)
        low, reference = (run(which, mask, torch.bfloat16, biased) for which in (kernel, "explicit"))
        for true, fast, coarse, plain in zip(truth, ours, low, reference, strict=True):
            assert not fast.isnan().any() and not coarse.isnan().any()
            assert (fast - true).abs().max() <= 2e-3 * true.abs().max() + 1e-5
            allowance = 3 * (plain - true).abs().max() + 1e-3 * true.abs().max()
            assert (coarse - true).abs().max() <= allowance
    permitted = mask.dense(T, T, torch.device("cuda"))
    if permitted is not None:
        empty = (~permitted.any(-1)).expand(B, H, T)
        assert ours[0][empty].abs().sum() == 0 and low[0][empty].abs().sum() == 0


def test_models_match_the_cpu_and_support_autocast() -> None:
    for family in ("original", "gpt2", "llama"):
        torch.manual_seed(0)
        model = glassformer.tiny(family).eval()
        ids = torch.randint(1, 80, (2, 9))
        inputs = (ids, ids) if family == "original" else (ids,)
        with torch.no_grad():
            here = model(*inputs)
            model.cuda()
            moved = tuple(i.cuda() for i in inputs)
            there = model(*moved).cpu()
            with torch.autocast("cuda", torch.bfloat16):
                low = model(*moved).float().cpu()
            full = model.to(torch.bfloat16)(*moved).float().cpu()
        assert (here - there).abs().max() < 1e-4 * (1 + here.abs().max())
        assert (low - here).abs().max() <= 3 * (full - here).abs().max() + 1e-3


def test_long_sparse_mask_uses_flex_and_compiled_static_step_matches_eager() -> None:
    assert choose_kernel(mask=Mask(causal=True, window=128), queries=4096, keys=4096, device="cuda") == "flex"
    torch.manual_seed(0)
    model = glassformer.tiny("llama").eval().cuda()
    ids = torch.randint(1, 80, (2, 6), device="cuda")
    step = torch.compile(model, fullgraph=True, mode="reduce-overhead")
    with torch.no_grad():
        full = model(ids)
        cache = glassformer.KVCache.allocate(model.spec, 2, 16, device="cuda").with_static_shapes()
        parts = [step(ids[:, n : n + 1], cache=cache).clone() for n in range(ids.shape[1])]
    assert (torch.cat(parts, 1) - full).abs().max() < 1e-4
