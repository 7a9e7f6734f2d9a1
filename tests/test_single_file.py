"""Stable Diffusion 1.x in one file, compared with the reader of diffusers and with a folder of the models."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

import glassformer
from glassformer.core.build import unique_state_dict
from glassformer.errors import FileMissingError, FileProblemError, UnsupportedError
from glassformer.families import single_file
from glassformer.families.single_file import weight_table
from glassformer.weights.convert import WeightsMismatchError, to_theirs
from tests.families.diffusion_models import assert_same_state, diffusers, reference
from tests.families.test_autoencoders import settings as autoencoder_settings
from tests.families.test_unet import settings as unet_settings
from tests.tasks.test_drawing import clip_tokenizer, draw, pixels

SIZES = {"norm_num_groups": 32, "layers_per_block": 2}


@pytest.fixture(scope="module")
def stable_diffusion(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, Path]:
    """A tiny random Stable Diffusion 1.x, its folder, and its file with the tokenizer next to it."""
    root = tmp_path_factory.mktemp("pipeline")
    tokenizer = clip_tokenizer(root / "words")
    sizes = {"hidden_size": 64, "num_attention_heads": 1, "intermediate_size": 37, "num_hidden_layers": 2}
    config = transformers.CLIPTextConfig(
        vocab_size=len(tokenizer), max_position_embeddings=40, eos_token_id=2, **sizes
    )
    tokenizer.model_max_length = 40
    torch.manual_seed(0)
    encoder = transformers.CLIPTextModel(config).eval()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.normal_(std=0.3)
    unet = unet_settings("xxo", attention_head_dim=8, cross_attention_dim=64, **SIZES)
    unet |= {"block_out_channels": [32, 64, 96], "sample_size": 64}
    vae = {**autoencoder_settings([32, 64]), **SIZES, "sample_size": 128}
    pipeline = diffusers.StableDiffusionPipeline(
        unet=reference("UNet2DConditionModel", unet),
        vae=reference("AutoencoderKL", vae),
        text_encoder=encoder,
        tokenizer=tokenizer,
        scheduler=diffusers.PNDMScheduler.from_config(single_file.SCHEDULER),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.save_pretrained(root / "folder")
    file = root / "files" / "v1.safetensors"
    file.parent.mkdir()
    save_file(original(root / "folder"), file)
    shutil.copytree(root / "folder" / "tokenizer", file.parent / "tokenizer")
    return pipeline, root / "folder", file


def original(folder: Path) -> dict[str, Tensor]:
    """The tensors of a folder as the training code of Stable Diffusion names them, with those of training."""
    model = glassformer.load(folder).model
    tensors = to_theirs(unique_state_dict(model), weight_table(model.spec))
    tensors |= {
        name: x[:, :, None, None] for name, x in tensors.items() if ".mid.attn_1." in name and x.dim() == 2
    }
    ids = "cond_stage_model.transformer.text_model.embeddings.position_ids"
    more = {
        "alphas_cumprod": torch.ones(1000),
        "model_ema.decay": torch.ones(()),
        ids: torch.arange(40)[None],
    }
    return {name: x.clone().contiguous() for name, x in {**tensors, **more}.items()}


def test_the_reference_reads_the_file(stable_diffusion: tuple[Any, Path, Path]) -> None:
    """So the names and shapes in the file are those of the reference's reader."""
    pipeline, folder, file = stable_diffusion
    theirs = diffusers.StableDiffusionPipeline.from_single_file(
        str(file), config=str(folder), local_files_only=True, safety_checker=None
    )
    for part in ("unet", "vae", "text_encoder"):
        assert_same_state(getattr(theirs, part), getattr(pipeline, part))


def test_names_are_the_published_ones(stable_diffusion: tuple[Any, Path, Path]) -> None:
    names = original(stable_diffusion[1])
    for name in (
        "model.diffusion_model.input_blocks.3.0.op.weight",
        "model.diffusion_model.output_blocks.2.1.conv.weight",
        "model.diffusion_model.output_blocks.5.2.conv.weight",
        "model.diffusion_model.middle_block.1.transformer_blocks.0.attn2.to_k.weight",
        "first_stage_model.decoder.up.0.block.0.nin_shortcut.weight",
        "first_stage_model.encoder.mid.attn_1.proj_out.bias",
        "cond_stage_model.transformer.text_model.encoder.layers.1.self_attn.q_proj.weight",
    ):
        assert name in names


def test_the_file_equals_the_folder(stable_diffusion: tuple[Any, Path, Path], tmp_path: Path) -> None:
    _, folder, file = stable_diffusion
    ours, expected = glassformer.load(file), glassformer.load(folder)
    assert ours.spec == expected.spec
    assert_same_state(ours.model, expected.model)
    options = {"num_inference_steps": 2, "guidance_scale": 3.0, "height": 32, "width": 32}
    drawn = [pixels(draw(bundle, ["a fish"], **options)) for bundle in (ours, expected)]
    assert (drawn[0] == drawn[1]).all() and drawn[0].std() > 5
    saved = diffusers.StableDiffusionPipeline.from_pretrained(glassformer.save(ours, tmp_path / "saved"))
    assert_same_state(saved.unet, stable_diffusion[0].unet)


def change(stable_diffusion: tuple[Any, Path, Path], folder: Path, **tensors: Tensor | None) -> Path:
    """Write the file with some tensors changed, or removed (None)."""
    state = {**original(stable_diffusion[1]), **tensors}
    shutil.copytree(stable_diffusion[2].parent / "tokenizer", folder / "tokenizer")
    save_file({name: x for name, x in state.items() if x is not None}, folder / "v1.safetensors")
    return folder / "v1.safetensors"


OUT = "model.diffusion_model.out.0.bias"


@pytest.mark.parametrize(
    ("tensors", "error", "names"),
    [
        ({"model.diffusion_model.extra": torch.ones(1), OUT: None}, WeightsMismatchError, ["extra", OUT]),
        ({OUT: torch.ones(7)}, WeightsMismatchError, [OUT]),
        ({"first_stage_model.encoder.conv_in.weight": None}, FileProblemError, ["encoder.conv_in.weight"]),
        ({"conditioner.embedders.0.x": torch.ones(1)}, UnsupportedError, ["Stable Diffusion XL"]),
    ],
)
def test_unknown_and_missing_tensors_are_named(
    stable_diffusion: tuple[Any, Path, Path],
    tmp_path: Path,
    tensors: dict[str, Tensor | None],
    error: type[Exception],
    names: list[str],
) -> None:
    with pytest.raises(error) as caught:
        glassformer.load(change(stable_diffusion, tmp_path, **tensors))
    assert all(name in str(caught.value) for name in names)


def test_the_tokenizer_is_next_to_the_file(stable_diffusion: tuple[Any, Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "v1.safetensors"
    shutil.copy(stable_diffusion[2], file)
    with pytest.raises(FileMissingError, match="tokenizer"):
        glassformer.load(file)
    for source in (stable_diffusion[2].parent / "tokenizer").iterdir():
        shutil.copy(source, tmp_path)
    assert glassformer.load(file).tokenizer is not None
