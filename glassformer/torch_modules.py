"""Convert torch's Transformer modules: `glassformer.from_torch(module)`.

The converted module computes the same function. Two conventions differ: inputs are always batch-first, and
True in a boolean mask means *may attend*. So pass torch's `attn_mask` (T, S) as `~mask`, its (B*H, T, S) one
as `~mask.view(B, H, T, S)`, and its `key_padding_mask` as `~mask[:, None]`; float masks stay as they are. As
in torch, attention is causal only with a causal mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core import build, spec
from glassformer.core.attention import MultiHeadAttention, make_attention
from glassformer.core.block import Block
from glassformer.core.model import EncoderDecoder
from glassformer.core.stack import Stack
from glassformer.errors import InvalidValueError, UnsupportedError

State = dict[str, Tensor]
Layer = nn.TransformerEncoderLayer | nn.TransformerDecoderLayer
Layers = nn.TransformerEncoder | nn.TransformerDecoder

_FUNCTIONS: dict[Callable[..., Tensor], spec.Activation] = {
    F.relu: "relu",
    torch.relu: "relu",
    F.gelu: "gelu",
    F.silu: "silu",
}


@overload
def from_torch(module: nn.MultiheadAttention) -> MultiHeadAttention: ...
@overload
def from_torch(module: Layer) -> Block: ...
@overload
def from_torch(module: Layers) -> Stack: ...
@overload
def from_torch(module: nn.Transformer) -> EncoderDecoder: ...
def from_torch(module: nn.Module) -> nn.Module:
    """Convert a torch module, with a copy of its weights, in the same mode and dtype.

    nn.MultiheadAttention -> MultiHeadAttention, nn.TransformerEncoderLayer and DecoderLayer -> Block,
    nn.TransformerEncoder and Decoder -> Stack, nn.Transformer -> EncoderDecoder over vectors.

    In the EncoderDecoder, the memory's mask defaults to the source's padding; torch's default is no mask.

    module: an nn.MultiheadAttention, nn.Transformer, encoder, decoder, encoder layer or decoder layer

    >>> layer = nn.TransformerEncoderLayer(16, 4, dim_feedforward=32, batch_first=True).eval()
    >>> x = torch.randn(2, 5, 16)
    >>> block = from_torch(layer)
    >>> torch.allclose(block(x, block.prepare(x)), layer(x), atol=1e-6)
    True
    """
    converted: nn.Module
    with torch.device("meta"):
        match module:
            case nn.MultiheadAttention():
                converted, state = _attention(module)
            case nn.TransformerEncoderLayer() | nn.TransformerDecoderLayer():
                layer_spec, state = _layer(module)
                converted = build.build_block(layer_spec, module.self_attn.embed_dim, _memory_dim(module))
            case nn.TransformerEncoder() | nn.TransformerDecoder():
                stack, state = _layers(module)
                converted = build.build_stack(stack, _memory_dim(module.layers[0]))
            case nn.Transformer():
                converted, state = _transformer(module)
            case _:
                kinds = "nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerDecoder, their layers"
                raise InvalidValueError("module", type(module).__name__, f"{kinds} or nn.Transformer")
    copies = {name: tensor.detach().clone() for name, tensor in state.items()}
    build.fill_meta_model(converted, copies)
    return converted.train(module.training)


def _check_type(part: Any, *kinds: type[nn.Module]) -> None:
    """Raise unless the module has exactly one of these types; a subclass may have another forward."""
    if type(part) not in kinds:
        expected = " or ".join(f"torch.nn.{kind.__name__}" for kind in kinds)
        raise InvalidValueError("module", type(part).__name__, f"{expected} itself")


def _attention_spec(module: nn.MultiheadAttention) -> spec.AttentionSpec:
    _check_type(module, nn.MultiheadAttention)
    if module.bias_k is not None or module.bias_v is not None:
        raise UnsupportedError("from_torch", "add_bias_kv=True")
    if module.add_zero_attn:
        raise UnsupportedError("from_torch", "add_zero_attn=True")
    if module.kdim != module.vdim:
        raise UnsupportedError("from_torch", f"kdim {module.kdim} with vdim {module.vdim}")
    biases: tuple[spec.Projection, ...] = ("q", "k", "v") if module.in_proj_bias is not None else ()
    if module.out_proj.bias is not None:
        biases += ("out",)
    return spec.AttentionSpec(num_heads=module.num_heads, biases=biases, dropout=module.dropout)


def _attention_state(module: nn.MultiheadAttention) -> State:
    names = ("q_proj", "k_proj", "v_proj")
    if module.in_proj_weight is not None:
        matrices = module.in_proj_weight.chunk(3)  # (3D, D): q, k and v
    else:
        matrices = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    state = {f"{name}.weight": matrix for name, matrix in zip(names, matrices, strict=True)}
    if module.in_proj_bias is not None:
        biases = zip(names, module.in_proj_bias.chunk(3), strict=True)
        state |= {f"{name}.bias": bias for name, bias in biases}
    return state | _add_prefix("out_proj", dict(module.out_proj.named_parameters()))


def _attention(module: nn.MultiheadAttention) -> tuple[MultiHeadAttention, State]:
    layer_spec = _attention_spec(module)
    converted = make_attention(module.embed_dim, layer_spec, memory_dim=module.kdim)
    return converted, _attention_state(module)


def _activation(value: Any) -> spec.Activation:
    """Return the name of a layer's activation, which is a function or a module in torch."""
    if type(value) is nn.GELU:
        return "gelu" if value.approximate == "none" else "gelu_tanh"
    modules: dict[type, spec.Activation] = {nn.ReLU: "relu", nn.SiLU: "silu"}
    name = modules.get(type(value)) or next((n for f, n in _FUNCTIONS.items() if f is value), None)
    if name is None:
        name_or_type = getattr(value, "__name__", type(value).__name__)
        raise InvalidValueError("activation", name_or_type, "relu, gelu or silu, as a function or a module")
    return name


def _norm(module: Any) -> spec.LayerNormSpec:
    _check_type(module, nn.LayerNorm)
    if module.weight is None:
        raise UnsupportedError("from_torch", "elementwise_affine=False")
    return spec.LayerNormSpec(eps=module.eps, bias=module.bias is not None)


def _check_equal(values: list[Any], name: str) -> Any:
    if any(value != values[0] for value in values):
        raise InvalidValueError(name, values, "equal values")
    return values[0]


def _layer(module: Layer) -> tuple[spec.BlockSpec, State]:
    """Return the spec and the weights, under Glassformer's names, of one encoder or decoder layer."""
    _check_type(module, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
    norms, drops = [module.norm1, module.norm2], [module.dropout1.p, module.dropout2.p]
    names = ["norm_self", "norm_ffn"]
    state, cross_attention = _add_prefix("self_attn", _attention_state(module.self_attn)), None
    if isinstance(module, nn.TransformerDecoderLayer):
        names.insert(1, "norm_cross")
        norms.append(module.norm3)
        drops.append(module.dropout3.p)
        cross_attention = _attention_spec(module.multihead_attn)
        state |= _add_prefix("cross_attn", _attention_state(module.multihead_attn))
    linear = {"up": module.linear1, "down": module.linear2}
    parts = {**dict(zip(names, norms, strict=True)), **{f"ffn.{name}": part for name, part in linear.items()}}
    for name, part in parts.items():
        state |= _add_prefix(name, dict(part.named_parameters()))
    layer_spec = spec.BlockSpec(
        attention=_attention_spec(module.self_attn),
        cross_attention=cross_attention,
        feed_forward=spec.FeedForwardSpec(
            d_ff=module.linear1.out_features,
            activation=_activation(module.activation),
            biases=tuple(name for name, part in linear.items() if part.bias is not None),  # type: ignore[misc]
            dropout=module.dropout.p,
        ),
        norm=_check_equal([_norm(norm) for norm in norms], "norms"),
        wiring="pre" if module.norm_first else "post",
        dropout=_check_equal(drops, "dropout rates after the sub-layers"),
    )
    return layer_spec, state


def _layers(module: Layers) -> tuple[spec.StackSpec, State]:
    _check_type(module, nn.TransformerEncoder, nn.TransformerDecoder)
    state: State = {}
    blocks: list[spec.BlockSpec] = []
    for n, layer in enumerate(module.layers):
        layer_spec, inner = _layer(layer)
        blocks.append(layer_spec)
        state |= _add_prefix(f"blocks.{n}", inner)
    if module.norm is not None:
        state |= _add_prefix("final_norm", dict(module.norm.named_parameters()))
    stack = spec.StackSpec(
        d_model=module.layers[0].self_attn.embed_dim,
        num_layers=len(blocks),
        block=_check_equal(blocks, "layers"),
        final_norm=None if module.norm is None else _norm(module.norm),
    )
    return stack, state


def _transformer(module: nn.Transformer) -> tuple[EncoderDecoder, State]:
    _check_type(module, nn.Transformer)
    encoder, encoder_state = _layers(module.encoder)
    decoder, decoder_state = _layers(module.decoder)
    vectors = spec.VectorsSpec()
    converted = build.build_model(
        spec.EncoderDecoderSpec(
            source=vectors, target=vectors, encoder=encoder, decoder=decoder, head=spec.FeaturesSpec()
        )
    )
    assert isinstance(converted, EncoderDecoder)
    return converted, _add_prefix("encoder", encoder_state) | _add_prefix("decoder", decoder_state)


def _add_prefix(name: str, state: State) -> State:
    return {f"{name}.{key}": value for key, value in state.items()}


def _memory_dim(layer: nn.Module) -> int | None:
    return layer.multihead_attn.kdim if isinstance(layer, nn.TransformerDecoderLayer) else None
