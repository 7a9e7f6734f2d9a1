"""The outline of a model (its kind, stacks and sizes), and the stations and attentions of its data flow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.core.attention import MultiHeadAttention
from glassformer.core.model import AnyModel, DecoderOnly, EncoderDecoder, EncoderOnly
from glassformer.core.observe import Record
from glassformer.errors import UnsupportedError
from glassformer.interpret.schema import (
    AttentionInfo,
    Kind,
    PositionInfo,
    SequenceName,
    StackInfo,
    StackName,
    Station,
)


def check_transformer(bundle: Bundle) -> None:
    """Reject baselines, which have no attention to trace."""
    if not isinstance(bundle.model, EncoderDecoder | EncoderOnly | DecoderOnly):
        raise UnsupportedError(
            bundle.display_name, f"tracing: it is a baseline without attention ({type(bundle.spec).__name__})"
        )


def model_kind(bundle: Bundle) -> Kind:
    """What a model is for, by its input and its head."""
    check_transformer(bundle)
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
    raise UnsupportedError(
        bundle.display_name, f"tracing: it reads {type(read).__name__} with the head {type(head).__name__}"
    )


def describe_stacks(bundle: Bundle) -> tuple[StackInfo, ...]:
    """The stacks in the order the data flows."""
    spec, model = bundle.spec, bundle.model
    match spec:
        case specs.EncoderDecoder():
            return (
                _describe_stack("encoder", spec.encoder, "src_embed", spec.source, "source", model),
                _describe_stack("decoder", spec.decoder, "tgt_embed", spec.target, "target", model),
            )
        case specs.EncoderOnly():
            return (_describe_stack("encoder", spec.encoder, "embed", spec.input, "input", model),)
        case specs.DecoderOnly():
            return (_describe_stack("decoder", spec.decoder, "embed", spec.input, "input", model),)


def _describe_stack(
    name: StackName,
    stack: specs.Stack,
    embed: str,
    read: specs.Input,
    sequence: SequenceName,
    model: AnyModel,
) -> StackInfo:
    block, attention = stack.block, stack.block.attention
    wiring: Any = "parallel" if block.wiring.startswith("parallel") else block.wiring
    return StackInfo(
        name=name,
        embed=embed,
        embed_scale=getattr(read, "scale", 1.0),
        sequence=sequence,
        layers=stack.num_layers,
        wiring=wiring,
        causal=stack.causal,
        window=attention.window,
        norm=type(block.norm).__name__,
        final_norm=stack.final_norm is not None,
        heads=attention.num_heads,
        kv_heads=attention.num_kv_heads or attention.num_heads,
        head_dim=attention.head_dim or stack.d_model // attention.num_heads,
        d_ff=block.feed_forward.d_ff,
        activation=block.feed_forward.activation,
        gated=isinstance(block.feed_forward, specs.GatedFeedForward),
        biases=block.feed_forward.biases,
        cross=block.cross_attention is not None,
        position=_describe_position(name, stack, embed, read),
        parameters=_count_parameters(model.get_submodule(name), model.get_submodule(embed)),
    )


def _describe_position(name: str, stack: specs.Stack, embed: str, read: specs.Input) -> PositionInfo:
    inside, before = f"{name}.position", f"{embed}.position"
    match stack.position:
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


def _count_parameters(stack: nn.Module, embed: nn.Module) -> dict[str, int]:
    """Parameter counts by kind of layer."""
    counts = {"embedding": sum(one.numel() for one in embed.parameters())}
    for name, one in stack.named_parameters():
        parts = name.split(".")
        part = _PARTS.get(parts[2], "norm") if parts[0] == "blocks" else parts[0].removeprefix("final_")
        counts[part] = counts.get(part, 0) + one.numel()
    return counts


def describe_attentions(model: AnyModel, record: Record) -> tuple[AttentionInfo, ...]:
    """The recorded attention layers, in the order the data flowed."""
    has_source = hasattr(model, "src_embed")
    attentions = []
    for name in record.attentions():
        stack, _, layer, part = name.split(".")
        module: Any = model.get_submodule(name)
        assert isinstance(module, MultiHeadAttention)
        cross = part == "cross_attn"
        own: SequenceName = "input"
        if has_source:
            own = "source" if stack == "encoder" else "target"
        used = record.attended[name]
        attentions.append(
            AttentionInfo(
                name=name,
                stack="encoder" if stack == "encoder" else "decoder",
                layer=int(layer),
                kind="cross" if cross else "self",
                queries=own,
                keys="source" if cross else own,
                heads=module.num_heads,
                kv_heads=module.num_kv_heads,
                scale=used.scale,
                head_dim=module.head_dim,
                biased=used.bias is not None,
                causal=not cross and bool(getattr(model.get_submodule(stack), "causal", False)),
                window=module.window,
            )
        )
    return tuple(attentions)


def residual_sites(stack: StackInfo, record: Record) -> list[str]:
    """The recorded sites of a stack's residual stream, from the embedding to the last layer."""
    sites = [f"{stack.embed}.out"]
    for layer in range(stack.layers):
        at = f"{stack.name}.blocks.{layer}"
        sites += [f"{at}.resid_{part}" for part in ("self", "cross", "out")]
    return [site for site in sites if site in record]


def stack_output(stack: StackInfo) -> str:
    """The name of the tensor that leaves a stack."""
    if stack.final_norm:
        return f"{stack.name}.final_norm"
    return f"{stack.name}.blocks.{stack.layers - 1}.resid_out" if stack.layers else f"{stack.embed}.out"


def describe_stations(stacks: Sequence[StackInfo], record: Record) -> tuple[Station, ...]:
    """The steps of the data flow; a role whose tensor was not recorded is left out."""
    stations: list[Station] = []
    memory = stack_output(stacks[0])
    for stack in stacks:
        stations += _input_stations(stack)
        for layer in range(stack.layers):
            stations += (
                _parallel_layer(stack, layer, record)
                if stack.wiring == "parallel"
                else _layer(stack, layer, memory)
            )
        if stack.final_norm:
            roles = {"before": residual_sites(stack, record)[-1], "after": stack_output(stack)}
            stations.append(_station(stack, "final", "final_norm", roles))
    last = stacks[-1]
    heads = {name.removeprefix("head."): name for name in record if name.startswith("head.")}
    stations.append(
        Station(
            id="head",
            kind="head",
            stack=None,
            layer=None,
            sequence=last.sequence,
            tensors={"before": stack_output(last), **heads},
        )
    )
    return tuple(_only_recorded(station, record) for station in stations)


def _only_recorded(station: Station, record: Record) -> Station:
    derived = ("table", "table_ahead", "similarity")
    tensors = {role: name for role, name in station.tensors.items() if name in record or role in derived}
    return replace(station, tensors=tensors)


def _station(
    stack: StackInfo, name: str, kind: Any, tensors: Mapping[str, str], layer: int | None = None
) -> Station:
    path = stack.name if layer is None else f"{stack.name}.{layer}"
    return Station(
        id=f"{path}.{name}",
        kind=kind,
        stack=stack.name,
        layer=layer,
        sequence=stack.sequence,
        tensors=tensors,
    )


def _input_stations(stack: StackInfo) -> Iterator[Station]:
    """Tokens, embedding and positions."""
    yield _station(stack, "tokens", "tokens", {})
    names = ("scaled", "token", "patch", "kind", "norm", "out")
    yield _station(stack, "embed", "embedding", {name: f"{stack.embed}.{name}" for name in names})
    position = stack.position
    if position.name is None:
        return
    roles = {"table": f"{position.name}.table", "similarity": f"{position.name}.similarity"}
    if position.kind in ("relative", "alibi") and not stack.causal:
        roles["table_ahead"] = f"{position.name}.table_ahead"
    added = {"added": f"{stack.embed}.position", "after": f"{stack.embed}.out"}
    yield _station(stack, "position", "position", {**added, **roles})


def _attention(stack: StackInfo, layer: int, part: str, read: str, memory: str) -> Station:
    name = f"{stack.name}.blocks.{layer}.{part}_attn"
    roles = {"in": read, **({"memory": memory} if part == "cross" else {})}
    roles |= {role: f"{name}.{role}" for role in ("q", "k", "v", "heads", "out")}
    return _station(stack, part, "attention", roles, layer)


def _feed_forward(stack: StackInfo, layer: int, read: str) -> Station:
    name = f"{stack.name}.blocks.{layer}.ffn"
    roles = {"in": read, **{role: f"{name}.{role}" for role in ("gate", "up", "act", "down")}}
    return _station(stack, "ffn", "feed_forward", roles, layer)


def _layer(stack: StackInfo, layer: int, memory: str) -> Iterator[Station]:
    """Each sub-layer and its add & norm; the norm is before the sub-layer ("pre") or after the sum."""
    at = f"{stack.name}.blocks.{layer}"
    before = f"{at}.resid_in"
    for part in ("self", "cross", "ffn") if stack.cross else ("self", "ffn"):
        norm, after = f"{at}.norm_{part}", f"{at}.resid_{'out' if part == 'ffn' else part}"
        read = norm if stack.wiring == "pre" else before
        if part == "ffn":
            yield _feed_forward(stack, layer, read)
        else:
            yield _attention(stack, layer, part, read, memory)
        roles = {
            "before": before,
            "sublayer": f"{at}.ffn.down" if part == "ffn" else f"{at}.{part}_attn.out",
            "sum": after if stack.wiring == "pre" else f"{norm}_in",
            "normed": norm,
            "after": after,
        }
        yield _station(stack, f"norm_{part}", "add_norm", roles, layer)
        before = after


def _parallel_layer(stack: StackInfo, layer: int, record: Record) -> Iterator[Station]:
    """Attention and feed-forward in parallel, added together."""
    at = f"{stack.name}.blocks.{layer}"
    yield _attention(stack, layer, "self", f"{at}.norm_self", "")
    yield _feed_forward(stack, layer, f"{at}.norm_ffn" if f"{at}.norm_ffn" in record else f"{at}.norm_self")
    roles = {
        "before": f"{at}.resid_in",
        "normed": f"{at}.norm_self",
        "normed_ffn": f"{at}.norm_ffn",
        "sublayer": f"{at}.self_attn.out",
        "sublayer_ffn": f"{at}.ffn.down",
        "sum": f"{at}.resid_out",
        "after": f"{at}.resid_out",
    }
    yield _station(stack, "norm_self", "add_norm", roles, layer)
