"""Convert torch's own Transformer modules: `glassformer.from_torch(module)`.

The result computes what the module does. Three conventions differ: ours is always batch-first; our masks are
True where a key *may* be attended; and a 2-D mask is (B, S), the padding. So pass torch's `key_padding_mask`
as `~mask`, its (T, S) `attn_mask` as `~mask[None]`, and its (B*H, T, S) one as `~mask.view(B, H, T, S)`.
As in torch, nothing is causal until a mask says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core import build, spec
from glassformer.core.attention import MultiHeadAttention
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

    In the last one `memory_mask` is the source's padding when left out; torch's default is `Mask()`.

    module: nn.MultiheadAttention, nn.Transformer, its encoder, decoder, or one of their layers

    >>> layer = nn.TransformerEncoderLayer(16, 4, dim_feedforward=32, batch_first=True).eval()
    >>> x = torch.randn(2, 5, 16)
    >>> torch.allclose(from_torch(layer)(x), layer(x), atol=1e-6)
    True
    """
    made: nn.Module
    with torch.device("meta"):
        match module:
            case nn.MultiheadAttention():
                made, state = _attention(module)
            case nn.TransformerEncoderLayer() | nn.TransformerDecoderLayer():
                what, state = _layer(module)
                made = build.build_block(what, module.self_attn.embed_dim, _memory_dim(module))
            case nn.TransformerEncoder() | nn.TransformerDecoder():
                stack, state = _layers(module)
                made = build.build_stack(stack, _memory_dim(module.layers[0]))
            case nn.Transformer():
                made, state = _transformer(module)
            case _:
                kinds = "nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerDecoder, their layers"
                raise InvalidValueError("module", type(module).__name__, f"{kinds} or nn.Transformer")
    copies = {name: tensor.detach().clone() for name, tensor in state.items()}
    build.fill_meta_model(made, copies)
    return made.train(module.training)


def _check_type(part: Any, *kinds: type[nn.Module]) -> None:
    """Reject other modules and subclasses, whose forward may do anything."""
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
        matrices = module.in_proj_weight.chunk(3)  # (3D, D): q, k and v on top of each other
    else:
        matrices = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    state = {f"{name}.weight": matrix for name, matrix in zip(names, matrices, strict=True)}
    if module.in_proj_bias is not None:
        biases = zip(names, module.in_proj_bias.chunk(3), strict=True)
        state |= {f"{name}.bias": bias for name, bias in biases}
    return state | _under("out_proj", dict(module.out_proj.named_parameters()))


def _attention(module: nn.MultiheadAttention) -> tuple[MultiHeadAttention, State]:
    what = _attention_spec(module)
    made = MultiHeadAttention(module.embed_dim, **vars(what), memory_dim=module.kdim)
    return made, _attention_state(module)


def _activation(value: Any) -> spec.Activation:
    """The name of a layer's activation: torch keeps a function or a module there."""
    if type(value) is nn.GELU:
        return "gelu" if value.approximate == "none" else "gelu_tanh"
    modules: dict[type, spec.Activation] = {nn.ReLU: "relu", nn.SiLU: "silu"}
    name = modules.get(type(value)) or next((n for f, n in _FUNCTIONS.items() if f is value), None)
    if name is None:
        shown = getattr(value, "__name__", type(value).__name__)
        raise InvalidValueError("activation", shown, "relu, gelu or silu, as a function or a module")
    return name


def _norm(module: Any) -> spec.LayerNormSpec:
    _check_type(module, nn.LayerNorm)
    if module.weight is None:
        raise UnsupportedError("from_torch", "elementwise_affine=False")
    return spec.LayerNormSpec(eps=module.eps, bias=module.bias is not None)


def _same(values: list[Any], what: str) -> Any:
    if any(value != values[0] for value in values):
        raise InvalidValueError(what, values, "equal values")
    return values[0]


def _layer(module: Layer) -> tuple[spec.BlockSpec, State]:
    """The spec and the weights, under our names, of one encoder or decoder layer."""
    _check_type(module, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
    norms, drops = [module.norm1, module.norm2], [module.dropout1.p, module.dropout2.p]
    names = ["norm_self", "norm_ffn"]
    state, across = _under("self_attn", _attention_state(module.self_attn)), None
    if isinstance(module, nn.TransformerDecoderLayer):
        names.insert(1, "norm_cross")
        norms.append(module.norm3)
        drops.append(module.dropout3.p)
        across = _attention_spec(module.multihead_attn)
        state |= _under("cross_attn", _attention_state(module.multihead_attn))
    linear = {"up": module.linear1, "down": module.linear2}
    parts = {**dict(zip(names, norms, strict=True)), **{f"ffn.{name}": part for name, part in linear.items()}}
    for name, part in parts.items():
        state |= _under(name, dict(part.named_parameters()))
    what = spec.BlockSpec(
        attention=_attention_spec(module.self_attn),
        cross_attention=across,
        feed_forward=spec.FeedForwardSpec(
            d_ff=module.linear1.out_features,
            activation=_activation(module.activation),
            biases=tuple(name for name, part in linear.items() if part.bias is not None),  # type: ignore[misc]
            dropout=module.dropout.p,
        ),
        norm=_same([_norm(norm) for norm in norms], "norms"),
        wiring="pre" if module.norm_first else "post",
        dropout=_same(drops, "dropout rates after the sub-layers"),
    )
    return what, state


def _layers(module: Layers) -> tuple[spec.StackSpec, State]:
    _check_type(module, nn.TransformerEncoder, nn.TransformerDecoder)
    state: State = {}
    blocks: list[spec.BlockSpec] = []
    for n, layer in enumerate(module.layers):
        what, inner = _layer(layer)
        blocks.append(what)
        state |= _under(f"blocks.{n}", inner)
    if module.norm is not None:
        state |= _under("final_norm", dict(module.norm.named_parameters()))
    stack = spec.StackSpec(
        d_model=module.layers[0].self_attn.embed_dim,
        num_layers=len(blocks),
        block=_same(blocks, "layers"),
        final_norm=None if module.norm is None else _norm(module.norm),
    )
    return stack, state


def _transformer(module: nn.Transformer) -> tuple[EncoderDecoder, State]:
    _check_type(module, nn.Transformer)
    encoder, reading = _layers(module.encoder)
    decoder, writing = _layers(module.decoder)
    vectors = spec.VectorsSpec()
    made = build.build_model(
        spec.EncoderDecoderSpec(
            source=vectors, target=vectors, encoder=encoder, decoder=decoder, head=spec.FeaturesSpec()
        )
    )
    assert isinstance(made, EncoderDecoder)
    return made, _under("encoder", reading) | _under("decoder", writing)


def _under(name: str, state: State) -> State:
    return {f"{name}.{key}": value for key, value in state.items()}


def _memory_dim(layer: nn.Module) -> int | None:
    return layer.multihead_attn.kdim if isinstance(layer, nn.TransformerDecoderLayer) else None
