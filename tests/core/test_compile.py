"""Training and cached steps compile into one graph with the same results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional as F

from glassformer.core.inputs import Masks
from glassformer.core.kv_cache import KVCache
from glassformer.core.model import EncoderDecoder
from tests.core.models import ids, inputs_of, model_of


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing compiled before, nothing left behind."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def gradients(
    model: torch.nn.Module, forward: Any, inputs: tuple[Tensor, ...]
) -> tuple[Tensor, list[Tensor]]:
    model.zero_grad()
    logits = forward(*inputs)
    F.cross_entropy(logits.flatten(0, 1), inputs[-1].flatten()).backward()
    return logits.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


POSITION = {"encoder_decoder": "sinusoidal", "encoder_only": "relative", "decoder_only": "rotary"}


# capture and differentiation are what can fail here; generating code would take minutes on a small machine
@pytest.mark.parametrize(("shape", "position"), POSITION.items())
def test_training_compiles_without_graph_breaks(shape: str, position: str) -> None:
    model = model_of(shape, position=position).train()
    inputs = inputs_of(shape)
    expected, grads = gradients(model, model, inputs)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    actual, compiled_grads = gradients(model, compiled, inputs)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    assert len(grads) == len(compiled_grads) == len(list(model.parameters()))
    for one, other in zip(compiled_grads, grads, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    assert counter.frame_count == 1


@pytest.mark.parametrize("shape", ["decoder_only", "encoder_decoder"])
def test_cached_step_compiles_once(shape: str) -> None:
    model = model_of(shape, position="rotary")
    tokens = ids(2, 7)
    counter = CompileCounterWithBackend("aot_eager")
    with torch.no_grad():
        cache = KVCache.allocate(model.spec, 2, 8).with_static_shapes()
        if isinstance(model, EncoderDecoder):
            src = ids(2, 5, seed=4)
            expected = model(src, tokens)
            memory = model.encode(src)

            def step(ids: Tensor, cache: KVCache) -> Tensor:
                out: Tensor = model.decode(ids, memory, cache=cache)
                return out
        else:
            expected = model(tokens)

            def step(ids: Tensor, cache: KVCache) -> Tensor:
                out: Tensor = model(ids, cache=cache)
                return out

        actual = [step(tokens[:, :3], cache)]  # the prompt, uncompiled
        compiled = torch.compile(step, fullgraph=True, backend=counter)
        actual.append(compiled(tokens[:, 3:4], cache))
        with torch._dynamo.config.patch(error_on_recompile=True):
            actual += [compiled(tokens[:, n : n + 1], cache) for n in range(4, 7)]
    torch.testing.assert_close(torch.cat(actual, 1), expected, atol=2e-5, rtol=0)
    assert counter.frame_count == 1
    assert int(cache.length) == 7


def test_masks_and_padding_compile() -> None:
    model = model_of("encoder_decoder", window=3)
    src, tgt = inputs_of("encoder_decoder")
    src[1, 4:] = 0
    blind = (torch.arange(7) != 2).expand(3, 4, 6, 7)
    masks = Masks(src != 0, torch.ones(3, 6, 6).tril().bool(), blind)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(src, tgt), model(src, tgt))
        torch.testing.assert_close(compiled(src, tgt, masks), model(src, tgt, masks))
