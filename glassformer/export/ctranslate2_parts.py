"""Our stacks as CTranslate2's: layer by layer, every part that differs refused by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from glassformer.core import spec
from glassformer.errors import MissingDependencyError, UnsupportedError

# our words for an activation, and the names of CTranslate2's
ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_tanh": "GELUTanh",
    "silu": "SWISH",
    "quick_gelu": "GELUSigmoid",
    "tanh": "Tanh",
}


def library() -> Any:
    """CTranslate2's descriptions of models; the package is an extra."""
    try:
        return import_module("ctranslate2.specs")
    except ImportError:
        raise MissingDependencyError("ctranslate2", "export") from None


def encoder_of(stack: spec.Stack, tokens: spec.Input, embed: Any, encoder: Any) -> Any:
    """An encoder's specification, filled with the weights of its input and its layers."""
    words = _words(stack, tokens)
    if typed := isinstance(tokens, spec.Tokens) and tokens.types is not None:
        words |= {"num_source_embeddings": 2, "embeddings_merge": library().EmbeddingsMerge.ADD}
    made = library().TransformerEncoderSpec(stack.num_layers, **words)
    _fill_input(made, made.embeddings[0], embed)
    if typed:
        made.embeddings[1].weight = _plain(embed.kind.weight)
    _fill_stack(made, stack, encoder)
    return made


def pooled_of(encoder: Any, head: spec.Head, own: Any) -> Any:
    """An encoder's specification with the dense layer that a head puts on the first vector, if any."""
    dense, activation = None, None
    if isinstance(head, spec.Features) and head.pooler:
        dense, activation = own.pooler, head.pooler_activation
    elif isinstance(head, spec.Classify) and head.pool == "first" and head.hidden is not None:
        dense, activation = own.dense, head.hidden
    if dense is None or activation is None:
        return library().TransformerEncoderModelSpec(encoder)
    named = library().Activation[ACTIVATIONS[activation]]
    made = library().TransformerEncoderModelSpec(encoder, pooling_layer=True, pooling_activation=named)
    _fill_linear(made.pooler_dense, dense)
    return made


def decoder_of(what: spec.EncoderDecoder | spec.DecoderOnly, model: Any, shifts: Mapping[int, float]) -> Any:
    """The decoder's specification with its scores; `shifts` are added to the scores of single tokens."""
    two = isinstance(what, spec.EncoderDecoder)
    tokens = what.target if isinstance(what, spec.EncoderDecoder) else what.input
    cross = what.decoder.block.cross_attention
    if isinstance(what, spec.EncoderDecoder) and getattr(what.source, "types", None) is not None:
        _refuse("token types in a model that writes")
    if cross is not None and cross.num_heads != what.decoder.block.attention.num_heads:
        _refuse("cross-attention with another number of heads than self-attention")
    words = _words(what.decoder, tokens)
    made = library().TransformerDecoderSpec(what.decoder.num_layers, with_encoder_attention=two, **words)
    _fill_input(made, made.embeddings, model.tgt_embed if two else model.embed)
    _fill_stack(made, what.decoder, model.decoder)
    made.projection.weight = _plain(model.head.weight)
    bias = model.head.bias
    if bias is not None or shifts:
        bias = torch.zeros(len(model.head.weight)) if bias is None else _plain(bias).clone()
        for index, shift in shifts.items():
            bias[index] += shift
        made.projection.bias = bias
    if model.head.scale != 1.0:
        made.scale_outputs = float(model.head.scale)
    return made


def epsilon_of(what: spec.Model) -> float:
    """The one small number under every norm's root; CTranslate2 has no room for two."""
    found = {norm.eps for norm in _norms(what)}
    if len(found) > 1:
        _refuse(f"norms with different eps ({', '.join(map(str, sorted(found)))})")
    return found.pop()


def _norms(what: spec.Model) -> Iterator[spec.Norm]:
    if isinstance(what, spec.EncoderDecoder):
        sides = [(what.source, what.encoder), (what.target, what.decoder)]
    elif isinstance(what, spec.EncoderOnly):
        sides = [(what.input, what.encoder)]
    else:
        sides = [(what.input, what.decoder)]
    for tokens, stack in sides:
        found = (getattr(tokens, "norm", None), stack.block.norm, stack.final_norm)
        yield from (norm for norm in found if norm is not None)


def _refuse(part: str) -> NoReturn:
    raise UnsupportedError("CTranslate2", part)


def _words(stack: spec.Stack, tokens: spec.Input) -> dict[str, Any]:
    """What the constructors of CTranslate2's stacks want to know, where it can be said to them."""
    block = stack.block
    attention, feed, norm = block.attention, block.feed_forward, block.norm
    if not isinstance(tokens, spec.Tokens) or (stack.causal and tokens.types is not None):
        _refuse("input of the kind this model reads")
    if block.wiring not in ("pre", "post"):
        _refuse(f"{block.wiring} wiring in this export")
    if isinstance(norm, spec.BatchNorm):
        _refuse("batch norms")
    kinds = {type(one) for one in (norm, stack.final_norm, tokens.norm) if one is not None}
    if len(kinds) > 1:
        _refuse("stack that mixes two kinds of norm")
    if block.wiring == "post" and stack.final_norm is not None:
        _refuse("final norm after post-norm blocks")
    for one in (attention, block.cross_attention):
        if one is not None and one.window is not None:
            _refuse("sliding window of the kind this model has")
        if one is not None and one.qk_norm is not None:
            _refuse("norm of queries and keys in this export")
        if one is not None and one.value_dim not in (None, one.head_dim or stack.d_model // one.num_heads):
            _refuse("values of another width than keys")
    if stack.num_layers == 0:
        _refuse("stack without layers")
    if stack.pattern:
        _refuse("layers that differ in this export")
    return {
        "num_heads": attention.num_heads,
        "num_heads_kv": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "pre_norm": block.wiring == "pre",
        "no_final_norm": stack.final_norm is None,
        "activation": library().Activation[ACTIVATIONS[feed.activation]],
        "layernorm_embedding": tokens.norm is not None,
        "ffn_glu": isinstance(feed, spec.GatedFeedForward),
        "rms_norm": isinstance(norm, spec.RMSNorm),
        **_position(stack.position, tokens.position),
    }


def _position(inside: spec.ScorePosition | None, added: spec.AddedPosition | None) -> dict[str, Any]:
    if (inside is None) == (added is None):
        _refuse("model without positions, or with two kinds of them")
    if isinstance(inside, spec.Alibi):
        _refuse("linear bias by distance in this export")
    if isinstance(inside, spec.Relative):
        return {"relative_attention_bias": True}
    if isinstance(inside, spec.Rotary):
        words = {"rotary_dim": inside.width or 0, "rotary_interleave": False, "rotary_base": inside.base}
        if isinstance(inside.scaling, spec.LinearScaling):
            words |= {
                "rotary_scaling_type": library().RotaryScalingType.Linear,
                "rotary_scaling_factor": inside.scaling.factor,
            }
        elif isinstance(inside.scaling, spec.BandScaling):
            words["rotary_scaling_type"] = library().RotaryScalingType.Llama3
        return words
    return {}


def _fill_input(made: Any, embeddings: Any, own: Any) -> None:
    embeddings.weight = _plain(own.token.weight)
    made.scale_embeddings = float(own.scale)
    if own.position is not None:
        table = own.position.table if hasattr(own.position, "table") else own.position.weight
        made.position_encodings.encodings = _plain(table)[getattr(own.position, "offset", 0) :]
    if own.norm is not None:
        _fill_norm(made.layernorm_embedding, own.norm)


def _fill_stack(made: Any, stack: spec.Stack, own: Any) -> None:
    """Each layer's weights, and the positions that every layer's attention has to be told."""
    if own.final_norm is not None:
        _fill_norm(made.layer_norm, own.final_norm)
    for layer, block in zip(made.layer, own.blocks, strict=True):
        _fill_attention(layer.self_attention, block.self_attn, block.norm_self)
        if block.cross_attn is not None:
            _fill_attention(layer.attention, block.cross_attn, block.norm_cross)
        _fill_norm(layer.ffn.layer_norm, block.norm_ffn)
        gated = isinstance(stack.block.feed_forward, spec.GatedFeedForward)
        _fill_linear(layer.ffn.linear_0, block.ffn.gate if gated else block.ffn.up)
        if gated:
            _fill_linear(layer.ffn.linear_0_noact, block.ffn.up)
        _fill_linear(layer.ffn.linear_1, block.ffn.down)
        _fill_place(layer.self_attention, stack.position, own.position)


def _fill_place(made: Any, inside: spec.ScorePosition | None, own: Any) -> None:
    if isinstance(inside, spec.Relative):
        made.relative_attention_bias = _plain(own.weight)
        made.relative_attention_max_distance = np.int32(inside.max_distance)
    scaling = inside.scaling if isinstance(inside, spec.Rotary) else None
    if isinstance(scaling, spec.BandScaling):
        made.rotary_low_freq_factor = float(scaling.low_freq_factor)
        made.rotary_high_freq_factor = float(scaling.high_freq_factor)
        # the runtime reads these two for bands as well, but the library's description has no words for them
        vars(made)["rotary_scaling_factor"] = float(scaling.factor)
        vars(made)["original_max_position_embeddings"] = np.int32(scaling.original_max_len)


def _fill_attention(made: Any, own: Any, norm: Any) -> None:
    """Queries, keys and values in one matrix, or keys and values in one where they come from memory."""
    _fill_norm(made.layer_norm, norm)
    made.queries_scale = float(own.scale)
    projections = [own.q_proj, own.k_proj, own.v_proj]
    cuts = [projections] if len(made.linear) == 2 else [projections[:1], projections[1:]]
    for linear, joined in zip(made.linear, cuts, strict=False):
        linear.weight = torch.cat([_plain(part.weight) for part in joined])
        if any(part.bias is not None for part in joined):
            linear.bias = torch.cat([_bias(part) for part in joined])
    _fill_linear(made.linear[-1], own.out_proj)


def _plain(weight: Tensor) -> Tensor:
    """As the library reads memory: float32, on the CPU. The same memory where it is that already."""
    return weight.detach().float().cpu()


def _bias(linear: Any) -> Tensor:
    found: Tensor | None = linear.bias
    return torch.zeros(linear.weight.shape[0]) if found is None else _plain(found)


def _fill_linear(made: Any, own: Any) -> None:
    made.weight = _plain(own.weight)
    if own.bias is not None:
        made.bias = _plain(own.bias)


def _fill_norm(made: Any, own: Any) -> None:
    made.gamma = _plain(own.weight)
    if hasattr(made, "beta"):
        made.beta = torch.zeros_like(made.gamma) if own.bias is None else _plain(own.bias)
