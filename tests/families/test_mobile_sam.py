"""MobileSAM's image encoder matches a plain implementation that has the published tensor names.

There is no such model in transformers; its prompt encoder and mask decoder are SAM's (`test_sam.py`), under
other names, so they are also loaded into transformers' modules.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

import glassformer
from glassformer.core.build import unique_state_dict
from glassformer.core.vision.segmenter import Prompts
from glassformer.families.mobile_sam import FAMILY
from glassformer.weights.convert import to_theirs

# sizes of the image, with and without padded windows, and odd ones
CASES: list[dict[str, Any]] = [
    {},
    {"image_size": 64, "windows": (4, 4, 2), "heads": (1, 4, 2)},  # windows that fit
    {"image_size": 40, "depths": (2, 2, 1, 3), "channels": 1},
    {"image_size": 36, "strides": (1, 2, 2), "d_model": 16},
    {"image_size": 52, "windows": (13, 9, 8)},  # one window, larger windows than the grid
    {"image_size": 60, "widths": (16, 24, 40, 8), "heads": (3, 5, 1), "strides": (2, 1, 1)},
]


def conv(tensors: dict[str, Tensor], name: str, x: Tensor, stride: int = 1) -> Tensor:
    """A convolution without bias, then batch norm in evaluation; depthwise if the weight says so."""
    weight = tensors[f"{name}.c.weight"]
    groups = x.shape[1] // weight.shape[1]
    x = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2, groups=groups)
    mean, variance, scale, bias = (
        tensors[f"{name}.bn.{key}"][:, None, None]
        for key in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / (variance + 1e-5).sqrt() * scale + bias


def norm(tensors: dict[str, Tensor], name: str, x: Tensor, eps: float = 1e-5) -> Tensor:
    """LayerNorm over the last dimension."""
    return F.layer_norm(x, x.shape[-1:], tensors[f"{name}.weight"], tensors[f"{name}.bias"], eps)


def dense(tensors: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.linear(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"])


def window_attention(tensors: dict[str, Tensor], name: str, cells: Tensor) -> Tensor:
    """Attention within one window (B, size, size, D), with a bias by absolute row and column offset."""
    batch, size, _, width = cells.shape
    biases = tensors[f"{name}.attention_biases"]
    heads = len(biases)
    x = norm(tensors, f"{name}.norm", cells.flatten(1, 2))
    q, k, v = dense(tensors, f"{name}.qkv", x).view(batch, size**2, heads, -1).transpose(1, 2).chunk(3, -1)
    scores = q @ k.mT / (width // heads) ** 0.5
    for a in range(size**2):
        for b in range(size**2):
            down, across = abs(a // size - b // size), abs(a % size - b % size)
            scores[:, :, a, b] += biases[:, down * size + across]
    out = scores.softmax(-1) @ v
    return dense(tensors, f"{name}.proj", out.transpose(1, 2).flatten(2)).view(cells.shape)


def block(tensors: dict[str, Tensor], name: str, x: Tensor, window: int) -> Tensor:
    """Attention in windows padded with zeros before the norm, a depthwise convolution, feed-forward."""
    _, _, rows, columns = x.shape
    padded = F.pad(x, (0, -columns % window, 0, -rows % window)).permute(0, 2, 3, 1)
    attended = torch.empty_like(padded)
    for top in range(0, padded.shape[1], window):
        for left in range(0, padded.shape[2], window):
            here = slice(top, top + window), slice(left, left + window)
            attended[:, *here] = window_attention(tensors, f"{name}.attn", padded[:, *here])
    x = x + attended[:, :rows, :columns].permute(0, 3, 1, 2)
    x = conv(tensors, f"{name}.local_conv", x)
    hidden = norm(tensors, f"{name}.mlp.norm", x.permute(0, 2, 3, 1))
    hidden = dense(tensors, f"{name}.mlp.fc2", F.gelu(dense(tensors, f"{name}.mlp.fc1", hidden)))
    return x + hidden.permute(0, 3, 1, 2)


def encode(tensors: dict[str, Tensor], config: dict[str, Any], x: Tensor) -> Tensor:
    """The published encoder, step by step, on feature maps (B, C, rows, columns)."""
    tensors = {name.removeprefix("image_encoder."): tensor for name, tensor in tensors.items()}
    x = conv(tensors, "patch_embed.seq.2", F.gelu(conv(tensors, "patch_embed.seq.0", x, 2)), 2)
    for stage, depth in enumerate(config["depths"]):
        for n in range(depth):
            name = f"layers.{stage}.blocks.{n}"
            if stage:
                x = block(tensors, name, x, config["windows"][stage - 1])
                continue
            hidden = F.gelu(conv(tensors, f"{name}.conv2", F.gelu(conv(tensors, f"{name}.conv1", x))))
            x = F.gelu(x + conv(tensors, f"{name}.conv3", hidden))
        if stage < len(config["strides"]):
            name, stride = f"layers.{stage}.downsample", config["strides"][stage]
            x = F.gelu(conv(tensors, f"{name}.conv2", F.gelu(conv(tensors, f"{name}.conv1", x)), stride))
            x = conv(tensors, f"{name}.conv3", x)
    x = F.conv2d(x, tensors["neck.0.weight"])
    x = norm(tensors, "neck.1", x.permute(0, 2, 3, 1), 1e-6).permute(0, 3, 1, 2)
    x = F.conv2d(x, tensors["neck.2.weight"], padding=1)
    return norm(tensors, "neck.3", x.permute(0, 2, 3, 1), 1e-6).permute(0, 3, 1, 2)


def folder_of(options: dict[str, Any], folder: Path) -> Path:
    """A folder with the published names, every parameter and statistic redrawn, and pretraining's head."""
    model = glassformer.tiny("mobile_sam", **options)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, tensor in unique_state_dict(model).items():
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 1.5)
            elif tensor.is_floating_point():
                offset = tensor.round() if tensor.dim() == 1 and name.endswith("weight") else 0
                tensor.copy_(offset + torch.randn_like(tensor) * 0.3)
    glassformer.save(model, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors |= {f"image_encoder.{name}": torch.randn(3, 3) for name in ("head.weight", "norm_head.bias")}
    save_file(tensors, folder / "model.safetensors")
    (folder / "checksums.json").unlink()
    return folder


@pytest.fixture(scope="module", params=CASES, ids=range(len(CASES)))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The bundle, its published tensors, config and pixels."""
    folder = folder_of(request.param, tmp_path_factory.mktemp("published"))
    bundle = glassformer.load(folder)
    embed: Any = bundle.model.embed
    pixels = torch.randn(2, embed.channels, *embed.image_size)
    return bundle, load_file(folder / "model.safetensors"), FAMILY.to_config(bundle.spec), pixels


def close(ours: Tensor, theirs: Tensor, tolerance: float = 1e-5) -> bool:
    """Whether tensors are equal, relative to the largest value if that is above 1."""
    ours, theirs = ours.detach(), theirs.detach()
    return bool((ours - theirs).abs().max() < tolerance * max(1.0, float(theirs.abs().max())))


def test_image_embedding_and_gradients_match_the_plain_encoder(case: Any) -> None:
    bundle, tensors, config, pixels = case
    trained = {
        name: tensor.clone().requires_grad_()
        for name, tensor in tensors.items()
        if name.startswith("image_encoder.") and tensor.is_floating_point() and "running_" not in name
    }
    bundle.model.zero_grad()
    ours, theirs = (pixels.clone().requires_grad_() for _ in range(2))
    embedding, expected = bundle.model.encode_image(ours), encode({**tensors, **trained}, config, theirs)
    assert embedding.shape == expected.shape and close(embedding, expected)
    for x, image in ((embedding, ours), (expected, theirs)):
        (x * torch.linspace(-1, 1, x.shape[-1])).sum().backward()
        assert image.grad is not None
    assert close(ours.grad, theirs.grad, 1e-4)
    state = unique_state_dict(bundle.model)
    gradients = {name: torch.zeros_like(t) if t.grad is None else t.grad for name, t in state.items()}
    for name, gradient in to_theirs(gradients, FAMILY.table(bundle.spec, ())).items():
        if name in trained:
            assert trained[name].grad is not None and close(gradient, trained[name].grad, 1e-4), name
    with torch.no_grad():
        prepared = bundle.inference_model().packed.encode_image(pixels)
    assert close(prepared, expected)


class Unchanged(nn.Module):
    """A convolution that changes nothing."""

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        return x


@pytest.mark.parametrize(
    "wrong", ["bias by offset", "padding before the norm", "local convolution", "batch norm", "stride"]
)
def test_wrong_part_is_noticed(wrong: str, tmp_path: Path) -> None:
    folder = folder_of({"image_size": 40}, tmp_path / "published")
    tensors, model = load_file(folder / "model.safetensors"), glassformer.load(folder).model
    config = json.loads((folder / "config.json").read_text())
    match wrong:
        case "bias by offset":
            tensors["image_encoder.layers.1.blocks.0.attn.attention_biases"].zero_()
        case "padding before the norm":
            attention = model.encoder.stages[1].blocks[0].self_attn
            attention.spatial_window = replace(attention.spatial_window, pad_before_norm=False)
        case "local convolution":
            model.encoder.stages[2].blocks[1].local_conv = Unchanged()
        case "batch norm":
            tensors["image_encoder.layers.0.blocks.0.conv2.bn.running_mean"].zero_()
        case "stride":
            config["strides"] = [2, 1, 2]
    pixels = torch.randn(2, 3, 40, 40)
    with torch.no_grad():
        ours, theirs = model.encode_image(pixels), encode(tensors, config, pixels)
    assert (ours - theirs).abs().max() > 1e-3


def test_decoder_matches_transformers_under_other_names(case: Any) -> None:
    """The mask decoder's published tensors, renamed, in transformers' SAM with the same sizes."""
    bundle, tensors, config, pixels = case
    model, width = bundle.model, config["d_model"]
    with torch.no_grad():
        embedding = model.encode_image(pixels)
    grid = embedding.shape[-1]
    size = config["image_size"]
    sizes = {"hidden_size": width, "image_size": size, "patch_size": size // grid}
    decoder = {
        **{"hidden_size": width, "num_attention_heads": config["decoder_heads"], "layer_norm_eps": 1e-5},
        **{"mlp_dim": config["decoder_d_ff"], "iou_head_hidden_dim": config["iou_dim"]},
    }
    vision = {"image_size": size, "patch_size": size // grid, "num_pos_feats": width // 2}
    vision |= {"hidden_size": 8, "num_attention_heads": 1, "num_hidden_layers": 0, "output_channels": width}
    reference = transformers.SamModel(
        transformers.SamConfig(vision_config=vision, prompt_encoder_config=sizes, mask_decoder_config=decoder)
    ).eval()
    renamed = {theirs: tensors[ours] for ours, theirs in renames(tensors)}
    missing, unexpected = reference.load_state_dict(renamed, strict=False)
    assert not unexpected and all(name.startswith("vision_encoder") for name in missing)
    reference.prompt_encoder.image_embedding_size = (grid, grid)
    reference.prompt_encoder.input_image_size = size
    reference.config.prompt_encoder_config.image_embedding_size = grid
    points, boxes = torch.rand(2, 3, 2, 2) * size, torch.rand(2, 3, 4) * size
    for theirs in ({"input_points": points}, {"input_boxes": boxes}):
        ours = {name.removeprefix("input_"): value for name, value in theirs.items()}
        with torch.no_grad():
            expected = reference(image_embeddings=embedding, **theirs)
            output = model.decode(embedding, Prompts(**ours))
        assert close(output.masks, expected.pred_masks) and close(output.iou, expected.iou_scores)


def renames(tensors: dict[str, Tensor]) -> list[tuple[str, str]]:
    """Published names of the decoder with those of transformers."""
    pairs = []
    for name in tensors:
        if name.startswith("image_encoder"):
            continue
        new = name.replace("point_embeddings", "point_embed").replace(
            "norm_final_attn", "layer_norm_final_attn"
        )
        for n, part in enumerate(("conv1", "layer_norm1", "", "conv2", "layer_norm2", "", "conv3")):
            new = new.replace(f"mask_downscaling.{n}.", f"mask_embed.{part}.")
        for n, part in enumerate(("upscale_conv1", "upscale_layer_norm", "", "upscale_conv2")):
            new = new.replace(f"output_upscaling.{n}.", f"{part}.")
        if "mlps" in new or "iou_prediction" in new:
            for n, part in enumerate(("proj_in", "layers.0", "proj_out")):
                if f".layers.{n}." in new:
                    new = new.replace(f".layers.{n}.", f".{part}.")
                    break
        if ".transformer.layers" in new:
            new = new.replace(".norm", ".layer_norm")
        new = new.replace(
            "pe_layer.positional_encoding_gaussian_matrix", "shared_embedding.positional_embedding"
        )
        pairs.append((name, new))
        if "shared_embedding" in new:
            pairs.append((name, "shared_image_embedding.positional_embedding"))
    return pairs


def test_folder_round_trips(case: Any, tmp_path: Path) -> None:
    """Saved tensors are the published ones without the pretraining head, in both layouts."""
    bundle, tensors, _, pixels = case
    glassformer.save(bundle, tmp_path / "again")
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert again.keys() == {name for name in tensors if "head." not in name or "prediction" in name}
    assert all(torch.equal(again[name], tensors[name]) for name in again)
    glassformer.save(bundle, tmp_path / "own", layout="glassformer")
    with torch.no_grad():
        models = [glassformer.load(tmp_path / name).model for name in ("again", "own")]
        expected = bundle.model(pixels, Prompts())
        assert all(torch.equal(model(pixels, Prompts()).masks, expected.masks) for model in models)
