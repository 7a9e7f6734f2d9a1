"""Stacks of different layers, encoders without tokens, and generation with every vocabulary head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from glassformer.core import spec
from glassformer.core.build import build_model
from glassformer.core.kv_cache import KVCache
from glassformer.core.masks import Mask
from glassformer.core.positions import PositionTerms
from glassformer.errors import UnsupportedError
from glassformer.generation import GenerationConfig, GenerationParams, generate, prefill
from glassformer.generation.inference_model import InferenceModel, prepare_for_inference
from glassformer.verify import perturb_parameters
from tests.core.models import VOCAB, D, spec_of


def mixed(shape: str = "decoder_only") -> Any:
    """A window and another rotary base on every second layer, other groups of heads on the third."""
    what: Any = spec_of(shape, position="rotary")
    block = what.decoder.block
    local = replace(block, attention=replace(block.attention, window=3))
    grouped = replace(block, attention=replace(block.attention, num_kv_heads=2))
    decoder = replace(
        what.decoder,
        num_layers=4,
        pattern=(block, local, grouped),
        local_position=spec.RotarySpec(base=100.0),
    )
    torch.manual_seed(0)
    model = build_model(replace(what, decoder=decoder)).eval()
    perturb_parameters(model)
    return model


def test_stack_with_a_pattern_alternates_its_blocks() -> None:
    model = mixed()
    stack, x = model.decoder, torch.randn(2, 9, D)
    assert [block.self_attn.window for block in stack.blocks] == [None, 3, None, None]
    assert [block.self_attn.num_kv_heads for block in stack.blocks] == [4, 4, 2, 4]
    expected, positions = x, torch.arange(9)[None]
    with torch.no_grad():
        for block in stack.blocks:
            position = stack.position if block.self_attn.window is None else stack.local_position
            terms: PositionTerms = position(positions)
            expected = block(expected, block.prepare(expected, Mask(causal=True), terms=terms))
        expected = stack.final_norm(expected)
        torch.testing.assert_close(stack(x), expected)
        stack.local_position = None
        assert not torch.allclose(stack(x), expected)


def test_cache_has_the_shape_of_each_layer() -> None:
    model = mixed()
    cache = KVCache.allocate(model.spec, batch=2, capacity=12)
    assert [layer.k.shape[1] for layer in cache.layers] == [4, 4, 2, 4]
    ids = torch.randint(1, VOCAB, (2, 9))
    with torch.no_grad():
        parts = [model(piece, cache=cache) for piece in ids.split([4, 1, 3, 1], 1)]
        torch.testing.assert_close(torch.cat(parts, 1), model(ids))


SOURCES: dict[str, tuple[spec.InputSpec, tuple[int, ...]]] = {
    "images": (spec.ImagePatchesSpec(image_size=(8, 8), patch_size=(4, 4), prefix=1), (2, 3, 8, 8)),
    "features": (spec.VectorsSpec(), (2, 6, D)),
}


@pytest.mark.parametrize("source", SOURCES)
def test_generate_from_images_and_vectors(source: str) -> None:
    what: Any = spec_of("encoder_decoder")
    kind, shape = SOURCES[source]
    torch.manual_seed(0)
    model: Any = build_model(replace(what, source=kind)).eval()
    perturb_parameters(model)
    inputs, ids = torch.randn(shape), torch.randint(1, VOCAB, (2, 5))
    ids[:, 0] = 1
    with torch.inference_mode():
        for one in (model, prepare_for_inference(model)):
            result = prefill(one, inputs, None, start_ids=[1], capacity=5)
            logits = [result.logits, *(result.decoder.step(ids[:, n]) for n in range(1, 5))]
            torch.testing.assert_close(torch.stack(logits, 1), model(inputs, ids), rtol=1e-4, atol=1e-5)


def test_every_vocabulary_head_generates() -> None:
    what: Any = spec_of("decoder_only")
    head = spec.MaskedLanguageModelSpec(vocab_size=VOCAB, activation="gelu", norm=spec.LayerNormSpec())
    torch.manual_seed(0)
    model: Any = build_model(replace(what, head=head)).eval()
    perturb_parameters(model)
    ids = torch.tensor([[3, 4, 5]])
    params = GenerationParams(config=GenerationConfig(max_new_tokens=4), pad_token_id=0)
    ((actual,),) = generate(prepare_for_inference(model), ids, params)
    with torch.no_grad():
        for token in actual.ids:
            assert int(model(ids)[0, -1].argmax()) == token
            ids = torch.cat((ids, torch.tensor([[token]])), 1)


def test_head_without_vocabulary_cannot_generate() -> None:
    what: Any = spec_of("decoder_only")
    with pytest.raises(UnsupportedError):
        InferenceModel(build_model(replace(what, head=spec.ClassifySpec(num_labels=2))), None)
