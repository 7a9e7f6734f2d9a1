"""Shared by the decoder-only families: spec builder and its inverse, heads, and keys of rotary positions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from glassformer.core import spec
from glassformer.families.config import Config, UnsupportedConfigError
from glassformer.families.family import Builder, spec_options
from glassformer.families.keys import Head, Key, Options, Rule
from glassformer.families.rows import layer_rows, rename_modules
from glassformer.weights.ops import Op, Rename, SplitGroups, Tied, expand

Scaling = spec.LinearScalingSpec | spec.BandScalingSpec | None


def decoder(
    *,
    vocab_size: int = 32000,
    d_model: int = 4096,
    num_heads: int = 32,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    d_ff: int | None = None,
    num_layers: int = 32,
    max_len: int = 4096,
    window: int | None = None,
    window_layers: tuple[int, ...] | None = None,
    sliding_window_pattern: int | None = None,
    wiring: spec.Wiring = "pre",
    norm: Literal["rms", "rms_zero_centered", "layer", "layer_no_bias"] = "rms",
    norm_eps: float = 1e-5,
    activation: spec.Activation = "silu",
    gated: bool = True,
    position: Literal["rotary", "alibi", "learned"] = "rotary",
    rope_base: float = 10000.0,
    rope_scaling: Scaling = None,
    partial_rotary_factor: float = 1.0,
    local_rope_base: float | None = None,
    attention_bias: bool = False,
    qkv_bias: bool = False,
    ffn_bias: bool = False,
    qk_norm: bool = False,
    scale: float | None = None,
    attention_softcap: float | None = None,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    embed_dropout: float = 0.0,
    scale_embedding: bool = False,
    logit_scale: float = 1.0,
    logit_softcap: float | None = None,
    pad_id: int | None = None,
    tied: bool = False,
    init: spec.InitSpec = spec.NormalSpec(),  # noqa: B008
    head: spec.HeadSpec | None = None,
) -> spec.DecoderOnlySpec:
    """Create the spec of a decoder-only model; each family sets its own defaults.

    window_layers: indices of the layers with the sliding window; None: all.
    sliding_window_pattern: without window_layers, all layers have the window except every n-th.
    norm: "rms_zero_centered" multiplies by 1 + weight.
    local_rope_base: base of the wavelengths in layers with a window, if different from `rope_base`.
    partial_rotary_factor: fraction of the features of each head that are rotated.
    attention_bias: biases in all attention projections. qkv_bias: in the q, k and v projections only.
    qk_norm: normalize queries and keys of each head before rotation.
    attention_softcap, logit_softcap: bounds of attention scores and logits.
    scale_embedding: multiply token embeddings by sqrt(d_model).
    """
    rms = spec.RMSNormSpec(eps=norm_eps, offset=1.0 if norm == "rms_zero_centered" else 0.0)
    norms: dict[str, spec.NormSpec] = {
        "rms": rms,
        "rms_zero_centered": rms,
        "layer": spec.LayerNormSpec(eps=norm_eps),
        "layer_no_bias": spec.LayerNormSpec(eps=norm_eps, bias=False),
    }
    width = None
    if partial_rotary_factor != 1.0:  # an even number of features
        width = max(2, 2 * round((head_dim or d_model // num_heads) * partial_rotary_factor / 2))
    positions: dict[str, spec.AttentionPositionSpec] = {
        "rotary": spec.RotarySpec(base=rope_base, width=width, scaling=rope_scaling),
        # the bias is scaled like the scores, and was rounded in training
        "alibi": spec.AlibiSpec(scale=(d_model // num_heads) ** -0.5, rounding="bfloat16"),
    }
    learned = position == "learned"
    inner, biases = d_ff or 4 * d_model, ffn_bias
    block = spec.BlockSpec(
        attention=spec.AttentionSpec(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads if num_kv_heads and num_kv_heads != num_heads else None,
            head_dim=head_dim if head_dim and head_dim * num_heads != d_model else None,
            scale=scale,
            biases=("q", "k", "v", "out") if attention_bias else ("q", "k", "v") if qkv_bias else (),
            window=window or None,
            dropout=attention_dropout,
            qk_norm=rms if qk_norm else None,
            softcap=attention_softcap,
        ),
        feed_forward=spec.GatedFeedForwardSpec(
            d_ff=inner, activation=activation, biases=("up", "gate", "down") if biases else ()
        )
        if gated
        else spec.FeedForwardSpec(d_ff=inner, activation=activation, biases=("up", "down") if biases else ()),
        norm=norms[norm],
        wiring=wiring,
        dropout=dropout,
    )
    pattern: tuple[spec.BlockSpec, ...] = ()
    if window_layers is None and sliding_window_pattern:
        window_layers = tuple(n for n in range(num_layers) if (n + 1) % sliding_window_pattern)
    if window_layers is not None and not set(range(num_layers)) <= set(window_layers):
        full = replace(block, attention=replace(block.attention, window=None))
        pattern = tuple(block if n in window_layers else full for n in range(num_layers))
        if block not in pattern:
            block, pattern = full, ()
    return spec.DecoderOnlySpec(
        input=spec.TokensSpec(
            vocab_size=vocab_size,
            position=spec.LearnedSpec(max_len=max_len) if learned else None,
            scale=math.sqrt(d_model) if scale_embedding else 1.0,
            dropout=embed_dropout,
            pad_id=pad_id,
        ),
        decoder=spec.StackSpec(
            d_model=d_model,
            num_layers=num_layers,
            block=block,
            pattern=pattern,
            causal=True,
            position=None if learned else positions[position],
            local_position=spec.RotarySpec(base=local_rope_base)
            if local_rope_base and block.attention.window
            else None,
            final_norm=norms[norm],
        ),
        head=head or spec.LanguageModelSpec(vocab_size=vocab_size, scale=logit_scale, softcap=logit_softcap),
        tied=("head",) if tied and head is None else (),
        max_len=None if learned else max_len,
        init=init,
    )


def _invert(model: Any) -> dict[str, Any]:
    """Return the options of `decoder` that give a spec."""
    stack, block, local = model.decoder, model.decoder.block, model.decoder.local_position
    attention, options = block.attention, spec_options(model)
    rotary = stack.position if isinstance(stack.position, spec.RotarySpec) else spec.RotarySpec()
    windows = [stack.block_at(n).attention.window for n in range(stack.num_layers)]
    window_layers = tuple(n for n, window in enumerate(windows) if window)
    options |= {
        "window": max((window for window in windows if window), default=None),
        "window_layers": window_layers if len({*windows}) > 1 else None,
        "position": "alibi" if isinstance(stack.position, spec.AlibiSpec) else None,
        "rope_base": rotary.base,
        "rope_scaling": rotary.scaling,
        "partial_rotary_factor": 1.0 if rotary.width is None else rotary.width / options["head_dim"],
        "local_rope_base": local.base if isinstance(local, spec.RotarySpec) else None,
        "scale": attention.scale,
        "attention_softcap": attention.softcap,
    }
    if isinstance(model.head, spec.LanguageModelSpec):
        options |= {"logit_scale": model.head.scale, "logit_softcap": model.head.softcap}
    return options


DECODER = Builder(decoder, _invert, shared=True)


# ---- heads ------------------------------------------------------------------------------------------------


DROPOUT = Key("classifier_dropout", "dropout", 0.1)


def decoder_heads(stem: str, *, causal_lm: str = "ForCausalLM", dropout: Key = DROPOUT) -> dict[str, Head]:
    """Return the heads by class name. stem: class name without its suffix.

    causal_lm: suffix of the language model. dropout: rate before the token classifier.
    """
    bias = Rule(
        ("bias",),
        lambda config, _: {"bias": config.get("token_classification_bias", True)},
        lambda head: {} if head["bias"] else {"token_classification_bias": False},
    )
    return {
        f"{stem}{causal_lm}": Head(spec.LanguageModelSpec, from_options=True),
        f"{stem}Model": Head(spec.FeaturesSpec),
        f"{stem}ForSequenceClassification": Head(spec.ClassifySpec, values={"pool": "last", "bias": False}),
        f"{stem}ForTokenClassification": Head(spec.TokenClassifySpec, (dropout, bias)),
        f"{stem}ForQuestionAnswering": Head(spec.AnswerSpec),
    }


def _read_pad(config: Config, _: Options) -> dict[str, Any]:
    """Return the pad id; None if it is also the BOS or EOS id, because tokens with that id may be real.

    Chat models often pad with the token that ends each turn, which occurs in prompts. A sequence classifier
    keeps the pad id anyway, because it must find the end of the text.
    """
    pad = config.maybe("pad_token_id", int)
    special = (config.values.get("bos_token_id"), config.values.get("eos_token_id"))
    used = {i for ids in special for i in (ids if isinstance(ids, list) else [ids])}
    classifies = config.architecture.endswith("ForSequenceClassification")
    return {"pad_id": None if pad in used and not classifies else pad}


PAD = Rule(("pad_id",), _read_pad, lambda options: {"pad_token_id": options["pad_id"]})


def head_rows(
    model: spec.DecoderOnlySpec,
    *,
    token: str = "{base}embed_tokens.weight",
    output: str = "lm_head.weight",
    each_token: str = "score",
) -> tuple[Op, ...]:
    """Return the weight operations of the head and of the token matrix, which may be tied.

    token, output, each_token: published names of the token matrix, of the output matrix and of the token
    classifier.
    """
    rows: tuple[Op, ...] = (Rename(token, "embed.token.weight"),)
    match model.head:
        case spec.LanguageModelSpec() if model.tied:
            return (Tied((token, output), "embed.token.weight"),)
        case spec.LanguageModelSpec():
            return (*rows, Rename(output, "head.weight"))
        case spec.ClassifySpec():
            return (*rows, Rename("score.weight", "head.out.weight"))
        case spec.TokenClassifySpec(bias=bias):
            return (*rows, *rename_modules((each_token, "head.out"))[: 1 + bias])
        case spec.AnswerSpec():
            return (*rows, *rename_modules(("qa_outputs", "head.out")))
    return rows


def fused_rows(
    model: spec.DecoderOnlySpec, theirs: str, attention: str, norms: Mapping[str, str]
) -> tuple[Op, ...]:
    """Return the weight operations of layers with fused query, key and value rows.

    With G key/value heads, the rows are G times [H/G query heads, one key head, one value head].
    theirs, attention: published names of a layer and of its attention. norms: published name -> ours.
    """
    ours, stack, block = "decoder.blocks.{i}", model.decoder, model.decoder.block
    heads, groups = block.attention.num_heads, block.attention.num_kv_heads or block.attention.num_heads
    fused = SplitGroups(
        f"{theirs}.{attention}.query_key_value.{{p}}",
        f"{ours}.self_attn.{{q,k,v}}_proj.{{p}}",
        groups=groups,
        queries=heads // groups,
        head_dim=stack.d_model // heads,
    )
    out = Rename(f"{theirs}.{attention}.dense.{{p}}", f"{ours}.self_attn.out_proj.{{p}}")
    ffn = {"mlp.dense_h_to_4h": "ffn.up", "mlp.dense_4h_to_h": "ffn.down"}
    both = ("weight", "bias")
    return (
        *layer_rows(theirs, ours, stack.num_layers, norms),
        *expand((fused, out), i=stack.num_layers, p=both if block.attention.biases else ("weight",)),
        *layer_rows(theirs, ours, stack.num_layers, ffn, both if block.feed_forward.biases else ("weight",)),
    )


# ---- rotary positions: `rope_theta` and `rope_scaling`, or `rope_parameters` -------------------------------


def read_rotary(
    config: Config,
    *,
    base: float = 10000.0,
    max_len: int,
    head_dim: int | None = None,
    fraction: float = 1.0,
) -> spec.RotarySpec:
    """Return the rotary positions of a config with old or new keys.

    base, max_len, fraction: defaults. head_dim: width of a head, if only a fraction of it may be rotated;
    None: all features are.
    """
    base = config.get("rope_theta", base)
    old: dict[str, Any] = config.get("rope_scaling", {})
    new: dict[str, Any] = config.get("rope_parameters", {})
    key, values = ("rope_scaling", old) if old else ("rope_parameters", new)
    if any(isinstance(value, dict) for value in values.values()):
        raise UnsupportedConfigError(config.where, key, "per layer", "one value for all layers")
    rope = Config(values, f"{config.where} ({key})")
    for level in (config, rope):
        if head_dim is None:
            level.only("partial_rotary_factor", None, 1.0)
        fraction = level.get("partial_rotary_factor", fraction)
    width = int(head_dim * fraction) if head_dim is not None and fraction != 1.0 else None
    known = {"default": "none", "linear": "linear", "llama3": "bands"}
    kind = rope.choose("rope_type", known, values.get("type", "default"))
    base = rope.get("rope_theta", base)
    scaling: Scaling = None
    if kind == "linear":
        scaling = spec.LinearScalingSpec(factor=rope.need("factor", float))
    elif kind == "bands":
        original = rope.get("original_max_position_embeddings", max_len)
        scaling = spec.BandScalingSpec(
            factor=rope.need("factor", float),
            low_freq_factor=rope.need("low_freq_factor", float),
            high_freq_factor=rope.need("high_freq_factor", float),
            original_max_len=config.get("original_max_position_embeddings", original),
        )
    return spec.RotarySpec(base=base, width=width, scaling=scaling)


def write_rotary(options: Options) -> dict[str, Any]:
    """Return the older config keys, which both old and new versions of transformers read."""
    scaling: dict[str, Any] | None = None
    match options["rope_scaling"]:
        case spec.LinearScalingSpec(factor=factor):
            scaling = {"rope_type": "linear", "factor": factor}
        case spec.BandScalingSpec() as bands:
            scaling = {
                "rope_type": "llama3",
                "factor": bands.factor,
                "low_freq_factor": bands.low_freq_factor,
                "high_freq_factor": bands.high_freq_factor,
                "original_max_position_embeddings": bands.original_max_len,
            }
    return {"rope_theta": options["rope_base"], "rope_scaling": scaling}


def rotary(base: float = 10000.0) -> Rule:
    """Return the rule of rotary positions of all features of a head. base: default."""

    def read(config: Config, options: Options) -> dict[str, Any]:
        position = read_rotary(config, base=base, max_len=options["max_len"])
        return {"rope_base": position.base, "rope_scaling": position.scaling}

    return Rule(("rope_base", "rope_scaling"), read, write_rotary)
