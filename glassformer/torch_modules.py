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
                made = build.block(what, module.self_attn.embed_dim, _memory_dim(module))
            case nn.TransformerEncoder() | nn.TransformerDecoder():
                stack, state = _layers(module)
                made = build.stack(stack, _memory_dim(module.layers[0]))
            case nn.Transformer():
                made, state = _transformer(module)
            case _:
                kinds = "nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerDecoder, their layers"
                raise InvalidValueError("module", type(module).__name__, f"{kinds} or nn.Transformer")
    copies = {name: tensor.detach().clone() for name, tensor in state.items()}
    build.materialise(made, copies)
    return made.train(module.training)


def _check_type(part: Any, kind: type[nn.Module], where: str) -> None:
    """Reject a subclass: its forward may do anything."""
    if type(part) is not kind:
        raise InvalidValueError(where, type(part).__name__, f"torch.nn.{kind.__name__} itself")


def _attention_spec(module: nn.MultiheadAttention, where: str = "the attention") -> spec.Attention:
    _check_type(module, nn.MultiheadAttention, where)
    if module.bias_k is not None or module.bias_v is not None:
        raise UnsupportedError("from_torch", "add_bias_kv=True")
    if module.add_zero_attn:
        raise UnsupportedError("from_torch", "add_zero_attn=True")
    if module.kdim != module.vdim:
        raise UnsupportedError("from_torch", f"kdim {module.kdim} with vdim {module.vdim}")
    biases: tuple[spec.Projection, ...] = ("q", "k", "v") if module.in_proj_bias is not None else ()
    if module.out_proj.bias is not None:
        biases += ("out",)
    return spec.Attention(num_heads=module.num_heads, biases=biases, dropout=module.dropout)


def _attention_state(module: nn.MultiheadAttention) -> State:
    if module.in_proj_weight is not None:
        matrices = module.in_proj_weight.chunk(3)  # (3D, D): q, k and v on top of each other
    else:
        matrices = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    names = ("q_proj", "k_proj", "v_proj")
    state = {f"{name}.weight": matrix for name, matrix in zip(names, matrices, strict=True)}
    if module.in_proj_bias is not None:
        biases = module.in_proj_bias.chunk(3)
        state |= {f"{name}.bias": bias for name, bias in zip(names, biases, strict=True)}
    return state | _under("out_proj", module.out_proj)


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


def _norm(module: Any, where: str) -> spec.LayerNorm:
    _check_type(module, nn.LayerNorm, where)
    if module.weight is None:
        raise UnsupportedError("from_torch", "elementwise_affine=False")
    return spec.LayerNorm(eps=module.eps, bias=module.bias is not None)


def _same(values: list[Any], what: str) -> Any:
    if any(value != values[0] for value in values):
        raise InvalidValueError(what, values, "equal values")
    return values[0]


def _layer(module: Layer) -> tuple[spec.Block, State]:
    """The spec and the weights, under our names, of one encoder or decoder layer."""
    decodes = isinstance(module, nn.TransformerDecoderLayer)
    _check_type(module, nn.TransformerDecoderLayer if decodes else nn.TransformerEncoderLayer, "the layer")
    norms = {"norm_self": module.norm1, "norm_ffn": module.norm2}
    drops = [module.dropout1.p, module.dropout2.p]
    state = {f"self_attn.{name}": value for name, value in _attention_state(module.self_attn).items()}
    across = None
    if isinstance(module, nn.TransformerDecoderLayer):
        norms = {"norm_self": module.norm1, "norm_cross": module.norm2, "norm_ffn": module.norm3}
        drops.append(module.dropout3.p)
        across = _attention_spec(module.multihead_attn, "the cross-attention")
        there = _attention_state(module.multihead_attn)
        state |= {f"cross_attn.{name}": value for name, value in there.items()}
    for name, norm in norms.items():
        state |= _under(name, norm)
    for linear in (module.linear1, module.linear2):
        _check_type(linear, nn.Linear, "a feed-forward's linear layer")
    state |= _under("ffn.up", module.linear1) | _under("ffn.down", module.linear2)
    biases = (("up", module.linear1), ("down", module.linear2))
    what = spec.Block(
        attention=_attention_spec(module.self_attn, "the self-attention"),
        cross_attention=across,
        feed_forward=spec.FeedForward(
            d_ff=module.linear1.out_features,
            activation=_activation(module.activation),
            biases=tuple(name for name, linear in biases if linear.bias is not None),  # type: ignore[misc]
            dropout=module.dropout.p,
        ),
        norm=_same([_norm(norm, name) for name, norm in norms.items()], "norms"),
        wiring="pre" if module.norm_first else "post",
        dropout=_same(drops, "dropout rates after the sub-layers"),
    )
    return what, state


def _layers(module: Layers) -> tuple[spec.Stack, State]:
    decodes = isinstance(module, nn.TransformerDecoder)
    _check_type(module, nn.TransformerDecoder if decodes else nn.TransformerEncoder, "the stack")
    if not len(module.layers):
        raise InvalidValueError("layers", 0, "at least one layer")
    kind = nn.TransformerDecoderLayer if decodes else nn.TransformerEncoderLayer
    state: State = {}
    blocks: list[spec.Block] = []
    for n, layer in enumerate(module.layers):
        _check_type(layer, kind, f"layer {n}")
        what, inner = _layer(layer)
        blocks.append(what)
        state |= {f"blocks.{n}.{name}": value for name, value in inner.items()}
    if module.norm is not None:
        state |= _under("final_norm", module.norm)
    stack = spec.Stack(
        d_model=module.layers[0].self_attn.embed_dim,
        num_layers=len(blocks),
        block=_same(blocks, "layers"),
        final_norm=None if module.norm is None else _norm(module.norm, "the final norm"),
    )
    return stack, state


def _transformer(module: nn.Transformer) -> tuple[EncoderDecoder, State]:
    _check_type(module, nn.Transformer, "the model")
    _check_type(module.encoder, nn.TransformerEncoder, "the model's encoder")
    _check_type(module.decoder, nn.TransformerDecoder, "the model's decoder")
    encoder, reading = _layers(module.encoder)
    decoder, writing = _layers(module.decoder)
    what = spec.EncoderDecoder(
        source=spec.Vectors(),
        target=spec.Vectors(),
        encoder=encoder,
        decoder=decoder,
        head=spec.Features(),
    )
    made = build.build(what)
    assert isinstance(made, EncoderDecoder)
    state = {f"encoder.{name}": value for name, value in reading.items()}
    return made, state | {f"decoder.{name}": value for name, value in writing.items()}


def _under(name: str, module: nn.Module) -> State:
    return {f"{name}.{key}": value for key, value in module.named_parameters()}


def _memory_dim(layer: nn.Module) -> int | None:
    return layer.multihead_attn.kdim if isinstance(layer, nn.TransformerDecoderLayer) else None
