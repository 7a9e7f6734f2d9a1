"""Convolutional levels in diffusers' layout: their specs, config keys and names of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from glassformer.core import spec
from glassformer.errors import InvalidValueError
from glassformer.families.config import Config, UnsupportedConfigError
from glassformer.families.keys import Options, Rule
from glassformer.families.rows import layer_rows, rename_modules
from glassformer.weights.ops import Op, Rename, Reshape, Split, Tied, add_prefix, expand

# published names of cell attention, in two spellings, and ours
_CELL_ATTENTION = {"to_q,query": "q", "to_k,key": "k", "to_v,value": "v", "to_out.0,proj_attn": "out"}


def level_specs(
    widths: Sequence[int],
    num_layers: int,
    attentions: Sequence[spec.AttentionSpec | spec.StackSpec | None],
    middle: spec.AttentionSpec | spec.StackSpec | None,
) -> tuple[spec.LevelSpecs, spec.LevelSpec, spec.LevelSpecs]:
    """Return the levels down, the middle, and the levels up, whose number of layers is one higher.

    attentions, middle: attention of each level, fine to coarse, and of the middle.
    """

    def levels(layers: int, resample: Literal["down", "up"], unchanged: int) -> spec.LevelSpecs:
        pairs = enumerate(zip(widths, attentions, strict=True))
        return tuple(
            spec.LevelSpec(
                width=width,
                num_layers=layers,
                attention=attention,
                resample=None if n == unchanged else resample,
            )
            for n, (width, attention) in pairs
        )

    if not widths:
        raise InvalidValueError("widths", widths, "at least one level")
    between = spec.LevelSpec(width=widths[-1], num_layers=2, attention=middle, between=True)
    return levels(num_layers, "down", len(widths) - 1), between, levels(num_layers + 1, "up", 0)[::-1]


def level_keys(down: tuple[str, str], up: tuple[str, str], widths: list[int], attends: list[bool]) -> Rule:
    """Return the rule of the keys of levels: their widths, and which of them have attention.

    down, up: published blocks without and with attention. widths, attends: published defaults.
    """

    def names(kinds: tuple[str, str], attends: Sequence[bool]) -> list[str]:
        return [kinds[attention] for attention in attends]

    def read(config: Config, options: Options) -> dict[str, Any]:
        found = config.get("block_out_channels", widths)
        types = config.get("down_block_types", names(down, attends))
        if len(types) != len(found) or not {*types} <= {*down}:
            expected = f"{' or '.join(down)} for each of block_out_channels"
            raise UnsupportedConfigError(config.where, "down_block_types", types, expected)
        levels = tuple(name == down[1] for name in types)
        config.only("up_block_types", names(up, levels[::-1]), default=names(up, attends[::-1]))
        return {"widths": tuple(found), "attention_levels": levels}

    def write(options: Options) -> dict[str, Any]:
        levels = options["attention_levels"]
        return {
            "block_out_channels": list(options["widths"]),
            "down_block_types": names(down, levels),
            "up_block_types": names(up, levels[::-1]),
        }

    return Rule(("widths", "attention_levels"), read, write)


def level_rows(
    theirs: Sequence[str],
    ours: str,
    levels: spec.LevelSpecs,
    inputs: Sequence[Sequence[int]],
    *,
    condition: bool = False,
    linear: bool = False,
) -> tuple[Op, ...]:
    """Return the rows of levels.

    theirs: the published module of each level. inputs: input channels of every layer.
    condition: whether residual layers have one. linear: whether projections around Transformer layers are
    stored as matrices, not as 1x1 convolutions.
    """
    rows: list[Op] = []
    for n, (name, level, channels) in enumerate(zip(theirs, levels, inputs, strict=True)):
        own: list[Op] = []
        for m, width in enumerate(channels):
            pairs = [(part, part) for part in ("norm1", "conv1", "norm2", "conv2")]
            pairs += [("time_emb_proj", "condition")] if condition else []
            pairs += [("conv_shortcut", "shortcut")] if width != level.width else []
            own += rename_modules(*((f"resnets.{m}.{a}", f"layers.{m}.{b}") for a, b in pairs))
        if level.resample is not None:
            own += rename_modules((f"{level.resample}samplers.0.conv", f"{level.resample}.conv"))
        for m in range(level.num_attentions):
            if isinstance(level.attention, spec.StackSpec):
                parts = _transformer_rows(level.attention, linear=linear)
            else:
                parts = _cell_attention_rows()
            own += add_prefix(f"attentions.{m}.", f"attentions.{m}.", parts)
        rows += add_prefix(f"{name}.", f"{ours}.levels.{n}.", own)
    return tuple(rows)


def _cell_attention_rows() -> tuple[Op, ...]:
    tied = (
        Tied(tuple(f"{a}.{{p}}" for a in names.split(",")), f"attention.{b}_proj.{{p}}")
        for names, b in _CELL_ATTENTION.items()
    )
    return (*rename_modules(("group_norm", "norm")), *expand(tied, p=("weight", "bias")))


def _transformer_rows(stack: spec.StackSpec, *, linear: bool) -> tuple[Op, ...]:
    width, crosses = stack.d_model, stack.block.cross_attention is not None
    path, ours = "transformer_blocks.{i}", "stack.blocks.{i}"
    modules = {"norm1": "norm_self", "norm3": "norm_ffn", "ff.net.2": "ffn.down"}
    modules |= {"norm2": "norm_cross"} if crosses else {}
    attentions = {"attn1": "self_attn", **({"attn2": "cross_attn"} if crosses else {})}
    matrices = {f"{a}.to_{x}": f"{b}.{x}_proj" for a, b in attentions.items() for x in "qkv"}
    modules |= {f"{a}.to_out.0": f"{b}.out_proj" for a, b in attentions.items()}
    up_and_gate = Split(
        f"{path}.ff.net.0.proj.{{p}}",
        (f"{ours}.ffn.up.{{p}}", f"{ours}.ffn.gate.{{p}}"),
        sizes=(stack.block.feed_forward.d_ff,) * 2,
    )
    projections = ("proj_{in,out}.weight",) * 2
    shapes: dict[str, Any] = {"their_shape": (width, width, 1, 1), "our_shape": (width, width)}
    around = Rename(*projections) if linear else Reshape(*projections, **shapes)
    return (
        *rename_modules(("norm", "norm")),
        Rename(*("proj_{in,out}.bias",) * 2),
        around,
        *layer_rows(path, ours, stack.num_layers, modules),
        *layer_rows(path, ours, stack.num_layers, matrices, ("weight",)),
        *expand((up_and_gate,), i=stack.num_layers, p=("weight", "bias")),
    )
