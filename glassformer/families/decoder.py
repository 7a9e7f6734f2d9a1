"""Shared by the decoder-only families: spec builder, and config keys of heads and rotary positions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

from glassformer.core import spec
from glassformer.families.family import Config, UnsupportedConfigError, label_config, rename_modules
from glassformer.weights.ops import Op, Rename, Tied

# options that the configs of most families cannot express
RARE_OPTIONS = """partial_rotary_factor sliding_window_pattern local_rope_base attention_softcap
    logit_softcap scale_embedding"""

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


# ---- heads ------------------------------------------------------------------------------------------------

# suffix of the published class name, after the family's stem
KINDS: dict[type[spec.HeadSpec], str] = {
    spec.LanguageModelSpec: "ForCausalLM",
    spec.FeaturesSpec: "Model",
    spec.ClassifySpec: "ForSequenceClassification",
    spec.TokenClassifySpec: "ForTokenClassification",
    spec.AnswerSpec: "ForQuestionAnswering",
}


def architectures(stem: str) -> tuple[str, ...]:
    return tuple(stem + kind for kind in KINDS.values())


def read_head(config: Config, stem: str, *, dropout: float = 0.1) -> spec.HeadSpec | None:
    """Return the head of a config's architecture; None is the language-model head, which the family builds.

    stem: class name without the suffix in KINDS. dropout: default rate before the token classifier.
    """
    dropout = config.get("classifier_dropout", dropout)
    bias = config.get("token_classification_bias", True)
    heads: dict[str, spec.HeadSpec] = {
        "Model": spec.FeaturesSpec(),
        "ForSequenceClassification": spec.ClassifySpec(num_labels=config.num_labels, pool="last", bias=False),
        "ForTokenClassification": spec.TokenClassifySpec(
            num_labels=config.num_labels, bias=bias, dropout=dropout
        ),
        "ForQuestionAnswering": spec.AnswerSpec(),
    }
    return heads.get(config.architecture.removeprefix(stem))


def write_head(head: spec.HeadSpec, stem: str) -> dict[str, Any]:
    """Return the config keys of a head; the inverse of `read_head`."""
    config: dict[str, Any] = {"architectures": [stem + KINDS[type(head)]], **label_config(head)}
    if isinstance(head, spec.TokenClassifySpec):
        config["classifier_dropout"] = head.dropout
        if not head.bias:
            config["token_classification_bias"] = False
    return config


def read_pad(config: Config, head: spec.HeadSpec | None) -> int | None:
    """Return the pad id; None if it is also the BOS or EOS id, because tokens with that id may be real.

    Chat models often pad with the token that ends each turn, which occurs in prompts. A sequence classifier
    keeps the pad id anyway, because it must find the end of the text.
    """
    pad = config.maybe("pad_token_id", int)
    special = (config.values.get("bos_token_id"), config.values.get("eos_token_id"))
    used = {i for ids in special for i in (ids if isinstance(ids, list) else [ids])}
    return None if pad in used and not isinstance(head, spec.ClassifySpec) else pad


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


def write_rotary(rotary: spec.RotarySpec) -> dict[str, Any]:
    """Return the older config keys, which both old and new versions of transformers read."""
    scaling: dict[str, Any] | None = None
    match rotary.scaling:
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
    return {"rope_theta": rotary.base, "rope_scaling": scaling}
