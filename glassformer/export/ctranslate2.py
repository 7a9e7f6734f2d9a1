"""Export a text model to a CTranslate2 folder.

All families are built from the same modules, so one mapping to CTranslate2's layers is enough; modules that
it lacks raise an error. The runtime takes tokens, not ids: `tokenizer.tokens(tokenizer.encode(text).ids)`.
For an encoder it returns the last hidden states; the weights of the head are saved in a separate file.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core import spec
from glassformer.core.norms import RMSNorm
from glassformer.errors import InvalidValueError, MissingDependencyError, MissingValueError, UnsupportedError
from glassformer.export.folder import (
    ExportResult,
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
from glassformer.export.onnx import graphs_of
from glassformer.schema import Spec
from glassformer.tokenization.tokenizer import Side
from glassformer.weights.atomic_write import atomic_folder

Dtype = Literal["float32", "float16", "int8"]
SUPPRESSED = -1e4  # added to the logit of a suppressed token; within the range of float16
HEAD = "head.safetensors"
# activation names of this package -> those of CTranslate2
ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_tanh": "GELUTanh",
    "silu": "SWISH",
    "quick_gelu": "GELUSigmoid",
    "tanh": "Tanh",
}
# the runtime of each architecture
RUNTIMES = {"encoder-only": "Encoder", "encoder-decoder": "Translator", "decoder-only": "Generator"}
# the parts that are translated, each with the fields that are; the other fields must have their defaults
TRANSLATED: dict[type[Spec], str] = {
    spec.TokensSpec: "vocab_size scale position types norm dropout pad_id",
    spec.StackSpec: "d_model num_layers block causal position final_norm num_groups drop_path",
    spec.BlockSpec: "attention feed_forward norm wiring cross_attention dropout",
    spec.AttentionSpec: "num_heads num_kv_heads head_dim scale biases dropout",
    spec.FeedForwardSpec: "d_ff activation biases dropout",
    spec.GatedFeedForwardSpec: "d_ff activation biases dropout",
    spec.LayerNormSpec: "eps bias",
    spec.RMSNormSpec: "eps offset",
    spec.SinusoidalSpec: "max_len layout base",
    spec.LearnedSpec: "max_len offset",
    spec.RelativeSpec: "buckets max_distance",
    spec.RotarySpec: "base width scaling",
    spec.LinearScalingSpec: "factor",
    spec.BandScalingSpec: "factor low_freq_factor high_freq_factor original_max_len",
    spec.LanguageModelSpec: "vocab_size bias scale",
}


def export_ctranslate2(bundle: Bundle, folder: str | Path, dtype: Dtype = "float32") -> ExportResult:
    """Export a text model to a new or empty folder. dtype: dtype of the stored weights."""
    if dtype not in get_args(Dtype):
        raise InvalidValueError("dtype", dtype, f"one of {', '.join(get_args(Dtype))}")
    library()
    path, model_spec = require_new_folder(folder), bundle.spec
    runtime = RUNTIMES.get(model_spec.architecture) if "text" in model_spec.modalities else None
    if dtype == "int8":  # CTranslate2 scales weights in place before it quantizes them
        bundle = replace(bundle, model=copy.deepcopy(bundle.model))
    head: dict[str, Any] = {}
    if runtime == "Encoder":
        ct2_spec, head, notes = _encoder_spec(bundle, model_spec)
    elif runtime in ("Translator", "Generator") and model_spec.yields == "next tokens":
        ct2_spec, notes = _generation_spec(bundle, model_spec)
    else:
        hint = ""
        with suppress(UnsupportedError):
            graphs_of(bundle.model)
            hint = "export it to ONNX"
        raise UnsupportedError(
            "CTranslate2", "this model: it runs text encoders and models that generate text", hint=hint
        )
    ct2_spec.config.layer_norm_epsilon = epsilon_of(model_spec)
    ct2_spec.validate()
    ct2_spec.optimize(quantization=dtype)
    with atomic_folder(path) as temporary:
        ct2_spec.save(str(temporary))
        if head:
            save_file(head, temporary / HEAD)
        write_sidecars(bundle, temporary, {"format": "ctranslate2", "dtype": dtype, "runtime": runtime})
    return ExportResult(folder=path, notes=notes)


def _generation_spec(bundle: Bundle, model_spec: Any) -> tuple[Any, tuple[str, ...]]:
    """Return CTranslate2's spec of a model that generates text, with its vocabularies, and notes."""
    model: Any = bundle.model
    eos, unk, never = end_tokens(bundle), special_token_id(bundle, "unk"), suppressed_tokens(bundle)
    check_translated(model_spec.head)
    if not eos:
        hint = "add the tokenizer to the folder, or eos_token_id to generation_config.json"
        raise MissingValueError("eos_token_id", "to export to CTranslate2", hint=hint)
    for name in ("eos_token_id", "decoder_start_token_id", "suppress_tokens"):
        for index in config_values(bundle, name):
            if not isinstance(index, int) or not 0 <= index < model_spec.head.vocab_size:
                raise InvalidValueError(name, index, f"an id from 0 to {model_spec.head.vocab_size - 1}")
    decoder = decoder_of(model_spec, model, dict.fromkeys(never, SUPPRESSED))
    if "encoder" in model_spec.stacks():
        encoder = encoder_of(model_spec.encoder, model_spec.source, model.src_embed, model.encoder)
        ct2_spec = library().TransformerSpec(encoder, decoder)
        target = vocabulary_of(bundle, model_spec.target, "target")
        ct2_spec.register_source_vocabulary(vocabulary_of(bundle, model_spec.source, "source"))
        ct2_spec.register_target_vocabulary(target)
        starts = start_tokens(bundle, model_spec)
        if len(starts) != 1:
            hint = "add it to generation_config.json"
            raise MissingValueError("decoder_start_token_id", "to export to CTranslate2", hint=hint)
        bos = starts[0]
        ct2_spec.config.decoder_start_token = target[bos]
    else:
        ct2_spec = library().TransformerDecoderModelSpec(decoder)
        target = vocabulary_of(bundle, model_spec.input, "target")
        ct2_spec.register_vocabulary(target)
        bos_id = special_token_id(bundle, "bos")
        bos = eos[0] if bos_id is None else bos_id
    ct2_spec.config.bos_token, ct2_spec.config.eos_token = target[bos], target[eos[0]]
    ct2_spec.config.unk_token = "" if unk is None else target[unk]
    return ct2_spec, _notes(bundle, eos)


def _encoder_spec(bundle: Bundle, model_spec: Any) -> tuple[Any, dict[str, Any], tuple[str, ...]]:
    """Return CTranslate2's spec of an encoder with its vocabulary, the weights of its head, and notes."""
    model: Any = bundle.model
    if [*model_spec.encoder.parts()] != [""] or model_spec.encoder.causal:
        _raise_unsupported("a hierarchical or causal encoder")
    encoder = encoder_of(model_spec.encoder, model_spec.input, model.embed, model.encoder)
    ct2_spec = pooled_of(encoder, model_spec.head, model.head)
    vocabulary = vocabulary_of(bundle, model_spec.input, "source")
    ct2_spec.register_vocabulary(vocabulary)
    unk = special_token_id(bundle, "unk")
    ct2_spec.config.unk_token = "" if unk is None else vocabulary[unk]
    if type(model_spec.head) is spec.FeaturesSpec:
        return ct2_spec, {}, ()
    if type(model_spec.head) is spec.EmbedSpec:
        normalize = ", then normalize" if model_spec.head.normalize else ""
        return ct2_spec, {}, (f"pooling ('{model_spec.head.pool}'{normalize}) is left to the caller",)
    weights = {name: value.float().cpu().contiguous() for name, value in model.head.state_dict().items()}
    return ct2_spec, weights, (f"the head ({model_spec.head.kind}) is left to the caller; weights in {HEAD}",)


def vocabulary_of(bundle: Bundle, tokens: Any, side: Side) -> list[str]:
    """Return a unique token for every row of the embedding matrix; `<id N>` for rows without a token."""
    numbers = range(tokens.vocab_size)
    if bundle.tokenizer is None:
        return [f"<id {index}>" for index in numbers]
    spelled, used = [], set()
    for index, token in enumerate(bundle.tokenizer.tokens(numbers, side=side)):
        spelled.append(f"<id {index}>" if token in used else token)
        used.add(token)
    return spelled


def _notes(bundle: Bundle, eos: list[int]) -> tuple[str, ...]:
    def spelled(ids: list[int]) -> str:
        tokenizer = bundle.tokenizer
        names = [f"<id {i}>" for i in ids] if tokenizer is None else tokenizer.tokens(ids, side="target")
        return ", ".join(map(repr, names))

    notes = []
    if len(eos) > 1:
        notes.append(f"set end_token=[{spelled(eos)}]: several tokens end a text")
    if first := forced_first_tokens(bundle):
        notes.append(f"set target_prefix=[[{spelled(first)}]]: every target starts with it")
    for ids in config_values(bundle, "bad_words_ids"):
        if len(ids) > 1:
            notes.append(f"set suppress_sequences=[[{spelled(ids)}]]: it is never generated")
    return (*notes, *language_note(bundle))


# ---- specs of CTranslate2, filled with weights ---------------------------------------------------


def library() -> Any:
    """Import CTranslate2's model specs; raise if the optional package is missing."""
    try:
        return import_module("ctranslate2.specs")
    except ImportError:
        raise MissingDependencyError("ctranslate2", "export") from None


def encoder_of(stack: spec.StackSpec, tokens: Any, embed: Any, encoder: Any) -> Any:
    """Return CTranslate2's spec of an encoder with its weights."""
    options = _options(stack, tokens)
    if typed := tokens.types is not None:
        options |= {"num_source_embeddings": 2, "embeddings_merge": library().EmbeddingsMerge.ADD}
    ct2_spec = library().TransformerEncoderSpec(stack.num_layers, **options)
    _fill_input(ct2_spec, ct2_spec.embeddings[0], embed)
    if typed:
        ct2_spec.embeddings[1].weight = _to_float32(embed.kind.weight)
    _fill_stack(ct2_spec, stack, encoder)
    return ct2_spec


def pooled_of(encoder: Any, head: Any, own: Any) -> Any:
    """Return CTranslate2's spec of an encoder model, with the pooler of its head if it has one."""
    dense, activation = None, None
    if head.yields == "hidden states" and getattr(head, "pooler", False):
        dense, activation = own.pooler, head.pooler_activation
    elif (head.yields, getattr(head, "pool", None)) == ("label", "first"):
        activation = getattr(head, "hidden", None)
        dense = None if activation is None else own.dense
    if dense is None or activation is None:
        return library().TransformerEncoderModelSpec(encoder)
    named = library().Activation[ACTIVATIONS[activation]]
    ct2_spec = library().TransformerEncoderModelSpec(encoder, pooling_layer=True, pooling_activation=named)
    _fill_linear(ct2_spec.pooler_dense, dense)
    return ct2_spec


def decoder_of(model_spec: Any, model: Any, shifts: Mapping[int, float]) -> Any:
    """Return CTranslate2's spec of a decoder with its weights. shifts: logit bias by token id."""
    *sources, tokens = model_spec.embeddings().values()
    cross_attends = bool(sources)
    cross = model_spec.decoder.block.cross_attention
    if any(getattr(source, "types", None) is not None for source in sources):
        _raise_unsupported("token types in an encoder-decoder")
    if cross is not None and cross.num_heads != model_spec.decoder.block.attention.num_heads:
        _raise_unsupported("cross-attention with another number of heads than self-attention")
    options = _options(model_spec.decoder, tokens)
    ct2_spec = library().TransformerDecoderSpec(
        model_spec.decoder.num_layers, with_encoder_attention=cross_attends, **options
    )
    _fill_input(ct2_spec, ct2_spec.embeddings, model.tgt_embed if cross_attends else model.embed)
    _fill_stack(ct2_spec, model_spec.decoder, model.decoder)
    ct2_spec.projection.weight = _to_float32(model.head.weight)
    bias = model.head.bias
    if bias is not None or shifts:
        bias = torch.zeros(len(model.head.weight)) if bias is None else _to_float32(bias).clone()
        for index, shift in shifts.items():
            bias[index] += shift
        ct2_spec.projection.bias = bias
    if model.head.scale != 1.0:
        ct2_spec.scale_outputs = float(model.head.scale)
    return ct2_spec


def epsilon_of(model_spec: spec.ModelSpec) -> float:
    """Return the eps of all norms; CTranslate2 supports only one value."""
    sides: Any = zip(model_spec.inputs(), model_spec.stacks().values(), strict=True)
    norms = [(getattr(tokens, "norm", None), stack.block.norm, stack.final_norm) for tokens, stack in sides]
    values = {norm.eps for side in norms for norm in side if norm is not None}
    if len(values) > 1:
        _raise_unsupported(f"norms with different eps ({', '.join(map(str, sorted(values)))})")
    return values.pop()


def check_translated(part: Spec) -> None:
    """Raise if a part of a spec, or a setting of one, has no translation."""
    if type(part) not in TRANSLATED:
        _raise_unsupported(f"the part {part.kind}")
    for field in fields(part):  # type: ignore[arg-type]
        value = getattr(part, field.name)
        if field.name not in TRANSLATED[type(part)].split():
            if value != field.default:
                _raise_unsupported(f"{part.kind} with {field.name} = {value}")
        elif isinstance(value, Spec):
            check_translated(value)


def _raise_unsupported(part: str) -> NoReturn:
    raise UnsupportedError("CTranslate2", part)


def _options(stack: spec.StackSpec, tokens: Any) -> dict[str, Any]:
    """Return the arguments of CTranslate2's encoder and decoder specs."""
    block = stack.block
    attention, feed, norm = block.attention, block.feed_forward, block.norm
    check_translated(stack)
    check_translated(tokens)
    if stack.causal and tokens.types is not None:
        _raise_unsupported("token types in a causal model")
    if block.wiring not in ("pre", "post"):
        _raise_unsupported(f"{block.wiring} wiring")
    kinds = {type(part) for part in (norm, stack.final_norm, tokens.norm) if part is not None}
    if len(kinds) > 1:
        _raise_unsupported("two kinds of norm in one stack")
    if block.wiring == "post" and stack.final_norm is not None:
        _raise_unsupported("a final norm after post-norm blocks")
    if stack.num_layers == 0:
        _raise_unsupported("a stack without layers")
    return {
        "num_heads": attention.num_heads,
        "num_heads_kv": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "pre_norm": block.wiring == "pre",
        "no_final_norm": stack.final_norm is None,
        "activation": library().Activation[ACTIVATIONS[feed.activation]],
        "layernorm_embedding": tokens.norm is not None,
        "ffn_glu": feed.gated,
        "rms_norm": spec.RMSNormSpec in kinds,
        **_position(stack.position, tokens.position),
    }


def _position(
    inside: spec.AttentionPositionSpec | None, added: spec.InputPositionSpec | None
) -> dict[str, Any]:
    if (inside is None) == (added is None):
        _raise_unsupported("a model with no position encoding, or with two")
    if inside is None:  # the table of the input's positions is copied with its weights
        return {}
    return POSITIONS[type(inside)](inside)


def _rotary(inside: spec.RotarySpec) -> dict[str, Any]:
    options = {"rotary_dim": inside.width or 0, "rotary_interleave": False, "rotary_base": inside.base}
    if (scaling := inside.scaling) is not None:
        options["rotary_scaling_type"] = library().RotaryScalingType[SCALINGS[type(scaling)]]
        options["rotary_scaling_factor"] = scaling.factor
    return options


# the arguments for positions inside of attention, and CTranslate2's names of scalings
POSITIONS: dict[type[Spec], Callable[[Any], dict[str, Any]]] = {
    spec.RelativeSpec: lambda _: {"relative_attention_bias": True},
    spec.RotarySpec: _rotary,
}
SCALINGS: dict[type[Spec], str] = {spec.LinearScalingSpec: "Linear", spec.BandScalingSpec: "Llama3"}


def _fill_input(ct2_spec: Any, embeddings: Any, own: Any) -> None:
    embeddings.weight = _to_float32(own.token.weight)
    ct2_spec.scale_embeddings = float(own.scale)
    if own.position is not None:
        table = own.position.table if hasattr(own.position, "table") else own.position.weight
        ct2_spec.position_encodings.encodings = _to_float32(table)[getattr(own.position, "offset", 0) :]
    if own.norm is not None:
        _fill_norm(ct2_spec.layernorm_embedding, own.norm)


def _fill_stack(ct2_spec: Any, stack: spec.StackSpec, own: Any) -> None:
    """Copy the weights of each layer, and the position scheme of its attention, into the spec."""
    if own.final_norm is not None:
        _fill_norm(ct2_spec.layer_norm, own.final_norm)
    for layer, block in zip(ct2_spec.layer, own.blocks, strict=True):
        _fill_attention(layer.self_attention, block.self_attn, block.norm_self)
        if block.cross_attn is not None:
            _fill_attention(layer.attention, block.cross_attn, block.norm_cross)
        _fill_norm(layer.ffn.layer_norm, block.norm_ffn)
        gated = stack.block.feed_forward.gated
        _fill_linear(layer.ffn.linear_0, block.ffn.gate if gated else block.ffn.up)
        if gated:
            _fill_linear(layer.ffn.linear_0_noact, block.ffn.up)
        _fill_linear(layer.ffn.linear_1, block.ffn.down)
        _fill_positions(layer.self_attention, stack.position, own.position)


def _fill_positions(ct2_spec: Any, inside: spec.AttentionPositionSpec | None, own: Any) -> None:
    if isinstance(inside, spec.RelativeSpec):
        ct2_spec.relative_attention_bias = _to_float32(own.weight)
        ct2_spec.relative_attention_max_distance = np.int32(inside.max_distance)
    scaling = inside.scaling if isinstance(inside, spec.RotarySpec) else None
    if isinstance(scaling, spec.BandScalingSpec):
        ct2_spec.rotary_low_freq_factor = float(scaling.low_freq_factor)
        ct2_spec.rotary_high_freq_factor = float(scaling.high_freq_factor)
        # the runtime reads these two, although the spec does not declare them
        vars(ct2_spec)["rotary_scaling_factor"] = float(scaling.factor)
        vars(ct2_spec)["original_max_position_embeddings"] = np.int32(scaling.original_max_len)


def _fill_attention(ct2_spec: Any, own: Any, norm: Any) -> None:
    """Copy attention weights: q, k and v fused into one matrix, in cross-attention only k and v."""
    _fill_norm(ct2_spec.layer_norm, norm)
    ct2_spec.queries_scale = float(own.scale)
    projections = [own.q_proj, own.k_proj, own.v_proj]
    groups = [projections] if len(ct2_spec.linear) == 2 else [projections[:1], projections[1:]]
    for linear, group in zip(ct2_spec.linear, groups, strict=False):
        linear.weight = torch.cat([_to_float32(part.weight) for part in group])
        if any(part.bias is not None for part in group):
            linear.bias = torch.cat([_bias(part) for part in group])
    _fill_linear(ct2_spec.linear[-1], own.out_proj)


def _to_float32(weight: Tensor) -> Tensor:
    """Convert a weight to float32 on the CPU, without a copy if possible."""
    return weight.detach().float().cpu()


def _bias(linear: Any) -> Tensor:
    bias: Tensor | None = linear.bias
    return torch.zeros(linear.weight.shape[0]) if bias is None else _to_float32(bias)


def _fill_linear(ct2_spec: Any, own: Any) -> None:
    ct2_spec.weight = _to_float32(own.weight)
    if own.bias is not None:
        ct2_spec.bias = _to_float32(own.bias)


def _fill_norm(ct2_spec: Any, own: Any) -> None:
    ct2_spec.gamma = _to_float32(own.scale if isinstance(own, RMSNorm) else own.weight)
    if hasattr(ct2_spec, "beta"):
        ct2_spec.beta = torch.zeros_like(ct2_spec.gamma) if own.bias is None else _to_float32(own.bias)
