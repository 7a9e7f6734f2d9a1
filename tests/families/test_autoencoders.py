"""Autoencoders with normal distributions and with codes, compared with diffusers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

import glassformer
from glassformer.core.diffusion import levels
from glassformer.core.diffusion.autoencoder import Codebook, GaussianLatents, code_usage
from glassformer.core.spec import CodebookSpec
from glassformer.errors import GlassformerError, InvalidValueError, ShapeError, UnsupportedError
from glassformer.families.config import UnsupportedConfigError
from tests.families.diffusion_models import (
    assert_same_gradients,
    assert_saved_folder_is_exact,
    load_saved,
    reference,
)

DOWN, UP = ("DownEncoderBlock2D", "AttnDownEncoderBlock2D"), ("UpDecoderBlock2D", "AttnUpDecoderBlock2D")

EXACT: Any = {"atol": 1e-9, "rtol": 1e-9}  # both models compute in float64


def settings(widths: list[int], attends: list[bool] | None = None, **others: Any) -> dict[str, Any]:
    attends = attends or [False] * len(widths)
    return {
        "block_out_channels": widths,
        "down_block_types": [DOWN[a] for a in attends],
        "up_block_types": [UP[a] for a in reversed(attends)],
        "norm_num_groups": 4,
        **others,
    }


SHARED = (
    (settings([8, 16]), (3, 32, 32)),
    (settings([8, 8, 16], layers_per_block=2), (3, 24, 36)),
    (settings([12, 8], in_channels=1, out_channels=2, scaling_factor=0.5), (1, 13, 18)),  # odd sizes
    (settings([16, 8], mid_block_add_attention=False, norm_num_groups=2), (3, 16, 15)),
)
CASES = [
    *(("AutoencoderKL", *case) for case in SHARED),
    ("AutoencoderKL", settings([8], latent_channels=2, use_quant_conv=False, shift_factor=0.1), (3, 7, 5)),
    ("AutoencoderKL", settings([4, 8, 8, 8], use_post_quant_conv=False), (3, 24, 40)),
    *(("VQModel", *case) for case in SHARED),
    ("VQModel", settings([8, 16], num_vq_embeddings=31, vq_embed_dim=5, latent_channels=4), (3, 16, 16)),
    ("VQModel", settings([8, 8, 12], [False, True, True], num_vq_embeddings=50), (3, 24, 17)),
]


def images(shape: tuple[int, ...], batch: int = 2) -> Tensor:
    return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(3))


def encoded(model: Any, x: Tensor) -> Tensor:
    """The reference's latents: the mean, or the vectors before quantization."""
    found = model.encode(x)
    return found.latents if hasattr(found, "latents") else found.latent_dist.mode()


@pytest.mark.parametrize(("name", "options", "shape"), CASES)
def test_latents_images_and_saved_folders_match(
    name: str, options: dict[str, Any], shape: tuple[int, ...], tmp_path: Path
) -> None:
    theirs = reference(name, options)
    bundle = load_saved(theirs, tmp_path / "theirs")
    assert_saved_folder_is_exact(bundle, theirs, tmp_path)
    theirs, model, x = theirs.double(), bundle.model.double(), images(shape).double()
    with torch.no_grad():
        found, latents, expected = model.encode(x), encoded(theirs, x), theirs(x).sample
        if name == "AutoencoderKL":
            posterior = theirs.encode(x).latent_dist
            torch.testing.assert_close(found.mean, latents, **EXACT)
            torch.testing.assert_close(found.log_variance, posterior.logvar, **EXACT)
            torch.testing.assert_close(found.divergence(), posterior.kl(), **EXACT)
            noise = torch.randn_like(latents)
            torch.testing.assert_close(found.sample(noise), posterior.mean + posterior.std * noise)
            torch.testing.assert_close(model.decode(latents), theirs.decode(latents).sample, **EXACT)
        else:
            distances = torch.cdist(latents.movedim(1, -1).flatten(0, 2), theirs.quantize.embedding.weight)
            two = distances.topk(2, largest=False).values
            assert float((two[:, 1] - two[:, 0]).min()) > 1e-5, "a tie: draw other weights"
            ids = theirs.quantize(latents)[2][2]
            assert torch.equal(found.ids.flatten(), ids.flatten()) and len(ids.unique()) > 1
            torch.testing.assert_close(model.decode_ids(found.ids), expected, **EXACT)
            loss = found.commitment_loss + 0.25 * found.codebook_loss
            torch.testing.assert_close(loss, theirs(x).commit_loss, **EXACT)
        torch.testing.assert_close(model(x), expected, **EXACT)
        torch.testing.assert_close(model.unscale_latents(model.scale_latents(latents)), latents)


@pytest.mark.parametrize(("name", "options", "shape"), [CASES[0], CASES[4], CASES[10], CASES[11]])
def test_gradients_match(name: str, options: dict[str, Any], shape: tuple[int, ...], tmp_path: Path) -> None:
    """Also through the codes: the gradient of the decoder passes to the encoder unchanged."""
    theirs = reference(name, options)
    bundle = load_saved(theirs, tmp_path)
    x = images(shape)
    if name == "AutoencoderKL":
        posterior = theirs.encode(x).latent_dist
        noise = torch.randn_like(posterior.mean)
        expected = theirs.decode(posterior.mean + posterior.std * noise).sample
        ours = bundle.model.decode(bundle.model.encode(x).sample(noise))
    else:
        output, found = theirs(x), bundle.model.encode(x)
        expected = output.sample + output.commit_loss
        loss = found.commitment_loss + 0.25 * found.codebook_loss
        ours = bundle.model.decode(found.latents) + loss
    assert_same_gradients(bundle, ours, theirs, expected)


def swap_padding(module: nn.Module) -> None:
    if isinstance(module, levels.Downsample):
        module.pad_end, module.conv.padding = False, (1, 1)


def other_eps(module: nn.Module) -> None:
    if isinstance(module, nn.GroupNorm):
        module.eps = 1e-5


def more_heads(module: nn.Module) -> None:
    if isinstance(module, levels.CellAttention):
        attention = module.attention
        attention.num_heads = attention.num_kv_heads = 2
        attention.head_dim = attention.value_dim = attention.head_dim // 2


def no_attention_norm(module: nn.Module) -> None:
    if isinstance(module, levels.CellAttention):
        module.norm = nn.Identity()


def swap_norms(module: nn.Module) -> None:
    if isinstance(module, levels.ResidualConvolutions) and module.shortcut is None:
        module.norm1, module.norm2 = module.norm2, module.norm1


def swap_projections(module: nn.Module) -> None:
    if isinstance(module, levels.CellAttention):
        attention = module.attention
        attention.q_proj, attention.v_proj = attention.v_proj, attention.q_proj


WRONG = [swap_padding, other_eps, more_heads, no_attention_norm, swap_norms, swap_projections]


@pytest.mark.parametrize("change", [None, *WRONG])
def test_a_wrong_part_does_not_match(change: Any, tmp_path: Path) -> None:
    """Small images, so that the epsilon of the norms matters."""
    theirs = reference("AutoencoderKL", SHARED[0][0])
    model, x = load_saved(theirs, tmp_path).model, images((3, 16, 16)) * 1e-3
    with torch.no_grad():
        theirs.encoder.conv_in.bias.zero_()
        model.embed.bias.zero_()
        if change is not None:
            model.apply(change)
        gap = float((model(x) - theirs(x).sample).abs().max())
    assert gap < 1e-5 if change is None else gap > 1e-4


@pytest.mark.parametrize("wrong", ["linear", "half", "swapped"])
def test_wrong_formulas_do_not_match(wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpolation of cells, a variance in place of a deviation, mean and variance swapped."""
    theirs = reference("AutoencoderKL", SHARED[0][0])
    model, x = load_saved(theirs, tmp_path).model, images((3, 16, 16))
    posterior = theirs.encode(x).latent_dist
    expected = theirs.decode(posterior.mean + posterior.std).sample
    found = model.encode(x)
    if wrong == "linear":
        original = F.interpolate
        monkeypatch.setattr(F, "interpolate", lambda x, size, mode: original(x, size, mode="bilinear"))
    elif wrong == "half":
        found = found._replace(log_variance=2 * found.log_variance)
    else:
        found = GaussianLatents(found.log_variance, found.mean)
    assert (
        float((model.decode(found.sample(torch.ones_like(found.mean))) - expected).detach().abs().max())
        > 1e-3
    )


def test_former_names_of_attention_are_read(tmp_path: Path) -> None:
    """Published files of Stable Diffusion 1.5 have them."""
    theirs = reference("AutoencoderKL", SHARED[0][0])
    load_saved(theirs, tmp_path)
    path = tmp_path / "diffusion_pytorch_model.safetensors"
    former = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    tensors = load_file(path)
    for new, old in former.items():
        tensors = {name.replace(f".{new}.", f".{old}."): tensor for name, tensor in tensors.items()}
    assert "encoder.mid_block.attentions.0.query.weight" in tensors
    save_file(tensors, path)
    x = images((3, 16, 16))
    with torch.no_grad():
        torch.testing.assert_close(glassformer.load(tmp_path).model(x), theirs(x).sample, atol=1e-5, rtol=0)


def test_codes_that_were_never_used_move_to_given_vectors() -> None:
    codebook = Codebook(CodebookSpec(channels=4, num_codes=6, code_dim=4))
    before = codebook.codes.clone()
    counts = torch.tensor([3, 0, 1, 0, 0, 2])
    vectors = torch.arange(8.0).view(2, 4)
    assert codebook.replace_unused(counts, vectors) == 2
    assert torch.equal(codebook.codes[[1, 3]], vectors)
    assert torch.equal(codebook.codes[[0, 2, 4, 5]], before[[0, 2, 4, 5]])
    assert code_usage(counts)[0] == 0.5 and code_usage(torch.ones(8))[1] == pytest.approx(8)
    assert code_usage(torch.zeros(3)) == (0.0, 1.0)


def test_training_uses_the_codebook() -> None:
    """Rectangles: with codes that are moved most of them are in use, without they never are."""
    torch.manual_seed(0)
    colors = torch.rand(16, 2, 3, 1, 1) * 2 - 1
    x = colors[:, 0].expand(-1, -1, 16, 16).clone()
    for image, color, (rows, columns) in zip(x, colors, torch.randint(3, 13, (16, 2)).tolist(), strict=True):
        image[:, :rows, :columns] = color[1]
    usage = {}
    for replaces in (False, True):
        torch.manual_seed(1)
        model = glassformer.tiny("vq_model", num_codes=256, code_dim=4)
        optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
        counts, errors = torch.zeros(256).long(), []
        for step in range(60):
            found = model.encode(x)
            error = F.mse_loss(model.decode(found.latents), x)
            optimizer.zero_grad()
            (error + found.codebook_loss + 0.25 * found.commitment_loss).backward()
            optimizer.step()
            errors.append(error.item())
            used = torch.bincount(found.ids.flatten(), minlength=256)
            counts += used
            if replaces and step % 10 == 4:
                vectors = found.vectors.detach().movedim(1, -1).flatten(0, 2)
                model.bottleneck.replace_unused(counts, vectors[torch.randperm(len(vectors))])
                counts.zero_()
        usage[replaces] = code_usage(used)[0]
    assert errors[-1] < 0.5 * errors[0]
    assert usage[True] > 0.6 and usage[False] < 0.3


def test_wrong_inputs_are_errors() -> None:
    gaussian, codes = glassformer.tiny("autoencoder_kl"), glassformer.tiny("vq_model")
    for shape in ((1, 1, 8, 8), (3, 8, 8), (1, 3, 1, 8)):
        with pytest.raises(ShapeError):
            gaussian.encode(torch.zeros(shape))
    with pytest.raises(UnsupportedError):
        gaussian.decode_ids(torch.zeros(1, 4, 4).long())
    for wrong in (-1, 24):
        with pytest.raises(InvalidValueError):
            codes.decode_ids(torch.full((1, 4, 4), wrong))


@pytest.mark.parametrize(
    "options",
    [{"widths": ()}, {"norm_groups": -1}, {"num_codes": 0}, {"code_dim": 0}, {"scaling_factor": 0.0}],
)
def test_impossible_sizes_are_errors(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidValueError):
        glassformer.tiny("vq_model", **options)


@pytest.mark.parametrize(
    "changes",
    [
        {"act_fn": "gelu"},
        {"latents_mean": [0.0] * 4},
        {"down_block_types": ["DownBlock2D"] * 2},
        {"down_block_types": ["DownEncoderBlock2D"]},
        {"up_block_types": ["UpDecoderBlock2D", "AttnUpDecoderBlock2D"]},
        {"block_out_channels": [8, 14]},
    ],
)
def test_configs_that_cannot_be_honored_are_errors(changes: dict[str, Any]) -> None:
    from glassformer.families.config import Config
    from glassformer.families.registry import family_of_config

    config = Config({"_class_name": "AutoencoderKL", **settings([8, 16]), **changes})
    with pytest.raises(GlassformerError) as caught:
        family_of_config(config).from_config(config)
    assert isinstance(caught.value, UnsupportedConfigError | InvalidValueError)
