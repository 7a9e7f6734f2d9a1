"""Window attention, 2-D position biases, added position embeddings, layer scale, stochastic depth."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from glassformer.core import spec
from glassformer.core.attention import MultiHeadAttention
from glassformer.core.build import build_block, build_model, build_stack
from glassformer.core.masks import Mask
from glassformer.core.norms import drop_path
from glassformer.core.observe import observe
from glassformer.core.positions import Grid, PositionTerms
from glassformer.core.vision.attention import GridAttention, WindowLayout, offset_index
from glassformer.core.vision.grid import sinusoids_2d
from glassformer.inference.encoder import InferenceEncoder


def _redraw(module: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.3)


def on_grid(attention: GridAttention, x: torch.Tensor, grid: Grid) -> torch.Tensor:
    out: torch.Tensor = attention(x, attention.prepare(x, terms=PositionTerms(grid=grid)))
    return out


def _window_of(row: int, column: int, layout: WindowLayout) -> tuple[int, int, int, int]:
    """Return the window of a token, and on which side of the cyclic shift it is."""
    rows, columns = layout.padded
    down, across = (row - layout.shift) % rows, (column - layout.shift) % columns
    return down // layout.size, across // layout.size, row < layout.shift, column < layout.shift


@pytest.mark.parametrize(("grid", "size", "shift"), [((8, 8), 4, 0), ((8, 12), 4, 2), ((6, 9), 3, 1)])
def test_window_attention_is_full_attention_with_a_window_mask(
    grid: tuple[int, int], size: int, shift: int
) -> None:
    window = spec.WindowSpec(size=size, shift=shift)
    windowed = GridAttention(16, num_heads=4, spatial_window=window)
    full = MultiHeadAttention(16, num_heads=4)
    _redraw(windowed)
    full.load_state_dict(windowed.state_dict())
    layout = WindowLayout.of(grid, window)
    cells = [_window_of(r, c, layout) for r in range(grid[0]) for c in range(grid[1])]
    allowed = torch.tensor([[a == b for b in cells] for a in cells])
    x = torch.randn(2, len(cells), 16)
    expected = full(x, mask=Mask(allowed=allowed[None, None]))
    torch.testing.assert_close(on_grid(windowed, x, grid), expected)
    if shift:
        windowed.spatial_window = spec.WindowSpec(size=size)
        assert not torch.allclose(on_grid(windowed, x, grid), expected)


def test_tokens_attend_to_the_padding_of_windows() -> None:
    attention = GridAttention(8, num_heads=2, spatial_window=spec.WindowSpec(size=4))
    _redraw(attention)
    x = torch.randn(1, 15, 8)
    padded = F.pad(x.view(1, 3, 5, 8), (0, 0, 0, 3, 0, 1)).view(1, 32, 8)
    expected = on_grid(attention, padded, (4, 8)).view(4, 8, 8)[:3, :5].reshape(1, 15, 8)
    torch.testing.assert_close(on_grid(attention, x, (3, 5)), expected)


def test_offset_index_numbers_row_and_column_offsets() -> None:
    index = offset_index((2, 3))
    assert index[0, 0] == index[4, 4] == 1 * 5 + 2
    assert index[3, 0] == 2 * 5 + 2  # one row down
    assert index[0, 1] == 1 * 5 + 1  # one column to the left


def test_query_bias_is_the_product_of_queries_and_offset_vectors() -> None:
    attention = GridAttention(8, num_heads=2, position_bias=spec.QueryBias2dSpec(grid=(2, 3)))
    _redraw(attention)
    bias = attention.position_bias
    assert bias is not None
    q = torch.randn(1, 2, 6, 4)
    result = bias(q, (2, 3)).dense()
    for query, key in ((0, 5), (4, 1), (2, 3)):
        down, across = query // 3 - key // 3 + 1, query % 3 - key % 3 + 2
        expected = q[0, :, query] @ bias.rows[down] + q[0, :, query] @ bias.columns[across]
        torch.testing.assert_close(result[0, :, query, key], expected)


def test_position_embeddings_reach_queries_and_keys_but_not_values() -> None:
    attention = MultiHeadAttention(8, num_heads=2)
    _redraw(attention)
    x, memory, position, memory_position = torch.randn(4, 1, 5, 8)
    query, key = x + position, memory + memory_position

    def heads(y: torch.Tensor) -> torch.Tensor:
        return y.unflatten(-1, (2, 4)).transpose(1, 2)

    q, k, v = heads(attention.q_proj(query)), heads(attention.k_proj(key)), heads(attention.v_proj(memory))
    expected = attention.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
    across = attention.prepare(x, memory=memory)._replace(position=position, memory_position=memory_position)
    torch.testing.assert_close(attention(x, across), expected)
    k, v = heads(attention.k_proj(query)), heads(attention.v_proj(x))
    expected = attention.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x, attention.prepare(x)._replace(position=position)), expected)


def _image_model(block: spec.BlockSpec, shift: int) -> spec.EncoderOnlySpec:
    window = spec.WindowSpec(size=2, shift=shift)
    bias = spec.RelativeBias2dSpec(grid=(2, 2))
    windowed = spec.AttentionSpec(num_heads=2, spatial_window=window, position_bias=bias)
    shifted = spec.BlockSpec(attention=windowed, feed_forward=block.feed_forward, wiring="res_post")
    return spec.EncoderOnlySpec(
        input=spec.ImagePatchesSpec(image_size=(12, 20), patch_size=(4, 4), prefix=0, interpolate=True),
        encoder=spec.StackSpec(d_model=16, num_layers=2, block=block, pattern=(block, shifted)),
        head=spec.FeaturesSpec(),
    )


_FFN = spec.FeedForwardSpec(d_ff=32)


def test_recorded_weights_spread_over_the_grid() -> None:
    block = spec.BlockSpec(attention=spec.AttentionSpec(num_heads=2), feed_forward=_FFN, wiring="pre")
    model = build_model(_image_model(block, shift=1)).eval()
    _redraw(model)
    record = observe(model, torch.randn(2, 3, 12, 20))
    weights = record.token_weights("encoder.blocks.1.self_attn", head=1, token=7)  # row 1, column 2
    assert weights.shape == (2, 15)
    reached = sorted(weights[0].nonzero().flatten().tolist())
    assert reached == [6, 7, 11, 12]  # the shifted window covers rows 1 and 2, columns 1 and 2
    torch.testing.assert_close(weights.sum(-1), torch.ones(2))
    whole = record.token_weights("encoder.blocks.0.self_attn", head=1, token=7)
    torch.testing.assert_close(whole, record.weights("encoder.blocks.0.self_attn", 1)[:, 7])


def test_layer_scale_multiplies_the_output_of_each_sublayer() -> None:
    block = spec.BlockSpec(
        attention=spec.AttentionSpec(num_heads=2), feed_forward=_FFN, wiring="pre", layer_scale=0.1
    )
    layer = build_block(block, 16)
    _redraw(layer)
    x = torch.randn(2, 5, 16)
    assert layer.scale_self_attn is not None and layer.scale_ffn is not None and layer.norm_self is not None
    attended = x + layer.scale_self_attn.weight * layer.self_attn(layer.norm_self(x))
    expected = attended + layer.scale_ffn.weight * layer.ffn(layer.norm_ffn(attended))
    torch.testing.assert_close(layer(x, layer.prepare(x)), expected)


def test_inference_encoder_folds_layer_scale() -> None:
    block = spec.BlockSpec(
        attention=spec.AttentionSpec(num_heads=2), feed_forward=_FFN, wiring="pre", layer_scale=0.1
    )
    model = build_model(
        spec.EncoderOnlySpec(
            input=spec.ImagePatchesSpec(image_size=(8, 8), patch_size=(4, 4), interpolate=True),
            encoder=spec.StackSpec(d_model=16, num_layers=2, block=block),
            head=spec.ClassifySpec(num_labels=3),
        )
    ).eval()
    _redraw(model)
    for size in ((8, 8), (12, 20)):
        images = torch.randn(2, 3, *size)
        with torch.no_grad():
            torch.testing.assert_close(InferenceEncoder(model)(images), model(images), atol=1e-5, rtol=1e-4)


def test_stochastic_depth_drops_whole_samples_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    x = drop_path(torch.ones(4000, 3), 0.25)
    assert x.unique().tolist() == pytest.approx([0, 4 / 3])
    assert (x == x[:, :1]).all()
    assert x.mean().item() == pytest.approx(1, abs=0.05)
    block = spec.BlockSpec(attention=spec.AttentionSpec(num_heads=2), feed_forward=_FFN, wiring="pre")
    stack = build_stack(spec.StackSpec(d_model=16, num_layers=3, block=block, drop_path=(0.0, 0.2)))
    assert [layer.drop_path for layer in stack.blocks] == pytest.approx([0.0, 0.1, 0.2])
    x = torch.randn(2, 5, 16)
    torch.testing.assert_close(stack.eval()(x), stack(x))
    assert not torch.equal(stack.train()(x.repeat(20, 1, 1)), stack(x.repeat(20, 1, 1)))


def test_sinusoids_2d_match_transformers_on_padded_grids() -> None:
    from transformers.models.detr.modeling_detr import DetrSinePositionEmbedding

    real = torch.ones(2, 5, 7, dtype=torch.bool)
    real[1, 3:], real[1, :, 5:] = False, False
    reference = DetrSinePositionEmbedding(16, normalize=True)(
        torch.Size((2, 3, 5, 7)), "cpu", torch.float32, real
    )
    expected = reference.flatten(2).transpose(1, 2) if reference.dim() == 4 else reference
    assert (sinusoids_2d(real, 32) - expected).abs().max() < 1e-6
    assert (sinusoids_2d(torch.ones_like(real), 32) - expected).abs().max() > 1e-2  # padding matters
