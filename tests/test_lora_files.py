"""LoRA adapters of diffusion models in one file, compared with `load_lora_weights` of diffusers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import glassformer
from glassformer.cli.main import main
from glassformer.core.build import unique_state_dict
from glassformer.core.inputs import LatentInputs, TextInputs
from glassformer.errors import FileProblemError, UnsupportedError
from tests.families.diffusion_models import assert_same_state
from tests.tasks.drawing_models import video_bundle
from tests.tasks.test_drawing import stable_diffusion  # noqa: F401 (a fixture)
from tests.test_single_file import stable_diffusion as single_file_diffusion  # noqa: F401

RANK, ALPHA = 3, 5.0
Pairs = dict[str, tuple[Tensor, Tensor]]
LAYERS = {
    "unet": ("attn1.to_q", "attn2.to_k", "attn2.to_out.0", "ff.net.0.proj", "proj_in", "resnets.0.conv1"),
    "text_encoder": ("self_attn.q_proj", "self_attn.out_proj", "mlp.fc1"),
}


def random_pairs(pipeline: Any) -> Pairs:
    """A and B for some layers of each part, by the part's name and the layer's."""
    generator, pairs = torch.Generator().manual_seed(0), dict[str, tuple[Tensor, Tensor]]()
    for part, ends in LAYERS.items():
        for name, module in getattr(pipeline, part).named_modules():
            if name.endswith(ends) and getattr(module, "weight", None) is not None:
                out, width, *kernel = module.weight.shape
                a = torch.randn(RANK, width, *kernel, generator=generator) * 0.3
                b = torch.randn(out, RANK, *(1 for _ in kernel), generator=generator) * 0.3
                pairs[f"{part}.{name}"] = a, b
    return pairs


def peft(pairs: Pairs) -> dict[str, Tensor]:
    return {f"{n}.lora_{x}.weight": t for n, pair in pairs.items() for x, t in zip("AB", pair, strict=True)}


def with_alphas(
    pairs: Pairs, down: str, up: str, rename: Callable[[str], str], *, alphas: bool = True
) -> dict[str, Tensor]:
    tensors = {}
    for name, (a, b) in pairs.items():
        module = "lora_linear_layer" if down == "lora.down" and name.startswith("text") else "lora"
        names = (rename(name) + half.replace("lora", f".{module}", 1) for half in (down, up))
        tensors |= {f"{key}.weight": x for key, x in zip(names, (a, b), strict=True)}
        tensors |= {f"{rename(name)}.alpha": torch.tensor(ALPHA)} if alphas else {}
    return tensors


def kohya(name: str) -> str:
    part, _, layer = name.partition(".")
    layer = layer if part == "unet" or layer.startswith("text_model.") else f"text_model.{layer}"
    return f"lora_{'unet' if part == 'unet' else 'te'}_{layer.replace('.', '_')}"


def processors(pairs: Pairs) -> dict[str, Tensor]:
    """The oldest spelling of diffusers, which has attention only."""
    tensors = {}
    for name, pair in pairs.items():
        layer, _, projection = name.removesuffix(".0").rpartition(".")
        for half, tensor in zip(("down", "up"), pair, strict=True):
            tensors[f"{layer}.processor.{projection}_lora.{half}.weight"] = tensor
    return tensors


SPELLINGS: dict[str, tuple[Callable[[Pairs], dict[str, Tensor]], float]] = {
    "peft": (peft, 1.0),
    "peft with metadata": (peft, ALPHA / RANK),
    "diffusers": (lambda pairs: with_alphas(pairs, "lora.down", "lora.up", str, alphas=False), 1.0),
    "diffusers with alphas": (lambda pairs: with_alphas(pairs, "lora.down", "lora.up", str), ALPHA / RANK),
    "kohya": (lambda pairs: with_alphas(pairs, "lora_down", "lora_up", kohya), ALPHA / RANK),
    "processors": (processors, 1.0),
}


def write(spelling: str, pairs: Pairs, path: Path) -> Path:
    metadata = {}
    if spelling == "peft with metadata":
        config = {
            f"{part}.{key}": value for part in LAYERS for key, value in peft_config(pairs, part).items()
        }
        metadata = {"lora_adapter_metadata": json.dumps(config)}
    save_file(SPELLINGS[spelling][0](pairs), path, metadata=metadata)
    return path


def peft_config(pairs: Pairs, part: str) -> dict[str, Any]:
    names = [name.removeprefix(f"{part}.") for name in pairs if name.startswith(part)]
    return {"r": RANK, "lora_alpha": ALPHA, "target_modules": names, "use_dora": False, "bias": "none"}


def expected_weights(pipeline: Any, pairs: Pairs, scale: float) -> dict[str, Tensor]:
    """W + alpha / r B A of every layer."""
    weights = {}
    for name, (a, b) in pairs.items():
        part, _, layer = name.partition(".")
        weight = getattr(pipeline, part).get_parameter(f"{layer}.weight").detach()
        update = scale * torch.einsum("or,r...->o...", b.flatten(1).double(), a.double())
        weights[name] = weight.double() + update
    return weights


def chosen(pairs: Pairs, spelling: str) -> Pairs:
    if spelling == "processors":
        return {name: pair for name, pair in pairs.items() if "attn" in name and name.startswith("unet")}
    return pairs


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_is_merged(spelling: str, stable_diffusion: Any, tmp_path: Path) -> None:  # noqa: F811
    pipeline, folder = stable_diffusion
    pairs = chosen(random_pairs(pipeline), spelling)
    file = write(spelling, pairs, tmp_path / "lora.safetensors")
    bundle = glassformer.load(folder, adapter=file)
    saved = type(pipeline).from_pretrained(glassformer.save(bundle, tmp_path / "saved"))
    expected = expected_weights(pipeline, pairs, SPELLINGS[spelling][1])
    other = expected_weights(pipeline, pairs, 1.3)
    changed = 0
    for part in LAYERS:
        for name, weight in getattr(saved, part).named_parameters():
            path = f"{part}.{name.removesuffix('.weight')}"
            if path in expected and name.endswith(".weight"):
                torch.testing.assert_close(weight.double(), expected[path], atol=1e-6, rtol=1e-6)
                assert (weight.double() - other[path]).abs().max() > 1e-3  # another scale
                changed += 1
            else:
                assert torch.equal(weight, getattr(pipeline, part).get_parameter(name)), name
    assert changed == len(pairs)


@pytest.mark.parametrize("spelling", ["peft", "peft with metadata", "diffusers", "kohya"])
def test_outputs_match_the_reference(spelling: str, stable_diffusion: Any, tmp_path: Path) -> None:  # noqa: F811
    """Diffusers loads the same file."""
    pytest.importorskip("peft")
    _, folder = stable_diffusion
    theirs = type(stable_diffusion[0]).from_pretrained(folder)
    pairs = {n: pair for n, pair in random_pairs(theirs).items() if "resnets" not in n and "proj_in" not in n}
    file = write(spelling, pairs, tmp_path / "lora.safetensors")
    ours = glassformer.load(folder, adapter=file).model
    plain = glassformer.load(folder).model
    theirs.load_lora_weights(str(tmp_path), weight_name=file.name)
    ids = torch.tensor([[1, 5, 7, 2, 3]])
    x, time = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(2)), torch.tensor([300])
    with torch.no_grad():
        text = theirs.text_encoder(ids)[0]
        expected = theirs.unet(x, time, text).sample
        actual = ours(LatentInputs(x, time, text=ours.encode_text(TextInputs(ids))))
        without = plain(LatentInputs(x, time, text=plain.encode_text(TextInputs(ids))))
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=1e-5)
    assert (without - expected).abs().max() > 1e-2


def test_convert_merges_an_adapter(stable_diffusion: Any, tmp_path: Path) -> None:  # noqa: F811
    pipeline, folder = stable_diffusion
    file = write("kohya", random_pairs(pipeline), tmp_path / "lora.safetensors")
    with pytest.raises(SystemExit) as stop:
        main(["convert", str(folder), str(tmp_path / "out"), "--adapter", str(file)])
    assert stop.value.code == 0
    merged, expected = glassformer.load(tmp_path / "out").model, glassformer.load(folder, adapter=file).model
    assert_same_state(merged, expected)


def test_names_of_the_original_code_work_in_one_file(
    single_file_diffusion: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Kohya's names from those of the training code; the base is one file."""
    _, folder, file = single_file_diffusion
    names = ("down_blocks.1.attentions.0.proj_in", "input_blocks.4.1.proj_in")
    a, b = torch.randn(RANK, 64, 1, 1), torch.randn(64, RANK, 1, 1)
    adapters = [tmp_path / "one.safetensors", tmp_path / "two.safetensors"]
    for name, path in zip(names, adapters, strict=True):
        key = "lora_unet_" + name.replace(".", "_")
        save_file({f"{key}.lora_down.weight": a, f"{key}.lora_up.weight": b}, path)
    one, two = (
        unique_state_dict(glassformer.load(base, adapter=path).model)
        for base, path in zip((folder, file), adapters, strict=True)
    )
    plain = unique_state_dict(glassformer.load(folder).model)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert [name for name in one if not torch.equal(one[name], plain[name])] == [
        "denoiser.encoder.levels.1.attentions.0.proj_in.weight"
    ]


def test_an_adapter_of_a_model_that_draws_pixels(tmp_path: Path) -> None:
    """Latte without an autoencoder, which has no layout in diffusers."""
    folder = glassformer.save(video_bundle(), tmp_path / "video")
    layer, (a, b) = "transformer_blocks.0.attn1.to_q", (torch.randn(RANK, 32), torch.randn(32, RANK))
    save_file(peft({f"transformer.{layer}": (a, b)}), tmp_path / "adapter.safetensors")
    plain, adapted = (
        load.model.denoiser.encoder.blocks[0].self_attn.q_proj.weight  # type: ignore[union-attr]
        for load in (
            glassformer.load(folder),
            glassformer.load(folder, adapter=tmp_path / "adapter.safetensors"),
        )
    )
    assert torch.allclose(adapted, plain + b @ a, atol=1e-6)


def test_every_unread_key_is_named(stable_diffusion: Any, tmp_path: Path) -> None:  # noqa: F811
    pipeline, folder = stable_diffusion
    file, good = tmp_path / "lora.safetensors", peft(random_pairs(pipeline))
    layer = "unet.mid_block.attentions.0.transformer_blocks.0.attn1.to_q"
    unread = [f"{layer}.dora_scale", "lora_te2_text_model_x", "unet.mid_block.attn9.to_q"]
    pairs = {f"{name}.lora_{x}.weight": torch.ones(2, 2) for name in unread[1:] for x in "AB"}
    save_file({**good, unread[0]: torch.ones(1), **pairs}, file)
    with pytest.raises(FileProblemError) as caught:
        glassformer.load(folder, adapter=file)
    assert all(name in str(caught.value) for name in unread)


@pytest.mark.parametrize("case", ["half", "wide", "huge", "empty", "broken", "language model"])
def test_bad_files_are_one_error(case: str, stable_diffusion: Any, tmp_path: Path) -> None:  # noqa: F811
    layer, file = "unet.mid_block.attentions.0.transformer_blocks.0.attn1.to_q", tmp_path / "x.safetensors"
    sizes = {"half": (2, None), "wide": (2, 3), "huge": (1, 1), "empty": None, "broken": None}.get(
        case, (2, 2)
    )
    tensors: dict[str, Tensor] = {}
    if sizes is not None:
        length = 300_000 if case == "huge" else 2  # a product of them would not fit into memory
        tensors[f"{layer}.lora_A.weight"] = torch.ones(sizes[0], length)
        if sizes[1] is not None:
            tensors[f"{layer}.lora_B.weight"] = torch.ones(length, sizes[1])
    save_file(tensors, file)
    if case == "broken":
        file.write_bytes(b"no tensors")
    base = glassformer.save(glassformer.tiny("gpt2"), tmp_path / "gpt2") if "model" in case else None
    with pytest.raises((FileProblemError, UnsupportedError)):
        glassformer.load(base or stable_diffusion[1], adapter=file)
