"""Stable Diffusion 1.x in one safetensors file: three models under three prefixes, in the original names.

The sizes follow from the shapes of the tensors; what shapes do not tell is that of the published 1.x models.
The tables of the families read the tensors: their published names are converted to those of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from torch import Tensor

from glassformer.core import spec
from glassformer.errors import FileProblemError, UnsupportedError
from glassformer.families.registry import families
from glassformer.weights.convert import WeightTable
from glassformer.weights.ops import Ignored, Op, Tied, rename_op

Shapes = Mapping[str, tuple[int, ...]]

# the family and the prefix of each part of the model
PARTS = {
    "denoiser": ("unet_2d_condition", "model.diffusion_model."),
    "autoencoder": ("autoencoder_kl", "first_stage_model."),
    "text_encoder": ("clip", "cond_stage_model.transformer."),
}
# noise schedule and prediction type; no tensor tells them
SCHEDULER = {
    **{"_class_name": "PNDMScheduler", "prediction_type": "epsilon", "num_train_timesteps": 1000},
    **{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1},
    **{"set_alpha_to_one": False, "skip_prk_steps": True},
}
# tensors of training: tables of the noise schedule, averaged weights, and ids that are only numbered
UNUSED = (
    *("betas", "alphas_cumprod*", "sqrt_*", "log_one_minus_*", "posterior_*", "model_ema.*", "lvlb_weights"),
    *("cond_stage_model.logit_scale", "cond_stage_model.text_projection", "first_stage_model.loss.*"),
)
# other models, by a prefix that only they have
OTHERS = {
    "conditioner.": "Stable Diffusion XL",
    "cond_stage_model.model.": "Stable Diffusion 2.x",
    "text_encoders.": "Stable Diffusion 3",
    "model.diffusion_model.joint_blocks.": "Stable Diffusion 3",
    "model.diffusion_model.double_blocks.": "Flux",
}
CLIP_HEAD_DIM = 64


def read_spec(shapes: Shapes, path: Path) -> spec.DiffusionModelSpec:
    """Return the spec of the models in a file."""
    for prefix, name in OTHERS.items():
        if any(key.startswith(prefix) for key in shapes):
            hint = "load the folder that diffusers saves"
            raise UnsupportedError(f"one file of weights ({path.name})", name, hint=hint)
    parts: dict[str, Any] = {}
    readers = {"denoiser": _unet_options, "autoencoder": _autoencoder_options, "text_encoder": _text_options}
    for part, (family, prefix) in PARTS.items():
        own = {key.removeprefix(prefix): shape for key, shape in shapes.items() if key.startswith(prefix)}
        try:
            parts[part] = families()[family].build(**readers[part](own))
        except (KeyError, IndexError) as error:  # a tensor is missing, or has too few dimensions
            hint = "only files of Stable Diffusion 1.x are read; load other models from a folder"
            raise FileProblemError(path, f"lacks {prefix}{error.args[0]}", hint=hint) from None
    return spec.DiffusionModelSpec(**parts)


def _count(shapes: Shapes, name: str) -> int:
    """Return for how many numbers in a row there is a tensor of this name. name: with {} for the number."""
    return next(number for number in count() if name.format(number) not in shapes)


def _unet_options(shapes: Shapes) -> dict[str, Any]:
    num_layers = next(n for n in count(1) if f"input_blocks.{n}.0.in_layers.0.weight" not in shapes) - 1
    blocks = len({key.split(".")[1] for key in shapes if key.startswith("input_blocks.")})
    first = range(1, blocks, num_layers + 1)  # blocks of each level: its layers, then the downsampling
    middle = "middle_block.1.transformer_blocks"
    return {
        "channels": shapes["input_blocks.0.0.weight"][1],
        "out_channels": shapes["out.2.weight"][0],
        "widths": tuple(shapes[f"input_blocks.{n}.0.out_layers.3.weight"][0] for n in first),
        "num_layers": num_layers,
        "attention_levels": tuple(f"input_blocks.{n}.1.norm.weight" in shapes for n in first),
        "transformer_layers": _count(shapes, f"{middle}.{{}}.norm1.weight"),
        "text_dim": shapes[f"{middle}.0.attn2.to_k.weight"][1],
        "linear_projection": len(shapes["middle_block.1.proj_in.weight"]) == 2,
    }


def _autoencoder_options(shapes: Shapes) -> dict[str, Any]:
    levels = _count(shapes, "encoder.down.{}.block.0.norm1.weight")
    return {
        "image_size": 64 << max(levels - 1, 0),  # of 64 x 64 latents
        "channels": shapes["encoder.conv_in.weight"][1],
        "out_channels": shapes["decoder.conv_out.weight"][0],
        "widths": tuple(shapes[f"encoder.down.{n}.block.0.conv2.weight"][0] for n in range(levels)),
        "num_layers": _count(shapes, "encoder.down.0.block.{}.norm1.weight"),
        "latent_channels": shapes["decoder.conv_in.weight"][1],
    }


def _text_options(shapes: Shapes) -> dict[str, Any]:
    layers = _count(shapes, "text_model.encoder.layers.{}.layer_norm1.weight")
    vocab_size, width = shapes["text_model.embeddings.token_embedding.weight"]
    return {
        **{"tower": "text", "projection_dim": None},
        "vocab_size": vocab_size,
        "max_len": shapes["text_model.embeddings.position_embedding.weight"][0],
        "text_d_model": width,
        "text_num_heads": max(width // CLIP_HEAD_DIM, 1),
        "text_d_ff": shapes["text_model.encoder.layers.0.mlp.fc1.weight"][0],
        "text_num_layers": layers,
    }


def weight_table(model: spec.DiffusionModelSpec) -> WeightTable:
    """Return the weight table of a file."""
    rows: list[Op] = []
    for part, own in model.children().items():
        family, _ = PARTS[part]
        table = families()[family].table(own, ())
        name = partial(file_name, part, modules=file_modules(part, own))
        for op in table.rows(max(table.base, key=len)):
            op = rename_op(op, name, f"{part}.".__add__)
            # two published spellings may be one in the file
            rows.append(replace(op, theirs=tuple(dict.fromkeys(op.theirs))) if isinstance(op, Tied) else op)
    return WeightTable((*rows, Ignored(UNUSED)))


def squeeze(name: str, tensor: Tensor) -> Tensor:
    """Return a tensor of a file; projections of the autoencoder's attention may be 1x1 convolutions."""
    return tensor.flatten(1) if ".mid.attn_1." in name and tensor.dim() == 4 else tensor


def other_names(part: str, model: Any) -> dict[str, str]:
    """Return the names of a part's tensors in a file, without their prefix, by published name."""
    family, prefix = PARTS[part]
    modules = file_modules(part, model)
    published = (name for op in families()[family].table(model, ()).rows("") for name in op.theirs)
    return {name: file_name(part, name, modules).removeprefix(prefix) for name in published}


def file_name(part: str, name: str, modules: Mapping[str, str]) -> str:
    """Return the name in the file of a tensor. modules: from `file_modules`."""
    head, tail = name, ""
    while head and head not in modules:
        head, _, last = head.rpartition(".")
        tail = f".{last}{tail}"
    return PARTS[part][1] + (modules[head] + tail if head else name)


def file_modules(part: str, model: Any) -> dict[str, str]:
    """Return the modules of a part that have another name in the file: published name -> name in the file."""
    names: dict[str, Callable[[Any], Iterable[tuple[str, str]]]]
    names = {"denoiser": _unet_modules, "autoencoder": _autoencoder_modules, "text_encoder": lambda _: ()}
    return dict(names[part](model))


_RESIDUAL = {
    **{"norm1": "in_layers.0", "conv1": "in_layers.2", "time_emb_proj": "emb_layers.1"},
    **{"norm2": "out_layers.0", "conv2": "out_layers.3", "conv_shortcut": "skip_connection"},
}


def _unet_modules(model: spec.UNetSpec) -> Iterable[tuple[str, str]]:
    *down, _ = model.encoder
    layers = down[0].num_layers
    blocks = {f"mid_block.resnets.{n}": f"middle_block.{2 * n}" for n in range(2)}
    yield "mid_block.attentions.0", "middle_block.1"
    for side, theirs, levels in (("down", "input_blocks", down), ("up", "output_blocks", model.decoder)):
        for n, level in enumerate(levels):
            first = n * (layers + 1) + (side == "down")
            for m in range(level.num_layers):
                blocks[f"{side}_blocks.{n}.resnets.{m}"] = f"{theirs}.{first + m}.0"
                yield f"{side}_blocks.{n}.attentions.{m}", f"{theirs}.{first + m}.1"
            after = 1 if level.attention is None else 2
            resampled = f"{first + layers}.0.op" if side == "down" else f"{first + layers}.{after}.conv"
            yield f"{side}_blocks.{n}.{side}samplers.0.conv", f"{theirs}.{resampled}"
    for block, name in blocks.items():
        yield from ((f"{block}.{a}", f"{name}.{b}") for a, b in _RESIDUAL.items())
    yield from (("time_embedding.linear_1", "time_embed.0"), ("time_embedding.linear_2", "time_embed.2"))
    yield from (("conv_in", "input_blocks.0.0"), ("conv_norm_out", "out.0"), ("conv_out", "out.2"))


_CELLS = {"group_norm": "norm", "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "proj_out"}
_CELLS |= {"query": "q", "key": "k", "value": "v", "proj_attn": "proj_out"}


def _autoencoder_modules(model: spec.AutoencoderSpec) -> Iterable[tuple[str, str]]:
    blocks = {}
    for coder, side, levels in (
        ("encoder", "down", model.encoder[:-1]),
        ("decoder", "up", model.decoder[1:]),
    ):
        for n, level in enumerate(levels):
            name = f"{coder}.{side}.{n if side == 'down' else len(levels) - 1 - n}"
            for m in range(level.num_layers):
                blocks[f"{coder}.{side}_blocks.{n}.resnets.{m}"] = f"{name}.block.{m}"
            yield f"{coder}.{side}_blocks.{n}.{side}samplers.0.conv", f"{name}.{side}sample.conv"
        blocks |= {f"{coder}.mid_block.resnets.{n}": f"{coder}.mid.block_{n + 1}" for n in range(2)}
        cells = f"{coder}.mid_block.attentions.0", f"{coder}.mid.attn_1"
        yield from ((f"{cells[0]}.{a}", f"{cells[1]}.{b}") for a, b in _CELLS.items())
        yield f"{coder}.conv_norm_out", f"{coder}.norm_out"
    for block, name in blocks.items():
        yield block, name
        yield f"{block}.conv_shortcut", f"{name}.nin_shortcut"
