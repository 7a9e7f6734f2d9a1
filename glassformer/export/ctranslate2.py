"""A model of text as a CTranslate2 folder: the weights as they are, under its own runtime's names.

Every family here is the same few parts, so one mapping from parts to parts serves them all; what CTranslate2
lacks is refused by name. The vocabulary is spelled as our tokenizer spells it: what `tokenizer.tokens` gives
for the ids of `tokenizer.encode` is what the runtime reads. Of an encoder the runtime gives the last hidden
states; the head is left to the caller, its weights in a file of their own.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core import spec
from glassformer.errors import InvalidValueError, MissingDependencyError, MissingValueError, UnsupportedError
from glassformer.export.folder import (
    Exported,
    atomic_folder,
    config_values,
    end_tokens,
    forced_first_tokens,
    language_note,
    require_new_folder,
    special_token_id,
    start_tokens,
    suppressed_tokens,
    write_sidecars,
)
from glassformer.tokenization.tokenizer import Side

Dtype = Literal["float32", "float16", "int8"]
SUPPRESSED = -1e4  # added to a score that must never win; within float16's range
HEAD = "head.safetensors"
# our activations, by CTranslate2's names
ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_tanh": "GELUTanh",
    "silu": "SWISH",
    "quick_gelu": "GELUSigmoid",
    "tanh": "Tanh",
}


def export_ctranslate2(bundle: Bundle, folder: str | Path, dtype: Dtype = "float32") -> Exported:
    """Write the folder, which must be new or empty. dtype: what the weights are stored in."""
    if dtype not in get_args(Dtype):
        raise InvalidValueError("dtype", dtype, f"one of {', '.join(get_args(Dtype))}")
    library()
    path, what = require_new_folder(folder), bundle.spec
    if dtype == "int8":  # the library scales weights where they lie, before it rounds them
        bundle = replace(bundle, model=copy.deepcopy(bundle.model))
    head: dict[str, Any] = {}
    if isinstance(what, spec.EncoderOnlySpec) and isinstance(what.input, spec.TokensSpec):
        made, head, notes = _reader(bundle, what)
        runtime = "Encoder"
    elif isinstance(what, spec.EncoderDecoderSpec | spec.DecoderOnlySpec) and isinstance(
        what.head, spec.LanguageModelSpec
    ):
        made, notes = _writer(bundle, what)
        runtime = "Translator" if isinstance(what, spec.EncoderDecoderSpec) else "Generator"
    else:
        raise UnsupportedError("CTranslate2", f"a {what.kind} of this kind", hint="export to ONNX")
    made.config.layer_norm_epsilon = epsilon_of(what)
    made.validate()
    made.optimize(quantization=dtype)
    with atomic_folder(path) as whole:
        made.save(str(whole))
        if head:
            save_file(head, whole / HEAD)
        write_sidecars(bundle, whole, {"format": "ctranslate2", "dtype": dtype, "runtime": runtime})
    return Exported(folder=path, notes=notes)


def _writer(
    bundle: Bundle, what: spec.EncoderDecoderSpec | spec.DecoderOnlySpec
) -> tuple[Any, tuple[str, ...]]:
    """A model that writes text, with its vocabularies; and what the runtime has to be told."""
    model: Any = bundle.model
    eos, unk, never = end_tokens(bundle), special_token_id(bundle, "unk"), suppressed_tokens(bundle)
    assert isinstance(what.head, spec.LanguageModelSpec)
    if not eos:
        hint = "add the tokenizer to the folder, or eos_token_id to generation_config.json"
        raise MissingValueError("eos_token_id", "to export to CTranslate2", hint=hint)
    for name in ("eos_token_id", "decoder_start_token_id", "suppress_tokens"):
        for index in config_values(bundle, name):
            if not isinstance(index, int) or not 0 <= index < what.head.vocab_size:
                raise InvalidValueError(name, index, f"an id from 0 to {what.head.vocab_size - 1}")
    decoder = decoder_of(what, model, dict.fromkeys(never, SUPPRESSED))
    if isinstance(what, spec.EncoderDecoderSpec):
        encoder = encoder_of(what.encoder, what.source, model.src_embed, model.encoder)
        made = library().TransformerSpec(encoder, decoder)
        target = vocabulary_of(bundle, what.target, "target")
        made.register_source_vocabulary(vocabulary_of(bundle, what.source, "source"))
        made.register_target_vocabulary(target)
        starts = start_tokens(bundle, what)
        if len(starts) != 1:
            hint = "add it to generation_config.json"
            raise MissingValueError("decoder_start_token_id", "to export to CTranslate2", hint=hint)
        bos = starts[0]
        made.config.decoder_start_token = target[bos]
    else:
        made = library().TransformerDecoderModelSpec(decoder)
        target = vocabulary_of(bundle, what.input, "target")
        made.register_vocabulary(target)
        found = special_token_id(bundle, "bos")
        bos = eos[0] if found is None else found
    made.config.bos_token, made.config.eos_token = target[bos], target[eos[0]]
    made.config.unk_token = "" if unk is None else target[unk]
    return made, _notes(bundle, eos)


def _reader(bundle: Bundle, what: spec.EncoderOnlySpec) -> tuple[Any, dict[str, Any], tuple[str, ...]]:
    """An encoder with its vocabulary; the weights of its head; and what is left to the caller."""
    model: Any = bundle.model
    encoder = encoder_of(what.encoder, what.input, model.embed, model.encoder)
    made = pooled_of(encoder, what.head, model.head)
    words = vocabulary_of(bundle, what.input, "source")
    made.register_vocabulary(words)
    unk = special_token_id(bundle, "unk")
    made.config.unk_token = "" if unk is None else words[unk]
    if isinstance(what.head, spec.FeaturesSpec):
        return made, {}, ()
    if isinstance(what.head, spec.EmbedSpec):
        length = ", then normalize" if what.head.normalize else ""
        return made, {}, (f"pooling ('{what.head.pool}'{length}) is left to the caller",)
    weights = {name: value.float().cpu().contiguous() for name, value in model.head.state_dict().items()}
    return made, weights, (f"the head ({what.head.kind}) is left to the caller; weights in {HEAD}",)


def vocabulary_of(bundle: Bundle, tokens: spec.InputSpec, side: Side) -> list[str]:
    """A spelling for every row of the token matrix, each its own; rows without one are spelled by number."""
    assert isinstance(tokens, spec.TokensSpec)
    numbers = range(tokens.vocab_size)
    if bundle.tokenizer is None:
        return [f"<id {index}>" for index in numbers]
    spelled, taken = [], set()
    for index, token in enumerate(bundle.tokenizer.tokens(numbers, side=side)):
        spelled.append(f"<id {index}>" if token in taken else token)
        taken.add(token)
    return spelled


def _notes(bundle: Bundle, eos: list[int]) -> tuple[str, ...]:
    def spelled(ids: list[int]) -> str:
        tokenizer = bundle.tokenizer
        names = [f"<id {i}>" for i in ids] if tokenizer is None else tokenizer.tokens(ids, side="target")
        return ", ".join(map(repr, names))

    notes = []
    if len(eos) > 1:
        notes.append(f"several tokens end a text: call the runtime with end_token=[{spelled(eos)}]")
    if first := forced_first_tokens(bundle):
        notes.append(f"one token begins every target: call it with target_prefix=[[{spelled(first)}]]")
    for word in config_values(bundle, "bad_words_ids"):
        if len(word) > 1:
            notes.append(f"a stretch is never written: call it with suppress_sequences=[[{spelled(word)}]]")
    return (*notes, *language_note(bundle))


# ---- specifications of CTranslate2, filled with weights ---------------------------------------------------


def library() -> Any:
    """CTranslate2's descriptions of models; the package is an extra."""
    try:
        return import_module("ctranslate2.specs")
    except ImportError:
        raise MissingDependencyError("ctranslate2", "export") from None


def encoder_of(stack: spec.StackSpec, tokens: spec.InputSpec, embed: Any, encoder: Any) -> Any:
    """An encoder's specification, filled with the weights of its input and its layers."""
    options = _options(stack, tokens)
    if typed := isinstance(tokens, spec.TokensSpec) and tokens.types is not None:
        options |= {"num_source_embeddings": 2, "embeddings_merge": library().EmbeddingsMerge.ADD}
    made = library().TransformerEncoderSpec(stack.num_layers, **options)
    _fill_input(made, made.embeddings[0], embed)
    if typed:
        made.embeddings[1].weight = _plain(embed.kind.weight)
    _fill_stack(made, stack, encoder)
    return made


def pooled_of(encoder: Any, head: spec.HeadSpec, own: Any) -> Any:
    """An encoder's specification with the dense layer that a head puts on the first vector, if any."""
    dense, activation = None, None
    if isinstance(head, spec.FeaturesSpec) and head.pooler:
        dense, activation = own.pooler, head.pooler_activation
    elif isinstance(head, spec.ClassifySpec) and head.pool == "first" and head.hidden is not None:
        dense, activation = own.dense, head.hidden
    if dense is None or activation is None:
        return library().TransformerEncoderModelSpec(encoder)
    named = library().Activation[ACTIVATIONS[activation]]
    made = library().TransformerEncoderModelSpec(encoder, pooling_layer=True, pooling_activation=named)
    _fill_linear(made.pooler_dense, dense)
    return made


def decoder_of(
    what: spec.EncoderDecoderSpec | spec.DecoderOnlySpec, model: Any, shifts: Mapping[int, float]
) -> Any:
    """The decoder's specification with its scores; `shifts` are added to the scores of single tokens."""
    two = isinstance(what, spec.EncoderDecoderSpec)
    tokens = what.target if isinstance(what, spec.EncoderDecoderSpec) else what.input
    cross = what.decoder.block.cross_attention
    if isinstance(what, spec.EncoderDecoderSpec) and getattr(what.source, "types", None) is not None:
        _refuse("token types in a model that writes")
    if cross is not None and cross.num_heads != what.decoder.block.attention.num_heads:
        _refuse("cross-attention with another number of heads than self-attention")
    options = _options(what.decoder, tokens)
    made = library().TransformerDecoderSpec(what.decoder.num_layers, with_encoder_attention=two, **options)
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


def epsilon_of(what: spec.ModelSpec) -> float:
    """The one eps of every norm; CTranslate2 cannot have two."""
    if isinstance(what, spec.EncoderDecoderSpec):
        sides = [(what.source, what.encoder), (what.target, what.decoder)]
    else:
        sides = [(what.input, what.decoder if isinstance(what, spec.DecoderOnlySpec) else what.encoder)]
    norms = [(getattr(tokens, "norm", None), stack.block.norm, stack.final_norm) for tokens, stack in sides]
    found = {norm.eps for side in norms for norm in side if norm is not None}
    if len(found) > 1:
        _refuse(f"norms with different eps ({', '.join(map(str, sorted(found)))})")
    return found.pop()


def _refuse(part: str) -> NoReturn:
    raise UnsupportedError("CTranslate2", part)


def _options(stack: spec.StackSpec, tokens: spec.InputSpec) -> dict[str, Any]:
    """What the constructors of CTranslate2's stacks want to know, where it can be said to them."""
    block = stack.block
    attention, feed, norm = block.attention, block.feed_forward, block.norm
    if not isinstance(tokens, spec.TokensSpec) or (stack.causal and tokens.types is not None):
        _refuse("input of the kind this model reads")
    if block.wiring not in ("pre", "post"):
        _refuse(f"{block.wiring} wiring")
    if isinstance(norm, spec.BatchNormSpec):
        _refuse("batch norms")
    kinds = {type(one) for one in (norm, stack.final_norm, tokens.norm) if one is not None}
    if len(kinds) > 1:
        _refuse("stack that mixes two kinds of norm")
    if block.wiring == "post" and stack.final_norm is not None:
        _refuse("final norm after post-norm blocks")
    for one in filter(None, (attention, block.cross_attention)):
        if one.window is not None:
            _refuse("sliding windows")
        if one.qk_norm is not None:
            _refuse("normalized queries and keys")
        if one.value_dim not in (None, one.head_dim or stack.d_model // one.num_heads):
            _refuse("values of another width than keys")
    if stack.num_layers == 0:
        _refuse("stack without layers")
    if stack.pattern:
        _refuse("layers that differ")
    return {
        "num_heads": attention.num_heads,
        "num_heads_kv": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "pre_norm": block.wiring == "pre",
        "no_final_norm": stack.final_norm is None,
        "activation": library().Activation[ACTIVATIONS[feed.activation]],
        "layernorm_embedding": tokens.norm is not None,
        "ffn_glu": isinstance(feed, spec.GatedFeedForwardSpec),
        "rms_norm": isinstance(norm, spec.RMSNormSpec),
        **_position(stack.position, tokens.position),
    }


def _position(
    inside: spec.AttentionPositionSpec | None, added: spec.InputPositionSpec | None
) -> dict[str, Any]:
    if (inside is None) == (added is None):
        _refuse("model without positions, or with two kinds of them")
    if isinstance(inside, spec.AlibiSpec):
        _refuse("ALiBi positions")
    if isinstance(inside, spec.RelativeSpec):
        return {"relative_attention_bias": True}
    if isinstance(inside, spec.RotarySpec):
        options = {"rotary_dim": inside.width or 0, "rotary_interleave": False, "rotary_base": inside.base}
        if isinstance(inside.scaling, spec.LinearScalingSpec):
            options |= {
                "rotary_scaling_type": library().RotaryScalingType.Linear,
                "rotary_scaling_factor": inside.scaling.factor,
            }
        elif isinstance(inside.scaling, spec.BandScalingSpec):
            options["rotary_scaling_type"] = library().RotaryScalingType.Llama3
        return options
    return {}


def _fill_input(made: Any, embeddings: Any, own: Any) -> None:
    embeddings.weight = _plain(own.token.weight)
    made.scale_embeddings = float(own.scale)
    if own.position is not None:
        table = own.position.table if hasattr(own.position, "table") else own.position.weight
        made.position_encodings.encodings = _plain(table)[getattr(own.position, "offset", 0) :]
    if own.norm is not None:
        _fill_norm(made.layernorm_embedding, own.norm)


def _fill_stack(made: Any, stack: spec.StackSpec, own: Any) -> None:
    """Each layer's weights, and the positions that every layer's attention has to be told."""
    if own.final_norm is not None:
        _fill_norm(made.layer_norm, own.final_norm)
    for layer, block in zip(made.layer, own.blocks, strict=True):
        _fill_attention(layer.self_attention, block.self_attn, block.norm_self)
        if block.cross_attn is not None:
            _fill_attention(layer.attention, block.cross_attn, block.norm_cross)
        _fill_norm(layer.ffn.layer_norm, block.norm_ffn)
        gated = isinstance(stack.block.feed_forward, spec.GatedFeedForwardSpec)
        _fill_linear(layer.ffn.linear_0, block.ffn.gate if gated else block.ffn.up)
        if gated:
            _fill_linear(layer.ffn.linear_0_noact, block.ffn.up)
        _fill_linear(layer.ffn.linear_1, block.ffn.down)
        _fill_place(layer.self_attention, stack.position, own.position)


def _fill_place(made: Any, inside: spec.AttentionPositionSpec | None, own: Any) -> None:
    if isinstance(inside, spec.RelativeSpec):
        made.relative_attention_bias = _plain(own.weight)
        made.relative_attention_max_distance = np.int32(inside.max_distance)
    scaling = inside.scaling if isinstance(inside, spec.RotarySpec) else None
    if isinstance(scaling, spec.BandScalingSpec):
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
