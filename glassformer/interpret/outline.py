"""A model's outline: what it is for, its stacks, what each is made of and how large the parts are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.core.model import AnyModel, DecoderOnly, EncoderDecoder, EncoderOnly
from glassformer.errors import GlassformerError
from glassformer.interpret.kinds import Kind, SequenceName
from glassformer.tasks.reading import named

PositionKind = Literal["sinusoidal", "learned", "rotary", "relative", "alibi", "none"]


@dataclass(frozen=True, kw_only=True)
class PositionInfo:
    """How a stack learns where tokens stand. name: what the derived tensors of it begin with."""

    kind: PositionKind
    max_len: int | None = None
    base: float | None = None
    layout: Literal["interleaved", "halves"] | None = None
    name: str | None = None


@dataclass(frozen=True, kw_only=True)
class StackInfo:
    """One stack: where its input comes from, and its layers, which are all alike.

    embed_scale: what token vectors are multiplied by. biases: the projections of the feed-forward with one.
    """

    name: Literal["encoder", "decoder"]
    embed: str
    embed_scale: float
    sequence: SequenceName
    layers: int
    wiring: Literal["pre", "post", "parallel"]
    causal: bool
    window: int | None
    norm: str
    final_norm: bool
    heads: int
    kv_heads: int
    head_dim: int
    d_ff: int
    activation: str
    gated: bool
    biases: tuple[str, ...]
    cross: bool
    position: PositionInfo
    parameters: Mapping[str, int]


def check_shown(bundle: Bundle) -> None:
    """Say why a model that is no Transformer cannot be shown."""
    if not isinstance(bundle.model, EncoderDecoder | EncoderOnly | DecoderOnly):
        raise GlassformerError(
            f"{named(bundle)} is a baseline without attention ({type(bundle.spec).__name__}), so there is "
            "nothing to look into; give a Transformer"
        )


def kind_of(bundle: Bundle) -> Kind:
    """What a model is for, by what it reads and by its head; a sentence where no view shows that."""
    check_shown(bundle)
    spec, head = bundle.spec, bundle.spec.head
    read = spec.source if isinstance(spec, specs.EncoderDecoder) else spec.input
    match read, head:
        case specs.SeriesPatches(), specs.Forecast():
            return "forecast"
        case specs.ImagePatches(), specs.Classify() | specs.ClassifyTwice():
            return "image"
        case specs.ImagePatches(), _:
            return "embed"
        case specs.Tokens(), specs.LanguageModel():
            return "translate" if isinstance(spec, specs.EncoderDecoder) else "generate"
        case specs.Tokens(), specs.Classify():
            return "classify"
        case specs.Tokens(), specs.MaskedLanguageModel() if isinstance(spec, specs.EncoderOnly):
            return "fill"
        case specs.Tokens(), specs.Answer() if isinstance(spec, specs.EncoderOnly):
            return "answer"
        case specs.Tokens(), _ if not isinstance(spec, specs.EncoderDecoder):
            return "embed"
    raise GlassformerError(
        f"{named(bundle)} reads {type(read).__name__} with a head of kind {type(head).__name__}, which no "
        "view shows; give a model that writes, classifies, embeds, answers, fills or forecasts"
    )


def stacks_of(bundle: Bundle) -> tuple[StackInfo, ...]:
    """The stacks in the order the data goes through them."""
    spec, model = bundle.spec, bundle.model
    match spec:
        case specs.EncoderDecoder():
            return (
                _stack("encoder", spec.encoder, "src_embed", spec.source, "source", model),
                _stack("decoder", spec.decoder, "tgt_embed", spec.target, "target", model),
            )
        case specs.EncoderOnly():
            return (_stack("encoder", spec.encoder, "embed", spec.input, "input", model),)
        case specs.DecoderOnly():
            return (_stack("decoder", spec.decoder, "embed", spec.input, "input", model),)


def _stack(
    name: Literal["encoder", "decoder"],
    what: specs.Stack,
    embed: str,
    read: specs.Input,
    sequence: SequenceName,
    model: AnyModel,
) -> StackInfo:
    block, attention = what.block, what.block.attention
    wiring: Any = "parallel" if block.wiring.startswith("parallel") else block.wiring
    return StackInfo(
        name=name,
        embed=embed,
        embed_scale=getattr(read, "scale", 1.0),
        sequence=sequence,
        layers=what.num_layers,
        wiring=wiring,
        causal=what.causal,
        window=attention.window,
        norm=type(block.norm).__name__,
        final_norm=what.final_norm is not None,
        heads=attention.num_heads,
        kv_heads=attention.num_kv_heads or attention.num_heads,
        head_dim=attention.head_dim or what.d_model // attention.num_heads,
        d_ff=block.feed_forward.d_ff,
        activation=block.feed_forward.activation,
        gated=isinstance(block.feed_forward, specs.GatedFeedForward),
        biases=block.feed_forward.biases,
        cross=block.cross_attention is not None,
        position=_position(name, what, embed, read),
        parameters=_parameters(model.get_submodule(name), model.get_submodule(embed)),
    )


def _position(stack: str, what: specs.Stack, embed: str, read: specs.Input) -> PositionInfo:
    inside, before = f"{stack}.position", f"{embed}.position"
    match what.position:
        case specs.Rotary(base=base):
            return PositionInfo(kind="rotary", base=base, name=inside)
        case specs.Relative(max_distance=far):
            return PositionInfo(kind="relative", max_len=far, name=inside)
        case specs.Alibi():
            return PositionInfo(kind="alibi", name=inside)
    match read:
        case specs.Tokens(position=specs.Sinusoidal(max_len=most, base=base, layout=layout)):
            return PositionInfo(kind="sinusoidal", max_len=most, base=base, layout=layout, name=before)
        case specs.Tokens(position=specs.Learned(max_len=most)):
            return PositionInfo(kind="learned", max_len=most, name=before)
        case specs.ImagePatches():
            return PositionInfo(kind="learned", max_len=read.prefix + read.num_patches, name=before)
        case specs.SeriesPatches(position="learned"):
            return PositionInfo(kind="learned", max_len=read.prefix + read.num_patches, name=before)
        case specs.SeriesPatches():
            rows = read.prefix + read.num_patches
            return PositionInfo(
                kind="sinusoidal", max_len=rows, base=10000.0, layout="interleaved", name=before
            )
    return PositionInfo(kind="none")


_PARTS = {"self_attn": "self_attention", "cross_attn": "cross_attention", "ffn": "feed_forward"}


def _parameters(stack: nn.Module, embed: nn.Module) -> dict[str, int]:
    """How many numbers each kind of part of a stack holds."""
    counts = {"embedding": sum(one.numel() for one in embed.parameters())}
    for name, one in stack.named_parameters():
        parts = name.split(".")
        part = _PARTS.get(parts[2], "norm") if parts[0] == "blocks" else parts[0].removeprefix("final_")
        counts[part] = counts.get(part, 0) + one.numel()
    return counts
