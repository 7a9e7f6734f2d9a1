"""Interventions against models and inputs that are changed by hand."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glassformer import tiny
from glassformer.core.inputs import TextInputs
from glassformer.core.masks import Mask
from glassformer.core.observe import observe
from glassformer.errors import (
    GlassformerError,
    InvalidValueError,
    UnknownNameError,
    UnsupportedError,
)
from glassformer.interpret.interventions import IntervenedForward
from tests.core.models import SHAPES, H, ids, model_of
from tests.interpret.models import interventions

SOURCE, TARGET = ids(1, 7, seed=1), ids(1, 6, seed=2)


def inputs_of(shape: str) -> dict[str, Tensor]:
    return {"src": SOURCE, "tgt": TARGET} if shape == "encoder_decoder" else {"inputs": SOURCE}


def stack_of(shape: str) -> str:
    return "encoder" if shape == "encoder_only" else "decoder"


def after(model: Any, inputs: dict[str, Any], *changes: dict[str, Any]) -> Tensor:
    """The model's output under the changes; neither weights nor inputs may have moved."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    originals = {name: value.clone() for name, value in inputs.items()}
    forward = IntervenedForward(model, inputs, interventions(changes))
    output = observe(forward.model, forward.inputs, edit=forward.edit).output
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(value, originals[name]) for name, value in inputs.items())
    return output if isinstance(output, Tensor) else output[0]


@pytest.mark.parametrize("shape", SHAPES)
def test_ablate_head_equals_zeroed_columns_of_the_output_projection(shape: str) -> None:
    model, inputs = model_of(shape), inputs_of(shape)
    names = [f"{stack_of(shape)}.blocks.1.self_attn"]
    if shape == "encoder_decoder":
        names += ["decoder.blocks.0.cross_attn", "encoder.blocks.0.self_attn"]
    for name in names:
        other = copy.deepcopy(model)
        attention: Any = other.get_submodule(name)
        width = attention.value_dim
        with torch.no_grad():
            attention.out_proj.weight[:, 2 * width : 3 * width] = 0
        expected = observe(other, inputs).output
        output = after(model, inputs, {"kind": "ablate_head", "attention": name, "head": 2})
        torch.testing.assert_close(output, expected)
        assert not torch.allclose(output, observe(model, inputs).output)


@pytest.mark.parametrize("wiring", ["pre", "post", "parallel"])
@pytest.mark.parametrize("shape", ["encoder_only", "decoder_only"])
def test_skip_layer_equals_a_model_without_the_layer(shape: str, wiring: Any) -> None:
    model, inputs = model_of(shape, wiring=wiring), inputs_of(shape)
    stack = stack_of(shape)
    for layer in (0, 1):
        other = copy.deepcopy(model)
        shorter: Any = other.get_submodule(stack)
        shorter.blocks = nn.ModuleList([shorter.blocks[1 - layer]])
        output = after(model, inputs, {"kind": "skip_layer", "block": f"{stack}.blocks.{layer}"})
        assert torch.equal(output, observe(other, inputs).output)


def test_masked_token_equals_padding_with_unchanged_positions() -> None:
    hidden = torch.ones(1, 7, dtype=torch.bool)
    hidden[0, 3] = False
    change = {"kind": "mask_token", "sequence": "input", "position": 3}
    for shape in ("encoder_only", "decoder_only"):
        model, inputs = model_of(shape), inputs_of(shape)
        expected = model(TextInputs(SOURCE, hidden, positions=torch.arange(7)[None]))
        torch.testing.assert_close(after(model, inputs, change), expected)
    model, inputs = model_of("encoder_decoder"), inputs_of("encoder_decoder")
    expected = model(TextInputs(SOURCE, hidden, positions=torch.arange(7)[None]), TARGET)
    torch.testing.assert_close(after(model, inputs, {**change, "sequence": "source"}), expected)
    mask = Mask(padding=hidden[:, :6])
    expected = model(SOURCE, TextInputs(TARGET, mask, positions=torch.arange(6)[None]))
    torch.testing.assert_close(after(model, inputs, {**change, "sequence": "target"}), expected)


def test_masked_token_keeps_rounded_alibi_biases() -> None:
    """Rounded ALiBi counts real tokens: those after a masked one must keep their positions."""
    torch.manual_seed(0)
    model = tiny("falcon", position="alibi").eval()
    plain = observe(model, {"inputs": SOURCE})
    forward = IntervenedForward(
        model, {"inputs": SOURCE}, interventions([{"kind": "mask_token", "sequence": "input", "position": 3}])
    )
    record = observe(forward.model, forward.inputs)
    for name in record.attentions():
        bias, wanted = record.attention_contexts[name].bias, plain.attention_contexts[name].bias
        assert bias is not None and torch.equal(bias, wanted)
        assert not record.weights(name)[..., 3].any()
        assert torch.allclose(record.weights(name)[:, :, 1:].sum(-1), torch.ones(1))


def test_masking_keeps_a_target_that_starts_with_the_pad_token() -> None:
    model = model_of("encoder_decoder")
    target = TARGET.clone()
    target[0, 0] = 0
    mask = Mask(padding=torch.tensor([[True, True, True, True, False, True]]))
    expected = model(SOURCE, TextInputs(target, mask, positions=torch.arange(6)[None]))
    change = {"kind": "mask_token", "sequence": "target", "position": 4}
    torch.testing.assert_close(after(model, {"src": SOURCE, "tgt": target}, change), expected)


def test_swaps_are_applied_in_order() -> None:
    model = model_of("decoder_only")
    changes = [{"kind": "swap_tokens", "sequence": "input", "positions": two} for two in ([1, 4], [4, 6])]
    forward = IntervenedForward(model, {"inputs": SOURCE}, interventions(changes))
    assert forward.orders == {"input": [0, 4, 2, 3, 6, 5, 1]}
    assert torch.equal(forward.inputs["inputs"].ids, SOURCE[:, forward.orders["input"]])
    assert torch.equal(after(model, {"inputs": SOURCE}, *changes), model(SOURCE[:, [0, 4, 2, 3, 6, 5, 1]]))


def test_swapped_patches_equal_a_swapped_image() -> None:
    torch.manual_seed(0)
    model = tiny("vit").eval()
    embed: Any = model.embed
    (high, wide), (down, along) = embed.image_size, embed.patch_size
    picture = torch.randn(1, embed.channels, high, wide)
    columns, first = wide // along, embed.prefix.shape[1]
    one, other = 0, columns + 1

    def square(index: int) -> tuple[slice, ...]:
        row, column = divmod(index, columns)
        across = slice(column * along, (column + 1) * along)
        return slice(None), slice(None), slice(row * down, (row + 1) * down), across

    swapped = picture.clone()
    swapped[square(one)], swapped[square(other)] = picture[square(other)], picture[square(one)]
    change = {"kind": "swap_tokens", "sequence": "input", "positions": [first + one, first + other]}
    expected = observe(model, {"inputs": swapped}).output
    output = after(model, {"inputs": picture}, change)
    torch.testing.assert_close(output, expected if isinstance(expected, Tensor) else expected[0])
    with pytest.raises(InvalidValueError):
        after(model, {"inputs": picture}, {**change, "positions": [0, first]})


def test_residual_is_scaled_at_one_position_and_passed_on_by_a_layer_that_is_off() -> None:
    model = model_of("decoder_only")
    name = "decoder.blocks.0.resid_out"
    record = observe(model, {"inputs": SOURCE})
    change = {"kind": "scale_residual", "name": name, "position": 4, "scale": -2}
    changes = interventions([change, {"kind": "skip_layer", "block": "decoder.blocks.1"}])
    forward = IntervenedForward(model, {"inputs": SOURCE}, changes)
    changed = observe(forward.model, forward.inputs, edit=forward.edit)
    expected = record[name].clone()
    expected[:, 4] *= -2
    assert torch.equal(changed[name], expected)
    assert torch.equal(changed["decoder.blocks.1.resid_out"], expected)


SCHEMES = ["sinusoidal", "learned", "rotary", "relative", "alibi"]


@pytest.mark.parametrize("position", SCHEMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_stretch_of_one_is_bit_identical_and_another_is_not(shape: str, position: str) -> None:
    model, inputs = model_of(shape, position=position), inputs_of(shape)
    plain = observe(model, inputs).output
    change = {"kind": "scale_positions", "stack": stack_of(shape), "scale": 1}
    assert torch.equal(after(model, inputs, change), plain)
    assert not torch.allclose(after(model, inputs, {**change, "scale": 2.5}), plain)
    assert torch.equal(observe(model, inputs).output, plain)


@pytest.mark.parametrize("position", SCHEMES)
def test_stretch_of_two_reads_every_other_position(position: str) -> None:
    model = model_of("encoder_only", position=position)
    output = after(model, {"inputs": SOURCE}, {"kind": "scale_positions", "stack": "encoder", "scale": 2})
    if position in ("relative", "alibi"):  # only row numbers count: as among hidden tokens in between
        wide = torch.ones(1, 13, dtype=torch.long)
        wide[:, ::2] = SOURCE
        real = torch.arange(13)[None] % 2 == 0
        allowed = real[:, None, None].expand(1, 1, 13, 13)
        expected = model(wide, mask=Mask(allowed=allowed))[:, ::2]
    else:
        expected = model(TextInputs(SOURCE, positions=2 * torch.arange(7)[None]))
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["vit", "patchtst"])
def test_patches_can_be_masked_and_their_positions_compressed(family: str) -> None:
    torch.manual_seed(0)
    model: Any = tiny(family).eval()
    embed = model.embed
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value) * 0.3)
    shape = (
        (1, embed.channels, *embed.image_size)
        if family == "vit"
        else (1, embed.context_length, embed.channels)
    )
    inputs = {"inputs": torch.randn(shape)}
    plain = after(model, inputs)
    same = {"kind": "scale_positions", "stack": "encoder", "scale": 1.0}
    assert torch.equal(after(model, inputs, same), plain)
    assert not torch.allclose(after(model, inputs, {**same, "scale": 0.5}), plain)
    with pytest.raises(InvalidValueError) as error:
        after(model, inputs, {**same, "scale": 2.0})
    assert error.value.name == "scale"
    forward = IntervenedForward(
        model, inputs, interventions([{"kind": "mask_token", "sequence": "input", "position": 2}])
    )
    record = observe(forward.model, forward.inputs)
    assert all(not record.weights(name)[..., 2].any() for name in record.attentions())


ATTENTION = "decoder.blocks.0.self_attn"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"kind": "ablate_head", "attention": ATTENTION, "head": H}, InvalidValueError),
        ({"kind": "ablate_head", "attention": ATTENTION, "head": -1}, InvalidValueError),
        ({"kind": "ablate_head", "attention": "decoder.blocks.9.self_attn", "head": 0}, UnknownNameError),
        ({"kind": "ablate_head", "attention": "decoder.blocks.0.ffn", "head": 0}, UnknownNameError),
        ({"kind": "skip_layer", "block": ""}, UnknownNameError),
        ({"kind": "skip_layer", "block": "decoder"}, UnknownNameError),
        ({"kind": "mask_token", "sequence": "source", "position": 0}, UnknownNameError),
        ({"kind": "mask_token", "sequence": "input", "position": 7}, InvalidValueError),
        ({"kind": "scale_residual", "name": f"{ATTENTION}.q", "position": 0, "scale": 1}, UnknownNameError),
        (
            {"kind": "scale_residual", "name": "decoder.blocks.0.resid_cross", "position": 0, "scale": 1},
            UnknownNameError,
        ),
        ({"kind": "scale_positions", "stack": "encoder", "scale": 2}, UnknownNameError),
    ],
)
def test_interventions_on_missing_parts_are_rejected(
    change: dict[str, Any], error: type[GlassformerError]
) -> None:
    with pytest.raises(error):
        IntervenedForward(model_of("decoder_only"), {"inputs": SOURCE}, interventions([change]))


def test_a_model_without_positions_cannot_stretch_them() -> None:
    stretch = interventions([{"kind": "scale_positions", "stack": "decoder", "scale": 0.5}])
    with pytest.raises(UnsupportedError):
        IntervenedForward(model_of("decoder_only", position="none"), {"inputs": SOURCE}, stretch)
