"""ModernBERT: a pre-norm encoder with rotary positions, GeGLU, and global and local attention in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from glassformer.core import spec
from glassformer.families.config import Config, UnsupportedConfigError
from glassformer.families.family import TINY, Builder, Family, preset, spec_options
from glassformer.families.keys import Head, Key, Options, Rule, activation, fixed
from glassformer.families.rows import layer_rows
from glassformer.weights.ops import Op, Rename, Split, Tied, expand

LOCAL, GLOBAL = "sliding_attention", "full_attention"


def modernbert(
    *,
    vocab_size: int = 50368,
    d_model: int = 768,
    num_heads: int = 12,
    d_ff: int = 1152,
    num_layers: int = 22,
    max_len: int = 8192,
    activation: spec.Activation = "gelu",
    norm_eps: float = 1e-5,
    norm_bias: bool = False,
    attention_bias: bool = False,
    ffn_bias: bool = False,
    attention_dropout: float = 0.0,
    ffn_dropout: float = 0.0,
    embed_dropout: float = 0.0,
    window: int = 65,
    global_every: int = 3,
    rope_base: float = 160000.0,
    local_rope_base: float = 10000.0,
    pad_id: int | None = 50283,
    tied: bool = True,
    head: spec.HeadSpec | None = None,
) -> spec.EncoderOnlySpec:
    """Create ModernBERT's spec; the defaults are the base model.

    global_every: layers 0, n, 2n, ... attend to all positions, with rotary base `rope_base`. The others
    attend to fewer than `window` positions on each side, with `local_rope_base`. Without `head`, the model is
    a masked language model.
    """
    norm = spec.LayerNormSpec(eps=norm_eps, bias=norm_bias)
    everywhere = spec.BlockSpec(
        attention=spec.AttentionSpec(
            num_heads=num_heads,
            biases=("q", "k", "v", "out") if attention_bias else (),
            dropout=attention_dropout,
        ),
        feed_forward=spec.GatedFeedForwardSpec(
            d_ff=d_ff,
            activation=activation,
            biases=("up", "gate", "down") if ffn_bias else (),
            dropout=ffn_dropout,
        ),
        norm=norm,
        wiring="pre",
    )
    nearby = replace(everywhere, attention=replace(everywhere.attention, window=window))
    alternating = global_every > 1
    head = head or spec.MaskedLanguageModelSpec(vocab_size=vocab_size, norm=norm, hidden_bias=False)
    return spec.EncoderOnlySpec(
        input=spec.TokensSpec(vocab_size=vocab_size, norm=norm, dropout=embed_dropout, pad_id=pad_id),
        encoder=spec.StackSpec(
            d_model=d_model,
            num_layers=num_layers,
            block=everywhere,
            pattern=(everywhere, *[nearby] * (global_every - 1)) if alternating else (),
            position=spec.RotarySpec(base=rope_base),
            local_position=spec.RotarySpec(base=local_rope_base) if alternating else None,
            first_norm=False,
            final_norm=norm,
        ),
        head=head,
        tied=("head",) if tied and isinstance(head, spec.MaskedLanguageModelSpec) else (),
        max_len=max_len,
        init=spec.NormalSpec(std=0.02),
    )


def _invert(model: Any) -> dict[str, Any]:
    """Return the options of `modernbert` that give a spec."""
    stack = model.encoder
    local, norm = stack.local_position, stack.block.norm
    return {
        **spec_options(model),
        "norm_bias": norm.bias,
        "global_every": len(stack.pattern) or 1,
        "rope_base": stack.position.base,
        "window": stack.pattern[1].attention.window if stack.pattern else None,
        "local_rope_base": local.base if isinstance(local, spec.RotarySpec) else None,
    }


BUILDER = Builder(modernbert, _invert)


# ---- the published config ---------------------------------------------------------------------------


def _read_layers(config: Config, options: Options) -> dict[str, Any]:
    """Return n if every n-th layer is global, from `layer_types` or the older key, and the windows."""
    layers, declared = options["num_layers"], config.get("global_attn_every_n_layers", 3)
    kinds = config.get("layer_types", _layer_types(layers, declared))
    chosen = {"window": config.get("local_attention", 128) // 2 + 1}
    for every in (declared, *range(1, layers + 1)):
        if kinds == _layer_types(layers, every):
            return {"global_every": every, **chosen}
    raise UnsupportedConfigError(
        config.where, "layer_types", kinds, f"{GLOBAL} in every n-th layer from the first on, else {LOCAL}"
    )


def _layer_types(layers: int, every: int) -> list[str]:
    return [LOCAL if n % every else GLOBAL for n in range(layers)]


def _write_layers(options: Options) -> dict[str, Any]:
    every, window = options["global_every"], options["window"]
    config = {
        "global_attn_every_n_layers": every,
        "layer_types": _layer_types(options["num_layers"], every),
    }
    return config if every == 1 else {**config, "local_attention": 2 * (window - 1)}


def _read_rotary(config: Config, options: Options) -> dict[str, Any]:
    config.only("rope_scaling", None)
    return {
        "rope_base": _rope_base(config, GLOBAL, "global_rope_theta", 160000.0),
        "local_rope_base": _rope_base(config, LOCAL, "local_rope_theta", 10000.0),
    }


def _rope_base(config: Config, kind: str, older_key: str, default: float) -> float:
    older = config.get(older_key, default)
    parameters = config.get("rope_parameters", dict[str, Any]()).get(kind) or {}
    inner = Config(parameters, f"{config.where}: rope_parameters.{kind}")
    inner.only("rope_type", "default", default="default")
    return inner.get("rope_theta", older)


def _write_rotary(options: Options) -> dict[str, Any]:
    bases = {GLOBAL: options["rope_base"], LOCAL: options["local_rope_base"]}
    return {
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items() if base
        }
    }


KEYS = (
    Key("vocab_size"),
    Key("hidden_size", "d_model"),
    Key("num_attention_heads", "num_heads"),
    Key("intermediate_size", "d_ff"),
    Key("num_hidden_layers", "num_layers"),
    Key("max_position_embeddings", "max_len", 8192),
    activation("hidden_activation", "gelu"),
    Key("norm_eps", default=1e-5),
    Key("norm_bias", default=False),
    Key("attention_bias", default=False),
    Key("mlp_bias", "ffn_bias", False),
    Key("attention_dropout", default=0.0),
    Key("mlp_dropout", "ffn_dropout", 0.0),
    Key("embedding_dropout", "embed_dropout", 0.0),
    Key("tie_word_embeddings", "tied", True),
    Key("pad_token_id", "pad_id", None),
    Rule(("global_every", "window"), _read_layers, _write_layers),
    Rule(("rope_base", "local_rope_base"), _read_rotary, _write_rotary),
    fixed("classifier_pooling", "cls", "mean"),
)


def _norm(field: str) -> Rule:
    """Return the rule of a head's norm, which has the keys of all norms."""

    def read(config: Config, options: Options) -> dict[str, Any]:
        bias = config.get("norm_bias", False)
        return {field: spec.LayerNormSpec(eps=config.get("norm_eps", 1e-5), bias=bias)}

    return Rule((field,), read)


_BIAS, _DROPOUT = Key("classifier_bias", "hidden_bias", False), Key("classifier_dropout", "dropout", 0.0)
_HIDDEN = (activation("classifier_activation", "gelu", ours="hidden"), _norm("hidden_norm"), _BIAS, _DROPOUT)
_HEADS = {
    "ModernBertForMaskedLM": Head(
        spec.MaskedLanguageModelSpec,
        (
            Key("vocab_size"),
            activation("classifier_activation", "gelu"),
            _norm("norm"),
            _BIAS,
            Key("decoder_bias", "bias", True),
        ),
    ),
    "ModernBertModel": Head(spec.FeaturesSpec),
    "ModernBertForSequenceClassification": Head(
        spec.ClassifySpec,
        (*_HIDDEN, Key("classifier_pooling", "pool", "cls", values={"cls": "first", "mean": "mean"})),
        {"dropped": ("out",)},
    ),
    "ModernBertForTokenClassification": Head(spec.TokenClassifySpec, _HIDDEN),
    "ModernBertForQuestionAnswering": Head(spec.AnswerSpec, _HIDDEN),
}

# ---- the published tensors --------------------------------------------------------------------------

_TOKEN = "{base}embeddings.tok_embeddings.weight"


def weight_rows(model: Any) -> Sequence[Op]:
    stack, head, width = model.encoder, model.head, model.encoder.d_model
    options = spec_options(model)
    theirs, ours, layers = "{base}layers.{i}", "encoder.blocks.{i}", stack.num_layers

    def parts(bias: bool) -> tuple[str, ...]:
        return ("weight", "bias") if bias else ("weight",)

    norm = parts(stack.block.norm.bias)
    rows: tuple[Op, ...] = (
        Split(f"{theirs}.attn.Wqkv.{{p}}", f"{ours}.self_attn.{{q,k,v}}_proj.{{p}}", sizes=(width,) * 3),
        Rename(f"{theirs}.attn.Wo.{{p}}", f"{ours}.self_attn.out_proj.{{p}}"),
    )
    rows = expand(rows, i=layers, p=parts(options["attention_bias"]))
    feed_forward: tuple[Op, ...] = (
        Split(
            f"{theirs}.mlp.Wi.{{p}}",
            f"{ours}.ffn.{{gate,up}}.{{p}}",
            sizes=(stack.block.feed_forward.d_ff,) * 2,
        ),
        Rename(f"{theirs}.mlp.Wo.{{p}}", f"{ours}.ffn.down.{{p}}"),
    )
    rows += expand(feed_forward, i=layers, p=parts(options["ffn_bias"]))
    rows += layer_rows(theirs, ours, layers, {"mlp_norm": "norm_ffn"}, norm)
    attention_norm = (Rename(f"{theirs}.attn_norm.{{p}}", f"{ours}.norm_self.{{p}}"),)
    rows += expand(attention_norm, i=range(1, layers), p=norm)
    modules = {
        "{base}embeddings.norm": ("embed.norm", norm),
        "{base}final_norm": ("encoder.final_norm", norm),
    }
    if not isinstance(head, spec.FeaturesSpec | spec.EmbedSpec):
        modules |= {"head.dense": ("head.dense", parts(head.hidden_bias)), "head.norm": ("head.norm", norm)}
        if not isinstance(head, spec.MaskedLanguageModelSpec):
            modules["classifier"] = ("head.out", parts(True))
    for name, (own, present) in modules.items():
        rows += tuple(Rename(f"{name}.{part}", f"{own}.{part}") for part in present)
    if isinstance(head, spec.MaskedLanguageModelSpec):
        rows += (Rename("decoder.bias", "head.bias"),) if head.bias else ()
        rows += (
            (Tied((_TOKEN, "decoder.weight"), "embed.token.weight"),)
            if model.tied
            else (Rename(_TOKEN, "embed.token.weight"), Rename("decoder.weight", "head.weight"))
        )
    else:
        rows += (Rename(_TOKEN, "embed.token.weight"),)
    return rows


FAMILY = Family(
    name="modernbert",
    builder=BUILDER,
    keys=KEYS,
    heads=_HEADS,
    presets={"modernbert-base": {}, "modernbert-large": preset(1024, 16, 28, 2624)},
    tiny={**TINY, "d_ff": 64, "num_layers": 4, "window": 4, "pad_id": 0},
    rows=weight_rows,
    prefixes=("model.",),
)
