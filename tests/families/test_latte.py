"""Latte, compared with diffusers' LatteTransformer3DModel in float64."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer
from glassformer.core import spec as specs
from glassformer.core.build import build_model, unique_state_dict
from glassformer.core.inputs import LatentInputs
from glassformer.core.observe import observe
from glassformer.core.vision.attention import AxisLayout
from glassformer.errors import GlassformerError
from glassformer.families.registry import families, preset_spec
from glassformer.inference.prepare import packed_copy
from glassformer.weights.convert import to_theirs

diffusers = pytest.importorskip("diffusers", reason="diffusers, the reference of this family, is missing")

# relative to the largest output; positions of other sizes are rounded to float32 in the reference
EXACT, ROUNDED = 1e-10, 1e-6
_TINY: dict[str, Any] = {
    **{"num_attention_heads": 4, "attention_head_dim": 6, "cross_attention_dim": 24, "caption_channels": 20},
    **{"in_channels": 4, "num_layers": 2, "sample_size": 8, "patch_size": 2, "video_length": 5},
    **{"activation_fn": "gelu-approximate", "norm_type": "ada_norm_single", "attention_bias": True},
    "norm_elementwise_affine": False,
}
CASES: list[dict[str, Any]] = [
    {**_TINY, "out_channels": 8},
    {**_TINY, "norm_eps": 0.1, "activation_fn": "gelu", "attention_bias": False},
    {**_TINY, "sample_size": 15, "patch_size": 3, "in_channels": 1, "num_layers": 3, "video_length": 7},
    {**_TINY, "cross_attention_dim": None},  # no layer attends to the text
    {**_TINY, "sample_size": 5, "patch_size": 1, "num_attention_heads": 3, "cross_attention_dim": 18 + 6}
    | {"attention_head_dim": 8, "video_length": 2, "caption_channels": 3},
    {**_TINY, "sample_size": 130, "patch_size": 26, "num_layers": 1, "video_length": 3},
    {**_TINY, "video_length": 1, "out_channels": 5},
]


def reference_of(case: dict[str, Any]) -> Any:
    """The reference with every parameter redrawn."""
    torch.manual_seed(0)
    model = diffusers.LatteTransformer3DModel(**case).double().eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            spread = 0.3 if value.dim() == 1 or "table" in name else value[0].numel() ** -0.5
            value.copy_(torch.randn_like(value) * spread)
    return model


@pytest.fixture(scope="module", params=CASES, ids=[str(n) for n in range(len(CASES))])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The reference, and the bundle loaded from its folder."""
    reference, folder = reference_of(request.param), tmp_path_factory.mktemp("reference")
    reference.save_pretrained(folder)
    return reference, glassformer.load(folder)


def inputs_of(model: Any, shape: tuple[int, int, int] | None = None, batch: int = 2) -> LatentInputs:
    """Latents of so many frames, and rows and columns of patches, with time steps and texts."""
    generator, read = torch.Generator().manual_seed(3), model.spec.input
    frames, *grid = shape or (read.num_frames, *read.patches.grid)
    size = [count * side for count, side in zip(grid, read.patches.patch_size, strict=True)]
    like = next(model.parameters())
    latents = torch.randn(batch, read.patches.channels, frames, *size, generator=generator).to(like)
    inputs = LatentInputs(latents, torch.tensor([431, 999, 0])[:batch])
    if read.text_dim is None:
        return replace(inputs, labels=torch.tensor([0, 2, 1])[:batch])
    return replace(inputs, text=torch.randn(batch, 7, read.text_dim, generator=generator).to(like))


def run_reference(reference: Any, inputs: LatentInputs) -> Tensor:
    output: Tensor = reference(inputs.latents, inputs.timesteps, inputs.text).sample
    return output


def gap(reference: Any, model: Any, shape: tuple[int, int, int] | None = None, **options: Any) -> float:
    """The largest difference of the outputs, relative to the largest output."""
    inputs = inputs_of(model, shape)
    with torch.no_grad():
        ours, theirs = model(inputs, **options), run_reference(reference, inputs)
    assert ours.shape == theirs.shape and theirs.abs().max() > 0.5
    return float((ours - theirs).abs().max() / theirs.abs().max())


def test_outputs_match_diffusers(pair: Any) -> None:
    """Also with other sizes, which are not square, and for one frame, which has no place in time."""
    reference, bundle = pair
    model, frames = bundle.model, bundle.spec.input.num_frames
    assert next(model.parameters()).dtype == torch.float64
    assert gap(reference, model) < EXACT
    assert gap(reference, model, kernel="explicit") < EXACT
    for shape in ((frames, 7, 3), (frames, 2, 6), (1, 4, 4)):
        assert gap(reference, model, shape) < ROUNDED


def test_gradients_match_diffusers(pair: Any) -> None:
    reference, bundle = pair
    model, inputs = bundle.model, inputs_of(bundle.model)
    reference.zero_grad()
    model.zero_grad()
    model(inputs).square().mean().backward()
    run_reference(reference, inputs).square().mean().backward()
    table = families()["latte"].table(bundle.spec, ())
    grads = {name: value.grad for name, value in model.named_parameters()}
    crosses = bundle.spec.encoder.block.cross_attention is not None
    assert crosses or {name for name, grad in grads.items() if grad is None} == {
        f"embed.text.{part}.{kind}" for part in ("up", "down") for kind in ("weight", "bias")
    }
    found: Any = {name: grads.get(name) for name in unique_state_dict(model)}
    zeros = {name: torch.zeros_like(t) for name, t in unique_state_dict(model).items() if found[name] is None}
    ours = to_theirs(found | zeros, table)
    theirs = {n: torch.zeros_like(v) if v.grad is None else v.grad for n, v in reference.named_parameters()}
    assert ours.keys() == theirs.keys()
    largest = max(float(gradient.abs().max()) for gradient in theirs.values())
    for name, gradient in theirs.items():
        assert (ours[name] - gradient).abs().max() < EXACT * largest, name


@pytest.mark.parametrize("fresh", [False, True])
def test_diffusers_reads_the_saved_folder(pair: Any, tmp_path: Path, fresh: bool) -> None:
    """With the published config, and with one that was made from the spec."""
    reference, bundle = pair
    glassformer.save(glassformer.Pipeline(model=bundle.model) if fresh else bundle, tmp_path)
    again, info = type(reference).from_pretrained(
        tmp_path, torch_dtype=torch.float64, output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    before, after = reference.state_dict(), again.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in after)
    loaded = glassformer.load(tmp_path)
    assert loaded.spec == bundle.spec and loaded.family == "latte"
    assert gap(again.eval(), loaded.model) < EXACT


def test_texts_with_padding_match_the_reference_without(pair: Any) -> None:
    """The reference has no mask for more than one frame, so that its rows run alone."""
    reference, bundle = pair
    inputs = inputs_of(bundle.model, batch=3)
    mask = torch.arange(7) < torch.tensor([7, 4, 1])[:, None]
    with torch.no_grad():
        together = bundle.model(replace(inputs, text_mask=mask))
        for row in range(3):
            text = inputs.text[row][mask[row]][None]
            alone = run_reference(
                reference, LatentInputs(inputs.latents[row][None], inputs.timesteps[row][None], text=text)
            )
            assert (together[row] - alone[0]).abs().max() < EXACT * alone.abs().max()


# ---- wrong variants ---------------------------------------------------------------------------------------


def _blocks(model: Any, axis: str) -> list[Any]:
    return [block for block in model.encoder.blocks if block.self_attn.spatial_window.axis == axis]


def space_and_time_swapped(model: Any) -> None:
    for block in model.encoder.blocks:
        axis = {"space": "time", "time": "space"}[block.self_attn.spatial_window.axis]
        block.self_attn.spatial_window = specs.AxisSpec(axis=axis)


def time_attends_to_space(model: Any) -> None:
    for block in _blocks(model, "time"):
        block.self_attn.spatial_window = specs.AxisSpec(axis="space")


def attention_to_all(model: Any) -> None:
    for block in _blocks(model, "space"):
        block.self_attn.spatial_window = None


def no_time_table(model: Any) -> None:
    model.embed.frames.table.zero_()


def time_table_interleaved(model: Any) -> None:
    model.embed.frames.layout = "interleaved"
    model.embed.frames.reset_parameters()


def time_added_before_the_first_layer(model: Any) -> None:
    embed = model.embed.forward

    def forward(inputs: LatentInputs, **options: Any) -> Any:
        out = embed(inputs, **options)
        return out._replace(x=out.x + out.layer_positions[0], layer_positions=None)

    model.embed.forward = forward


def time_added_after_every_layer(model: Any) -> None:
    embed = model.embed.forward

    def forward(inputs: LatentInputs, **options: Any) -> Any:
        out = embed(inputs, **options)
        return out._replace(layer_positions=out.layer_positions.expand(3, -1, -1, -1))

    model.embed.forward = forward


def frames_reversed(model: Any) -> None:
    embed = model.embed.forward
    model.embed.forward = lambda inputs, **options: embed(
        replace(inputs, latents=inputs.latents.flip(2)), **options
    )


def no_cross_attention(model: Any) -> None:
    for block in _blocks(model, "space"):
        block.cross_attn = None


def layers_grouped_by_kind(model: Any) -> None:
    blocks = list(model.encoder.blocks)
    model.encoder.blocks = torch.nn.ModuleList(blocks[0::2] + blocks[1::2])


def head_without_condition(model: Any) -> None:
    model.head.norm.modulation.forward = lambda condition: (torch.zeros(1), torch.zeros(1))


WRONG = (space_and_time_swapped, time_attends_to_space, attention_to_all, no_time_table)
WRONG += (time_table_interleaved, time_added_before_the_first_layer, time_added_after_every_layer)
WRONG += (frames_reversed, no_cross_attention, layers_grouped_by_kind, head_without_condition)


@pytest.mark.parametrize("change", WRONG)
def test_wrong_variants_fail(change: Callable[[Any], None], tmp_path: Path) -> None:
    reference = reference_of(CASES[0])
    reference.save_pretrained(tmp_path)
    model: Any = glassformer.load(tmp_path, mmap=False).model
    assert gap(reference, model) < EXACT
    change(model)
    assert gap(reference, model) > 1e-3


# ---- beyond the reference ---------------------------------------------------------------------------------


def drawn(**options: Any) -> Any:
    """A tiny model with every parameter redrawn, in float64."""
    torch.manual_seed(0)
    model = glassformer.tiny("latte", **options).double().eval()
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.randn_like(value) * (0.3 if value.dim() == 1 else value[0].numel() ** -0.5))
    return model


def test_layers_attend_along_their_axis_only() -> None:
    """A change of one patch reaches its frame in the first layer, and its place in all frames in the next."""
    model = drawn(num_layers=1)
    inputs = inputs_of(model, batch=1)
    changed = inputs.latents.clone()
    changed[:, :, 1, 2:4, 6:8] += 1  # frame 1, row 1, column 3 of 4 x 4 patches
    states = []
    for latents in (inputs.latents, changed):
        record = observe(model, replace(inputs, latents=latents), want="encoder.blocks.*.resid_out")
        states.append([record[f"encoder.blocks.{n}.resid_out"].detach() for n in range(2)])
    first, second = ((a != b).any(-1).view(4, 16) for a, b in zip(*states, strict=True))
    assert first[1].all() and not first[[0, 2, 3]].any()
    assert second.all()
    window = glassformer.tiny("latte").encoder.blocks[1].self_attn.spatial_window
    assert window == specs.AxisSpec(axis="time")


@pytest.mark.parametrize("axis", ["space", "time"])
def test_layouts_are_merged_as_they_were_divided(axis: str) -> None:
    layout, x = AxisLayout((3, 2, 5), axis), torch.randn(2, 30, 4)
    parts = layout.partition(x)
    assert parts.shape == (2 * layout.num_windows, 30 // layout.num_windows, 4)
    assert torch.equal(layout.merge(parts), x)
    assert torch.equal(parts[: layout.num_windows], x[0][layout.token_ids()])


def test_weights_of_attention_are_recorded_for_the_whole_video() -> None:
    model = drawn()
    inputs = inputs_of(model, batch=1)
    record = observe(model, inputs, want="encoder.blocks.*.self_attn.*")
    for layer, near in ((0, range(16, 32)), (1, range(5, 64, 16))):
        row = record.token_weights(f"encoder.blocks.{layer}.self_attn", 0, 16 + 5)
        assert row.nonzero()[:, 1].tolist() == list(near) and abs(float(row.sum()) - 1) < 1e-9


@pytest.mark.parametrize("options", [{}, {"text_dim": None, "num_classes": 3}])
def test_rows_do_not_depend_on_their_neighbors(options: dict[str, Any], tmp_path: Path) -> None:
    """With a text or a class; also saved, prepared for inference and traced by the compiler."""
    model = drawn(num_layers=1, **options)
    inputs = inputs_of(model, (3, 4, 4))
    glassformer.save(glassformer.Pipeline(model=model), tmp_path)
    loaded = glassformer.load(tmp_path).model
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        together = model(inputs)
        for row in range(2):
            fields = {n: x[row : row + 1] for n, x in vars(inputs).items() if isinstance(x, Tensor)}
            torch.testing.assert_close(model(LatentInputs(**fields))[0], together[row], atol=1e-10, rtol=0)
        for other in (loaded, compiled, packed_copy(model, None)):
            torch.testing.assert_close(other(inputs), together, atol=1e-10, rtol=0)


def test_presets_have_their_sizes() -> None:
    with torch.device("meta"):
        published, small = (build_model(preset_spec(name)) for name in ("latte-1", "latte-mini"))
    assert sum(value.numel() for value in published.parameters()) == 1_057_246_880
    assert sum(value.numel() for value in small.parameters()) == 11_729_168
    assert inputs_of(small).latents.shape == (2, 1, 16, 32, 32)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"cross_attention_dim": 20}, "cross_attention_dim"),
        ({"caption_channels": None}, "caption_channels"),
        ({"norm_type": "layer_norm"}, "norm_type"),
        ({"activation_fn": "geglu"}, "activation_fn"),
        ({"video_length": 0}, "num_frames"),
        ({"video_length": 2**31 - 1}, "num_frames"),
    ],
)
def test_other_configs_are_refused(change: dict[str, Any], match: str, tmp_path: Path) -> None:
    config = {"_class_name": "LatteTransformer3DModel", **CASES[0], **change}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(GlassformerError, match=match):
        glassformer.load(tmp_path)


def test_wrong_inputs_are_one_clear_error() -> None:
    model = drawn()
    inputs = inputs_of(model)
    latents = inputs.latents
    for wrong, match in (
        (latents[:, :, 0], "frames"),
        (torch.cat([latents, latents], 2), "1 to 4 frames"),
        (latents[:, :, :0], "1 to 4 frames"),
        (latents[..., :-1], "whole patches"),
        (latents[:, :1], "images"),
    ):
        with pytest.raises(GlassformerError, match=match):
            model(replace(inputs, latents=wrong))
    stack = replace(model.spec.encoder, pattern=(), num_layers=1)
    image = replace(model.spec, input=replace(model.spec.input, num_frames=None), encoder=stack)
    with pytest.raises(GlassformerError, match="frames, rows and columns"):
        build_model(image).double()(replace(inputs, latents=latents[:, :, 0]))
