"""DiT and PixArt, compared with diffusers' DiTTransformer2DModel and PixArtTransformer2DModel."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import glassformer
from glassformer.core.build import build_model, unique_state_dict
from glassformer.core.diffusion.modulation import AdaptiveNorm, Modulation
from glassformer.core.inputs import LatentInputs
from glassformer.errors import ConflictError, GlassformerError, InvalidValueError, MissingValueError
from glassformer.families.registry import families
from glassformer.weights.convert import to_theirs
from glassformer.weights.store import STEMS, save_weights

diffusers = pytest.importorskip("diffusers", reason="diffusers, the reference of these families, is missing")

OUTPUTS, GRADIENTS, BATCH = 1e-5, 2e-5, 3
WEIGHTS = "diffusion_pytorch_model.safetensors"
DIT, PIXART = "DiTTransformer2DModel", "PixArtTransformer2DModel"
_TINY = {"num_attention_heads": 4, "attention_head_dim": 6, "num_layers": 2, "sample_size": 8}
_CLASSES = {**_TINY, "num_embeds_ada_norm": 10}
_TEXT = {**_TINY, "cross_attention_dim": 24, "caption_channels": 20, "use_additional_conditions": False}
CASES: list[tuple[str, dict[str, Any]]] = [
    (DIT, {**_CLASSES, "out_channels": 8}),
    (DIT, {**_CLASSES, "norm_eps": 0.1, "activation_fn": "gelu"}),
    (DIT, {**_CLASSES, "sample_size": 15, "patch_size": 3, "in_channels": 1, "num_layers": 3}),
    (DIT, {**_CLASSES, "sample_size": 5, "patch_size": 1, "attention_bias": False, "num_embeds_ada_norm": 2}),
    (DIT, {**_CLASSES, "num_attention_heads": 3, "attention_head_dim": 12, "out_channels": 3}),
    (
        DIT,
        {**_CLASSES, "sample_size": 14, "num_layers": 1, "num_attention_heads": 1, "attention_head_dim": 8},
    ),
    (PIXART, {**_TEXT, "out_channels": 8}),
    (PIXART, {**_TEXT, "norm_eps": 0.1, "activation_fn": "gelu", "out_channels": None}),
    (PIXART, {**_TEXT, "sample_size": 15, "patch_size": 3, "in_channels": 1, "num_layers": 3}),
    (PIXART, {**_TEXT, "caption_channels": None, "cross_attention_dim": 20, "attention_bias": False}),
    (PIXART, {**_TEXT, "interpolation_scale": 2, "num_attention_heads": 3, "attention_head_dim": 8}),
    (PIXART, {**_TEXT, "sample_size": 130, "patch_size": 10, "num_layers": 1}),
]


def reference_of(case: tuple[str, dict[str, Any]], seed: int = 0) -> Any:
    """The reference with every parameter redrawn; the layers of DiT share what embeds time and class."""
    torch.manual_seed(seed)
    model = getattr(diffusers, case[0])(**case[1]).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            spread = 0.3 if value.dim() == 1 or "table" in name else value[0].numel() ** -0.5
            value.copy_(torch.randn_like(value) * spread)
    if case[0] == DIT:
        for block in model.transformer_blocks:
            block.norm1.emb = model.transformer_blocks[0].norm1.emb
    return model


def save_reference(model: Any, folder: Path) -> Path:
    """Save every copy: the library refuses to save shared tensors."""
    model.save_config(folder)
    save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, folder / WEIGHTS)
    return folder


@pytest.fixture(scope="module", params=CASES, ids=[f"{n}-{case[0]}" for n, case in enumerate(CASES)])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The reference, the bundle loaded from its folder, and the folder."""
    reference = reference_of(request.param, CASES.index(request.param))
    folder = save_reference(reference, tmp_path_factory.mktemp("reference"))
    return reference, glassformer.load(folder), folder


def inputs_of(model: Any, patches: tuple[int, int] | None = None) -> LatentInputs:
    """Latents of so many rows and columns of patches, with time steps, labels and texts of unequal length."""
    generator = torch.Generator().manual_seed(3)
    read = model.spec.input
    grid = patches or read.patches.grid
    size = [count * side for count, side in zip(grid, read.patches.patch_size, strict=True)]
    latents = torch.randn(BATCH, read.patches.channels, *size, generator=generator)
    inputs = LatentInputs(latents, torch.tensor([0, 431, 999]))
    if read.num_classes is not None:
        return replace(inputs, labels=torch.tensor([0, read.num_classes - 1, read.num_classes]))
    mask = torch.arange(7) < torch.tensor([7, 4, 1])[:, None]
    text = torch.randn(BATCH, 7, read.text_dim, generator=generator)
    return replace(inputs, text=text, text_mask=mask)


def run_reference(reference: Any, inputs: LatentInputs) -> Tensor:
    if inputs.labels is not None:
        return reference(inputs.latents, inputs.timesteps, inputs.labels).sample
    text = {"encoder_hidden_states": inputs.text, "encoder_attention_mask": inputs.text_mask}
    return reference(inputs.latents, timestep=inputs.timesteps, **text).sample


def gap(reference: Any, model: Any, patches: tuple[int, int] | None = None, **options: Any) -> float:
    """The largest difference of the outputs, relative to outputs above 1."""
    inputs = inputs_of(model, patches)
    with torch.no_grad():
        ours, theirs = model(inputs, **options), run_reference(reference, inputs)
    assert ours.shape == theirs.shape and theirs.abs().max() > 0.5
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1))


def test_outputs_match_diffusers(pair: Any) -> None:
    """Also with larger and smaller latents, where positions are squeezed; DiT's reference: squares only."""
    reference, bundle, _ = pair
    model = bundle.model
    assert gap(reference, model) < OUTPUTS
    assert gap(reference, model, kernel="explicit") < OUTPUTS
    for patches in ((7, 7), (3, 3)) if type(reference).__name__ == DIT else ((7, 3), (2, 5), (6, 6)):
        assert gap(reference, model, patches) < OUTPUTS


def test_gradients_match_diffusers(pair: Any) -> None:
    reference, bundle, _ = pair
    model, inputs = bundle.model, inputs_of(bundle.model)
    reference.zero_grad()
    model.zero_grad()
    model(inputs).square().mean().backward()
    run_reference(reference, inputs).square().mean().backward()
    table = families()[bundle.family].table(bundle.spec, ())
    ours = to_theirs({name: value.grad for name, value in unique_state_dict(model).items()}, table)
    theirs = {name: value.grad for name, value in reference.named_parameters(remove_duplicate=False)}
    assert ours.keys() == theirs.keys()
    largest = max(float(gradient.abs().max()) for gradient in theirs.values())
    for name, gradient in theirs.items():
        assert (ours[name] - gradient).abs().max() < GRADIENTS * max(1.0, largest), name


@pytest.mark.parametrize("fresh", [False, True])
def test_diffusers_reads_the_saved_folder(pair: Any, tmp_path: Path, fresh: bool) -> None:
    """With the published config, and with one that was made from the spec: the same tensors and outputs."""
    reference, bundle, folder = pair
    glassformer.save(glassformer.Pipeline(model=bundle.model) if fresh else bundle, tmp_path)
    again, info = type(reference).from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    before, after = (load_file(path / WEIGHTS) for path in (folder, tmp_path))
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in after)
    loaded = glassformer.load(tmp_path)
    assert loaded.spec == bundle.spec and loaded.family == bundle.family
    assert gap(again.eval(), loaded.model) < OUTPUTS


def test_sharded_folders_are_read_by_both(pair: Any, tmp_path: Path) -> None:
    reference, bundle, _ = pair
    (tmp_path / "config.json").write_text(json.dumps(bundle.config))
    table = families()[bundle.family].table(bundle.spec, ())
    names = save_weights(
        tmp_path, to_theirs(unique_state_dict(bundle.model), table), 8_000, stem=STEMS["diffusers"]
    )
    assert len(names) > 2 and f"{WEIGHTS}.index.json" in names
    again = type(reference).from_pretrained(tmp_path).eval()
    assert gap(again, glassformer.load(tmp_path).model) < OUTPUTS


def test_the_former_class_is_read(pair: Any, tmp_path: Path) -> None:
    """Published folders name the class that both models had before, and differ in the kind of norm."""
    reference, bundle, folder = pair
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "_class_name": "Transformer2DModel"}))
    save_file(load_file(folder / WEIGHTS), tmp_path / WEIGHTS)
    loaded = glassformer.load(tmp_path)
    assert loaded.spec == bundle.spec and gap(reference, loaded.model) < OUTPUTS


# ---- wrong variants ---------------------------------------------------------------------------------------


def _modulations(model: nn.Module, count: int) -> list[Modulation]:
    return [part for part in model.modules() if isinstance(part, Modulation) and part.count == count]


def scale_before_shift(model: Any) -> None:
    for part in _modulations(model, 2):
        part.register_forward_hook(lambda module, inputs, vectors: vectors[::-1])


def without_gates(model: Any) -> None:
    for block in model.encoder.blocks:
        block.scale_self_attn = block.scale_ffn = None


def gates_swapped(model: Any) -> None:
    for block in model.encoder.blocks:
        block.scale_self_attn, block.scale_ffn = block.scale_ffn, block.scale_self_attn


def other_divisor(model: Any) -> None:
    time = model.embed.time
    other = "half" if time.spec.divisor == "half_minus_1" else "half_minus_1"
    time.spec = replace(time.spec, divisor=other)


def sines_first(model: Any) -> None:
    model.embed.time.spec = replace(model.embed.time.spec, cosines_first=False)


def eps_of_the_wrong_norm(model: Any) -> None:
    for block in model.encoder.blocks:
        block.norm_ffn.eps = 1e-6


def eps_of_the_head(model: Any) -> None:
    model.head.norm.eps = 0.1


def transposed_patches(model: Any) -> None:
    weight = model.head.out.weight.data.unflatten(0, (*model.head.patch_size, -1))
    model.head.out.weight.data = weight.transpose(0, 1).flatten(0, 2).contiguous()


def channels_before_pixels(model: Any) -> None:
    weight = model.head.out.weight.data.unflatten(0, (-1, model.head.channels))
    model.head.out.weight.data = weight.transpose(0, 1).flatten(0, 1).contiguous()


def rows_before_columns(model: Any) -> None:
    model.embed.patches.sines.table = model.embed.patches.sines.table.roll(model.encoder_width // 2, -1)


def head_reads_no_condition(model: Any) -> None:
    model.head.norm.modulation.forward = lambda condition: (torch.zeros(1), torch.zeros(1))


def without_text_mask(model: Any) -> None:
    forward = model.embed.forward
    model.embed.forward = lambda inputs, **options: forward(replace(inputs, text_mask=None), **options)


def norm_before_cross_attention(model: Any) -> None:
    for block in model.encoder.blocks:
        block.norm_cross = nn.LayerNorm(model.encoder_width)


def exact_gelu_in_the_text_projection(model: Any) -> None:
    model.embed.text.activation = nn.functional.gelu


def positions_not_divided(model: Any) -> None:
    model.embed.patches.sines.scale = 1.0
    model.embed.patches.sines.reset_parameters()


def tables_of_other_vectors(model: Any) -> None:
    for block in model.encoder.blocks:
        block.norm_self.modulation.shared, block.norm_ffn.modulation.shared = slice(3, 5), slice(0, 2)


BOTH = (scale_before_shift, without_gates, gates_swapped, other_divisor, sines_first, eps_of_the_wrong_norm)
BOTH += (eps_of_the_head, transposed_patches, channels_before_pixels, rows_before_columns)
BOTH += (head_reads_no_condition,)
OF_TEXT = (without_text_mask, norm_before_cross_attention, exact_gelu_in_the_text_projection)
OF_TEXT += (positions_not_divided, tables_of_other_vectors)


@pytest.mark.parametrize(
    ("case", "changes"),
    [(CASES[1], BOTH), ((PIXART, {**CASES[7][1], "interpolation_scale": 2}), (*BOTH, *OF_TEXT))],
    ids=[DIT, PIXART],
)
def test_wrong_variants_fail(
    case: tuple[str, dict[str, Any]], changes: tuple[Callable[[Any], None], ...], tmp_path: Path
) -> None:
    """Every part that is new in these families changes the outputs."""
    reference = reference_of(case)
    folder = save_reference(reference, tmp_path)
    assert gap(reference, glassformer.load(folder).model) < OUTPUTS
    for change in changes:
        model = glassformer.load(folder, mmap=False).model
        model.encoder_width = model.spec.encoder.d_model
        change(model)
        assert gap(reference, model) > 3 * OUTPUTS, change.__name__


# ---- beyond the reference ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dit", "pixart"])
def test_rows_do_not_depend_on_their_neighbors_or_on_padding(name: str) -> None:
    model = drawn(name)
    inputs = inputs_of(model)
    with torch.no_grad():
        together = model(inputs)
        for row in range(BATCH):
            alone = LatentInputs(inputs.latents[row : row + 1], inputs.timesteps[row])  # one number
            if inputs.labels is not None:
                alone = replace(alone, labels=inputs.labels[row : row + 1])
            if inputs.text is not None:
                alone = replace(alone, text=inputs.text[row][inputs.text_mask[row]][None])
            torch.testing.assert_close(model(alone)[0], together[row], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["dit", "pixart"])
def test_compiled_model_matches(name: str) -> None:
    model = drawn(name)
    inputs = inputs_of(model)
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(inputs), model(inputs), atol=1e-5, rtol=1e-5)


def test_labels_are_dropped_in_training_only() -> None:
    model = drawn("dit")
    label = model.embed.label
    label.dropout = 0.5
    labels = torch.full((4000,), 3)
    torch.manual_seed(0)
    assert torch.equal(label(labels), label.table.weight[labels])
    dropped = (model.train().embed.label(labels) == label.table.weight[label.num_classes]).all(-1)
    assert 0.47 < dropped.float().mean() < 0.53
    inputs = inputs_of(model.eval())
    empty = replace(inputs, labels=torch.full((BATCH,), label.num_classes))
    with torch.no_grad():
        assert torch.equal(model(replace(inputs, labels=None)), model(empty))


@pytest.mark.parametrize("name", ["dit", "pixart"])
def test_a_fresh_model_starts_with_zeros_and_learns(name: str) -> None:
    """The last layer is zero, and in DiT every block is the identity; one step gives both a gradient."""
    torch.manual_seed(0)
    model = glassformer.tiny(name).train()
    inputs = inputs_of(model)
    assert not model(inputs).any()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        loss = (model(inputs)[:, :4] - inputs.latents).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]
    assert all(value.any() for value in model.parameters())


def test_layers_with_different_copies_are_refused(tmp_path: Path) -> None:
    folder = save_reference(reference_of(CASES[0]), tmp_path)
    tensors = load_file(folder / WEIGHTS)
    tensors["transformer_blocks.1.norm1.emb.timestep_embedder.linear_1.bias"][3] += 1e-3
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises(ConflictError, match="different values"):
        glassformer.load(folder)


@pytest.mark.parametrize(
    ("case", "change", "match"),
    [
        (6, {"use_additional_conditions": True}, "use_additional_conditions"),
        (6, {"sample_size": 128, "use_additional_conditions": None}, "use_additional_conditions"),
        (6, {"cross_attention_dim": 20}, "cross_attention_dim"),
        (6, {"norm_type": "ada_norm_zero"}, "norm_type"),
        (0, {"activation_fn": "geglu"}, "activation_fn"),
        (0, {"_class_name": "SanaTransformer2DModel"}, "_class_name = 'SanaTransformer2DModel'"),
        (0, {"_class_name": "Transformer2DModel", "norm_type": "layer_norm"}, "norm_type"),
    ],
)
def test_other_configs_are_refused(case: int, change: dict[str, Any], match: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"_class_name": CASES[case][0], **CASES[case][1], **change})
    )
    with pytest.raises(GlassformerError, match=match):
        glassformer.load(tmp_path)


def test_wrong_inputs_are_one_clear_error() -> None:
    dit, pixart = drawn("dit"), drawn("pixart")
    labeled, captioned = inputs_of(dit), inputs_of(pixart)
    for model, inputs, match in (
        (dit, labeled.latents, "a time step"),
        (dit, replace(labeled, latents=labeled.latents[..., :-1]), "whole patches"),
        (dit, replace(labeled, timesteps=torch.tensor([1, 2])), "timesteps"),
        (dit, replace(labeled, labels=torch.tensor([0, 1, 11])), "label"),
        (dit, replace(labeled, labels=torch.tensor([0])), "labels"),
        (dit, replace(captioned, text_mask=None), "a text"),
        (pixart, replace(captioned, text=None), "a text"),
        (pixart, replace(captioned, text=captioned.text[..., 1:]), "text"),
        (pixart, replace(captioned, labels=torch.tensor([0, 1, 2])), "class labels"),
    ):
        with pytest.raises(GlassformerError, match=match):
            model(inputs)
    with pytest.raises(MissingValueError, match="a condition"):
        AdaptiveNorm(8, eps=1e-6)(torch.zeros(1, 2, 8), None)
    spec = dit.spec
    with pytest.raises(ConflictError, match="modulation"):
        build_model(replace(spec, head=replace(spec.head, modulation="shared")))
    with pytest.raises(InvalidValueError, match="multiple of 4"):
        glassformer.tiny("dit", d_model=6, num_heads=1)


def drawn(name: str) -> Any:
    """A tiny model with every parameter redrawn."""
    torch.manual_seed(0)
    model = glassformer.tiny(name).eval()
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.randn_like(value) * (0.3 if value.dim() == 1 else value[0].numel() ** -0.5))
    return model
