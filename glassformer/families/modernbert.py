"""ModernBERT: a pre-norm encoder with rotary positions, GeGLU, and global and local attention in turn."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Literal

from glassformer.core import spec
from glassformer.families.family import (
    ACTIVATION_NAMES,
    ACTIVATIONS,
    TINY,
    Config,
    Family,
    Key,
    UnsupportedConfigError,
    label_config,
    layer_rows,
    model_prefixes,
    preset,
    read_options,
    spec_options,
    write_options,
)
from glassformer.families.text_encoder import TASKS
from glassformer.weights.convert import WeightTable
from glassformer.weights.ops import Op, Rename, Split, Tied, expand

LOCAL, GLOBAL = "sliding_attention", "full_attention"
KEYS = (
    Key("vocab_size"),
    Key("hidden_size", "d_model"),
    Key("num_attention_heads", "num_heads"),
    Key("intermediate_size", "d_ff"),
    Key("num_hidden_layers", "num_layers"),
    Key("max_position_embeddings", "max_len", 8192),
    Key("hidden_activation", "activation", "gelu"),
    Key("norm_eps", default=1e-5),
    Key("attention_bias", default=False),
    Key("mlp_bias", "ffn_bias", False),
    Key("attention_dropout", default=0.0),
    Key("mlp_dropout", "ffn_dropout", 0.0),
    Key("embedding_dropout", "embed_dropout", 0.0),
    Key("tie_word_embeddings", "tied", True),
)


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


# ---- the published config ---------------------------------------------------------------------------


def _global_every(config: Config) -> int:
    """Return n if every n-th layer is global, from `layer_types` or the older key."""
    layers, declared = config.need("num_hidden_layers", int), config.get("global_attn_every_n_layers", 3)
    kinds = config.get("layer_types", [GLOBAL if n % declared == 0 else LOCAL for n in range(layers)])
    for every in (declared, *range(1, layers + 1)):
        if kinds == [GLOBAL if n % every == 0 else LOCAL for n in range(layers)]:
            return every
    raise UnsupportedConfigError(
        config.where, "layer_types", kinds, f"{GLOBAL} in every n-th layer from the first on, else {LOCAL}"
    )


def _rope_base(config: Config, kind: str, older_key: str, default: float) -> float:
    older = config.get(older_key, default)
    config.only("rope_scaling", None)
    parameters = config.get("rope_parameters", dict[str, Any]()).get(kind) or {}
    inner = Config(parameters, f"{config.where}: rope_parameters.{kind}")
    inner.only("rope_type", "default", default="default")
    return inner.get("rope_theta", older)


def with_head(config: Config, head: spec.HeadSpec | None) -> spec.EncoderOnlySpec:
    """Return the encoder of a config with this head; None is the masked-language-model head."""
    return modernbert(
        **read_options(config, KEYS),
        norm_bias=config.get("norm_bias", False),
        window=config.get("local_attention", 128) // 2 + 1,
        global_every=_global_every(config),
        rope_base=_rope_base(config, GLOBAL, "global_rope_theta", 160000.0),
        local_rope_base=_rope_base(config, LOCAL, "local_rope_theta", 10000.0),
        pad_id=config.maybe("pad_token_id", int),
        head=head,
    )


def from_config(config: Config) -> spec.EncoderOnlySpec:
    norm = spec.LayerNormSpec(eps=config.get("norm_eps", 1e-5), bias=config.get("norm_bias", False))
    activation: spec.Activation = config.choose("classifier_activation", ACTIVATIONS, "gelu")
    bias, dropout = config.get("classifier_bias", False), config.get("classifier_dropout", 0.0)
    hidden: dict[str, Any] = {"hidden": activation, "hidden_norm": norm, "hidden_bias": bias}
    pools: dict[str, Literal["first", "mean"]] = {"cls": "first", "mean": "mean"}
    pool = config.choose("classifier_pooling", pools, "cls")
    labels, decoder_bias = config.num_labels, config.get("decoder_bias", True)
    heads: dict[str, spec.HeadSpec] = {
        "ForMaskedLM": spec.MaskedLanguageModelSpec(
            vocab_size=config.need("vocab_size", int),
            activation=activation,
            norm=norm,
            hidden_bias=bias,
            bias=decoder_bias,
        ),
        "Model": spec.FeaturesSpec(),
        "ForSequenceClassification": spec.ClassifySpec(
            num_labels=labels, pool=pool, dropout=dropout, dropped=("out",), **hidden
        ),
        "ForTokenClassification": spec.TokenClassifySpec(num_labels=labels, dropout=dropout, **hidden),
        "ForQuestionAnswering": spec.AnswerSpec(dropout=dropout, **hidden),
    }
    return with_head(config, heads[config.architecture.removeprefix("ModernBert")])


def to_config(model: spec.ModelSpec) -> dict[str, Any]:
    assert isinstance(model, spec.EncoderOnlySpec)
    stack, head = model.encoder, model.head
    assert isinstance(stack, spec.StackSpec)
    position, local = stack.position, stack.local_position
    assert isinstance(position, spec.RotarySpec) and isinstance(stack.block.norm, spec.LayerNormSpec)
    every = len(stack.pattern) or 1
    config: dict[str, Any] = {
        "model_type": "modernbert",
        "architectures": [f"ModernBert{TASKS[type(head)]}"],
        **write_options(model, KEYS),
        "norm_bias": stack.block.norm.bias,
        "pad_token_id": spec_options(model)["pad_id"],
        "global_attn_every_n_layers": every,
        "layer_types": [LOCAL if n % every else GLOBAL for n in range(stack.num_layers)],
        "rope_parameters": {GLOBAL: {"rope_type": "default", "rope_theta": position.base}},
        **label_config(head),
    }
    if every > 1:
        assert isinstance(local, spec.RotarySpec) and stack.pattern[1].attention.window is not None
        config["local_attention"] = 2 * (stack.pattern[1].attention.window - 1)
        config["rope_parameters"][LOCAL] = {"rope_type": "default", "rope_theta": local.base}
    if isinstance(head, spec.MaskedLanguageModelSpec):
        config["classifier_activation"] = ACTIVATION_NAMES[head.activation]
        config |= {"classifier_bias": head.hidden_bias, "decoder_bias": head.bias}
    elif isinstance(head, spec.ClassifySpec | spec.TokenClassifySpec | spec.AnswerSpec):
        assert head.hidden is not None
        config["classifier_activation"] = ACTIVATION_NAMES[head.hidden]
        config |= {"classifier_bias": head.hidden_bias, "classifier_dropout": head.dropout}
    if isinstance(head, spec.ClassifySpec):
        config["classifier_pooling"] = {"first": "cls", "mean": "mean"}[head.pool]
    return config


# ---- the published tensors --------------------------------------------------------------------------

_TOKEN = "{base}embeddings.tok_embeddings.weight"


def table(model: spec.ModelSpec, names: Collection[str]) -> WeightTable:
    assert isinstance(model, spec.EncoderOnlySpec)
    stack, head, width = model.encoder, model.head, model.encoder.d_model
    options = spec_options(model)
    theirs, ours, layers = "{base}layers.{i}", "encoder.blocks.{i}", stack.num_layers

    def parts(bias: bool) -> tuple[str, ...]:
        return ("weight", "bias") if bias else ("weight",)

    assert isinstance(stack.block.norm, spec.LayerNormSpec)
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
        assert isinstance(
            head, spec.MaskedLanguageModelSpec | spec.ClassifySpec | spec.TokenClassifySpec | spec.AnswerSpec
        )
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
    return WeightTable(rows, base=model_prefixes(head, "model."))


FAMILY = Family(
    name="modernbert",
    model_types=("modernbert",),
    architectures=tuple(f"ModernBert{task}" for task in TASKS.values()),
    build=modernbert,
    presets={"modernbert-base": {}, "modernbert-large": preset(1024, 16, 28, 2624)},
    tiny={**TINY, "d_ff": 64, "num_layers": 4, "window": 4, "pad_id": 0},
    from_config=from_config,
    to_config=to_config,
    table=table,
    ignored_keys=frozenset(
        """initializer_cutoff_factor deterministic_flash_attn sparse_prediction sparse_pred_ignore_index
        reference_compile repad_logits_with_grad sliding_window""".split()
    ),
)
