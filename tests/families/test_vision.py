"""Image encoders: images of other sizes, real weights, and deliberate mistakes that parity must notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import glassformer
from glassformer.core.build import build_model
from glassformer.core.inputs import ImageInputs
from glassformer.core.norms import UnitNorm
from glassformer.core.vision import attention as spatial
from glassformer.core.vision import stages
from glassformer.core.vision.attention import LogBias2d, RelativeBias2d, WindowLayout
from glassformer.core.vision.heads import BackboneOutput
from glassformer.errors import ConflictError, InvalidValueError, ShapeError
from glassformer.families.registry import preset_spec, tiny_spec
from tests.families import harness
from tests.families.cases import DINOV2, SWIN, SWINV2


def gap(reference: Any, model: Any, pixels: Tensor, **options: Any) -> float:
    with torch.no_grad():
        return harness.worst(model(pixels), reference(pixel_values=pixels, **options), None)


def load(reference: Any, folder: Path) -> Any:
    return glassformer.load(harness.save_reference(reference, folder)).model


@pytest.mark.parametrize("size", [(12, 20), (21, 9), (40, 33)])
@pytest.mark.parametrize("case", [DINOV2[0], DINOV2[6], DINOV2[8], DINOV2[12]], ids=lambda case: case[0])
def test_interpolated_positions_match_transformers(case: Any, size: tuple[int, int], tmp_path: Path) -> None:
    reference = harness.reference(*case)
    model = load(reference, tmp_path)
    assert gap(reference, model, torch.randn(2, 3, *size)) < 1e-5


@pytest.mark.parametrize("size", [(30, 17), (25, 41), (44, 20)])
@pytest.mark.parametrize("case", [SWIN[0], SWIN[4], SWIN[6], SWINV2[0], SWINV2[6]], ids=lambda case: case[0])
def test_windows_of_other_grids_match_transformers(case: Any, size: tuple[int, int], tmp_path: Path) -> None:
    reference = harness.reference(*case)
    model = load(reference, tmp_path)
    options = {}
    if case[1].get("use_absolute_embeddings"):  # the reference interpolates only for whole patches
        options, size = {"interpolate_pos_encoding": True}, (size[0] // 4 * 4, size[1] // 4 * 4 + 4)
    assert gap(reference, model, torch.randn(2, 3, *size), **options) < 1e-5


def test_masked_patches_match_transformers(tmp_path: Path) -> None:
    reference = harness.reference(*DINOV2[3])
    model = load(reference, tmp_path)
    pixels, masked = torch.randn(2, 3, 12, 12), torch.rand(2, 9) < 0.5
    with torch.no_grad():
        ours = model(ImageInputs(pixels, masked_patches=masked))
        theirs = reference(pixels, bool_masked_pos=masked)
    assert harness.worst(ours, theirs, None) < 1e-5


def unit_norm_without_clamp(self: UnitNorm, x: Tensor) -> Tensor:
    y = nn.functional.normalize(x, dim=-1)
    return y if self.log_scale is None else y * self.log_scale.exp()[:, None]


def rows_first(self: Any, x: Tensor, grid: Any, *, obs: Any = None) -> Tensor:
    """Patch merging in another order of the corners."""
    cells = nn.functional.pad(x.unflatten(1, grid), (0, 0, 0, grid[1] % 2, 0, grid[0] % 2))
    corners = [cells[:, row::2, column::2] for row in (0, 1) for column in (0, 1)]
    merged = torch.cat(corners, -1).flatten(1, 2)
    return self.project(self.norm(merged))


def linear_offsets(self: LogBias2d) -> None:
    self.index = spatial.offset_index(self.grid)
    sides = [torch.arange(1 - n, n) / max(1, n - 1) for n in self.grid]
    self.offsets = torch.stack(torch.meshgrid(*sides, indexing="ij"), -1).flatten(0, 1)


def transposed_index(self: RelativeBias2d) -> None:
    """The offset from the key to the query, instead of from the query to the key."""
    self.index = spatial.offset_index(self.grid).t().contiguous()


MISTAKES: dict[str, tuple[Any, Any, str, Callable[..., Any]]] = {
    "no shift": (SWIN[0], WindowLayout, "of", classmethod(lambda cls, g, w: cls(g, w.size, 0))),
    "masked shift": (SWIN[0], WindowLayout, "allowed", lambda self, batch, device: None),
    "offset direction": (SWIN[0], RelativeBias2d, "reset_parameters", transposed_index),
    "merging order": (SWIN[0], stages.PatchMerging, "forward", rows_first),
    "scale not clamped": (SWINV2[0], UnitNorm, "forward", unit_norm_without_clamp),
    "linear offsets": (SWINV2[0], LogBias2d, "reset_parameters", linear_offsets),
    "pretrained size": (SWINV2[2], LogBias2d, "reset_parameters", LogBias2d.reset_parameters),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_parity_notices_mistakes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, owner, attribute, mistake = MISTAKES[name]
    reference: Any = harness.reference(*case)
    with torch.no_grad():
        for key, value in reference.named_parameters():
            if key.endswith("logit_scale"):
                value.add_(4.0)  # some of them are above the bound
    size = case[1]["image_size"]
    pixels = torch.randn(2, 3, size, size)
    assert gap(reference, load(reference, tmp_path / "right"), pixels) < 1e-5
    if name == "pretrained size":
        monkeypatch.setattr(LogBias2d, "pretrained_size", None, raising=False)

        def ignoring(self: LogBias2d) -> None:
            self.pretrained_size = None
            mistake(self)

        monkeypatch.setattr(owner, attribute, ignoring)
    else:
        monkeypatch.setattr(owner, attribute, mistake)
    assert gap(reference, load(reference, tmp_path / "wrong"), pixels) > 1e-3


@pytest.mark.parametrize("changed", ["layer_scale", "antialias", "patch mean", "feature norm", "pad"])
def test_parity_notices_wrong_specs(changed: str, tmp_path: Path) -> None:
    """Each spec differs from the right one in one field."""
    numbers = {"antialias": (DINOV2, 8), "feature norm": (DINOV2, 6), "pad": (SWIN, 3)}
    cases, number = numbers.get(changed, (DINOV2, 0))
    reference = harness.reference(*cases[number])
    right = load(reference, tmp_path)
    spec, state = right.spec, right.state_dict()
    match changed:
        case "layer_scale":
            block = replace(spec.encoder.block, layer_scale=None)
            spec = replace(spec, encoder=replace(spec.encoder, block=block))
        case "antialias":
            spec = replace(spec, input=replace(spec.input, antialias=False))
        case "patch mean":
            state = {**state, "head.out.weight": state["head.out.weight"].roll(24, 1)}
        case "feature norm":
            spec = replace(spec, head=replace(spec.head, norm=None, shared_norm=False))
        case "pad":
            spec = replace(spec, input=replace(spec.input, pad=False))
    wrong = build_model(spec).eval()
    wrong.load_state_dict(state, strict=False)
    pixels = torch.randn(2, right.embed.channels, 30, 18) if changed == "pad" else torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        ours, theirs = wrong(pixels), reference(pixel_values=pixels)
    assert gap(reference, right, pixels) < 1e-5
    shapes = [tuple(t.shape) for _, t in harness.outputs(ours)]
    same = shapes == [tuple(harness.theirs(theirs, n).shape) for n, _ in harness.outputs(ours)]
    assert not same or harness.worst(ours, theirs, None) > 1e-3


def test_feature_maps_have_the_widths_and_strides_of_the_stages() -> None:
    spec = preset_spec("swin-mini-patch2-window4-32")
    from glassformer.core.spec import BackboneSpec, LayerNormSpec

    model = build_model(replace(spec, head=BackboneSpec(layers=(0, 1, 2, 3), norm=LayerNormSpec())))
    maps = model(torch.randn(1, 3, 28, 30))
    assert isinstance(maps, BackboneOutput)
    assert [tuple(m.shape) for m in maps.feature_maps] == [
        (1, 64, 14, 15),
        (1, 64, 14, 15),
        (1, 128, 7, 8),
        (1, 256, 4, 4),
    ]


@pytest.mark.parametrize(
    ("preset", "parameters"),  # as transformers counts them, with 1,000 labels
    [
        ("swin-tiny-patch4-window7-224", 28_288_354),
        ("swin-small-patch4-window7-224", 49_606_258),
        ("swin-base-patch4-window7-224", 87_768_224),
        ("swinv2-tiny-patch4-window8-256", 28_347_154),
        ("dinov2-small", 22_056_576),
        ("dinov2-base", 86_580_480),
        ("dinov2-giant", 1_136_480_768),
    ],
)
def test_presets_have_the_published_number_of_parameters(preset: str, parameters: int) -> None:
    with torch.device("meta"):
        model = build_model(preset_spec(preset))
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_invalid_sizes_are_rejected() -> None:
    with pytest.raises(ConflictError) as conflict:
        tiny_spec("swin", depths=(1, 2, 3))
    assert conflict.value.names == ("depths", "num_heads")
    with pytest.raises(InvalidValueError):
        tiny_spec("swin", num_heads=(2, 0))
    with pytest.raises(ShapeError):
        build_model(tiny_spec("dinov2"))(torch.randn(1, 3, 3, 16))
