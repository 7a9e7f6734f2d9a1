"""T5: pre-norm encoder-decoder with RMSNorm, no biases in linear layers, and a relative position bias.

v1.0 has a ReLU feed-forward layer and scales the hidden states before the tied head. v1.1 and models derived
from it have a gated GELU and an untied head. In training, transformers also applies dropout to the output of
the final norm; here dropout is applied only to the embeddings and to every sublayer.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from glassformer.core import spec
from glassformer.errors import InvalidValueError
from glassformer.families.config import Config, UnsupportedConfigError
from glassformer.families.family import Builder, Family, preset, spec_options
from glassformer.families.keys import ACTIVATION_NAMES, ACTIVATIONS, Head, Key, Options, Rule, fixed
from glassformer.weights.convert import WeightTable
from glassformer.weights.ops import Ignored, Op, Rename, Tied, add_prefix, expand

ENCODERS = ("T5EncoderModel", "T5ForTokenClassification")


def t5(
    *,
    vocab_size: int = 32128,
    d_model: int = 512,
    num_heads: int = 8,
    head_dim: int = 64,
    d_ff: int = 2048,
    num_layers: int = 6,
    decoder_layers: int | None = None,
    activation: spec.Activation = "relu",
    gated: bool = False,
    buckets: int = 32,
    max_distance: int = 128,
    norm_eps: float = 1e-6,
    dropout: float = 0.1,
    pad_id: int | None = 0,
    start_id: int | None = 0,
    tied: bool = True,
    scaled: bool | None = None,
    head: spec.HeadSpec | None = None,
) -> spec.EncoderDecoderSpec:
    """Create the spec of a T5; the defaults are T5-Small v1.0.

    By default, hidden states are scaled before a tied head.
    """

    attention = spec.AttentionSpec(
        num_heads=num_heads, head_dim=head_dim, scale=1.0, biases=(), dropout=dropout
    )
    norm = spec.RMSNormSpec(eps=norm_eps)

    def stack(layers: int, causal: bool) -> spec.StackSpec:
        block = spec.BlockSpec(
            attention=attention,
            cross_attention=attention if causal else None,
            feed_forward=spec.GatedFeedForwardSpec(d_ff=d_ff, activation=activation, dropout=dropout)
            if gated
            else spec.FeedForwardSpec(d_ff=d_ff, activation=activation, biases=(), dropout=dropout),
            norm=norm,
            wiring="pre",
            dropout=dropout,
        )
        return spec.StackSpec(
            d_model=d_model,
            num_layers=layers,
            block=block,
            causal=causal,
            position=spec.RelativeSpec(buckets=buckets, max_distance=max_distance),
            final_norm=norm,
        )

    tokens = spec.TokensSpec(vocab_size=vocab_size, dropout=dropout, pad_id=pad_id)
    scale = d_model**-0.5 if (tied if scaled is None else scaled) else 1.0
    head = head or spec.LanguageModelSpec(vocab_size=vocab_size, scale=scale)
    return spec.EncoderDecoderSpec(
        source=tokens,
        target=tokens,
        encoder=stack(num_layers, causal=False),
        decoder=stack(num_layers if decoder_layers is None else decoder_layers, causal=True),
        head=head,
        tied=("source", "head") if tied and isinstance(head, spec.LanguageModelSpec) else ("source",),
        start_id=start_id,
        init=spec.NormalSpec(std=0.02),
    )


def _invert(model: Any) -> dict[str, Any]:
    """Return the options of `t5` that give a spec, or its encoder."""
    scaled = not isinstance(model.head, spec.LanguageModelSpec) or model.head.scale != 1.0
    return {**vars(model.encoder.position), **spec_options(model), "scaled": scaled}


BUILDER = Builder(t5, _invert)


def _read_activation(config: Config, options: Options) -> dict[str, Any]:
    named = config.get("feed_forward_proj", "relu")
    gate, _, kind = named.rpartition("-")
    if gate not in ("", "gated"):
        raise UnsupportedConfigError(
            config.where, "feed_forward_proj", named, "an activation, optionally with 'gated-' before it"
        )
    usual = "gelu_new" if named == "gated-gelu" else kind
    return {
        "activation": config.choose("dense_act_fn", ACTIVATIONS, usual),
        "gated": config.get("is_gated_act", gate == "gated"),
    }


def _write_activation(options: Options) -> dict[str, Any]:
    gated, kind = options["gated"], ACTIVATION_NAMES[options["activation"]]
    return {
        "dense_act_fn": kind,
        "feed_forward_proj": f"gated-{kind.removesuffix('_new')}" if gated else kind,
        "is_gated_act": gated,
    }


def _read_tied(config: Config, _: Options) -> dict[str, Any]:
    """Return whether the head shares the token matrix, and whether hidden states are scaled before it.

    Newer configs of v1.1 say tied, although the file has a separate head and hidden states are not scaled.
    """
    stated = config.get("tie_word_embeddings", True)
    scaled = config.get("scale_decoder_outputs", stated)
    shared = "lm_head.weight" not in config.names or (stated and scaled)
    return {"tied": shared if config.names else stated, "scaled": scaled}


def _write_tied(options: Options) -> dict[str, Any]:
    return {"tie_word_embeddings": options["tied"], "scale_decoder_outputs": options["scaled"]}


def _read_decoder(config: Config, _: Options) -> dict[str, Any]:
    pad_id = config.get("pad_token_id", 0)
    return {
        "decoder_layers": config.maybe("num_decoder_layers", int),
        "pad_id": pad_id,
        "start_id": config.get("decoder_start_token_id", pad_id),
    }


def _write_decoder(options: Options) -> dict[str, Any]:
    ours = {
        "num_decoder_layers": "decoder_layers",
        "pad_token_id": "pad_id",
        "decoder_start_token_id": "start_id",
    }
    config = {key: options[option] for key, option in ours.items() if option in options}
    return {**config, "is_encoder_decoder": "decoder_layers" in options}


KEYS = (
    Key("vocab_size"),
    Key("d_model", aliases=("hidden_size",)),
    Key("num_heads", aliases=("num_attention_heads",)),
    Key("d_kv", "head_dim", 64, aliases=("head_dim",)),
    Key("d_ff"),
    Key("num_layers", aliases=("num_hidden_layers",)),
    Rule(("activation", "gated"), _read_activation, _write_activation),
    Key("layer_norm_epsilon", "norm_eps", 1e-6),
    Key("dropout_rate", "dropout", 0.1),
    Key("relative_attention_num_buckets", "buckets", 32),
    Key("relative_attention_max_distance", "max_distance", 128),
    Rule(("tied", "scaled"), _read_tied, _write_tied),
    Rule(("decoder_layers", "pad_id", "start_id"), _read_decoder, _write_decoder),
    fixed("is_decoder", False),
)


def _check_labels(config: Config, _: Options) -> dict[str, Any]:
    if config.num_labels != 2:
        raise InvalidValueError(f"{config.where}: num_labels", config.num_labels, "2 for question answering")
    return {}


_DROPOUT = Key("classifier_dropout", "dropout", 0.0)
_HEADS = {
    "T5ForConditionalGeneration": Head(spec.LanguageModelSpec, from_options=True),
    "T5Model": Head(spec.FeaturesSpec),
    "T5EncoderModel": Head(spec.FeaturesSpec),
    "T5ForSequenceClassification": Head(
        spec.ClassifySpec,
        (_DROPOUT, Key("eos_token_id", "end_id", 1)),
        {"pool": "end", "hidden": "tanh"},
    ),
    "T5ForTokenClassification": Head(spec.TokenClassifySpec, (_DROPOUT,)),
    "T5ForQuestionAnswering": Head(spec.AnswerSpec, (Rule((), _check_labels),)),
}


def from_config(config: Config) -> spec.ModelSpec:
    model = FAMILY.derived_spec(config)
    if config.architecture not in ENCODERS:
        return model
    assert isinstance(model, spec.EncoderDecoderSpec)
    return spec.EncoderOnlySpec(input=model.source, encoder=model.encoder, head=model.head, init=model.init)


def to_config(model: spec.ModelSpec) -> dict[str, Any]:
    config = FAMILY.derived_config(model)
    if isinstance(model, spec.EncoderOnlySpec) and isinstance(model.head, spec.FeaturesSpec):
        config["architectures"] = ["T5EncoderModel"]
    return config


def table(model: Any, names: Collection[str]) -> WeightTable:
    rows = _stack_rows("encoder", model.encoder)
    token: tuple[str, ...] = ("{base}shared.weight", "{base}encoder.embed_tokens.weight")
    if isinstance(model, spec.EncoderDecoderSpec):
        rows += _stack_rows("decoder", model.decoder)
        # unused: cross-attention has no relative position bias
        rows += (Ignored("{base}decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"),)
        token += ("{base}decoder.embed_tokens.weight",)
        ours = "src_embed.token.weight"
    else:
        rows += (Ignored(("{base}decoder.*", "lm_head.weight")),)  # in the file of a full T5
        ours = "embed.token.weight"
    match model.head:
        case spec.LanguageModelSpec() if "head" in model.tied:
            token += ("lm_head.weight",)
        case spec.LanguageModelSpec():
            rows += (Rename("lm_head.weight", "head.weight"),)
        case spec.ClassifySpec():
            rows += (Rename("classification_head.{dense,out_proj}.{p}", "head.{dense,out}.{p}"),)
        case spec.TokenClassifySpec():
            rows += (Rename("classifier.{p}", "head.out.{p}"),)
        case spec.AnswerSpec():
            rows += (Rename("qa_outputs.{p}", "head.out.{p}"),)
    rows = (Tied(token, ours), *expand(rows, p=("weight", "bias")))
    under = isinstance(model.head, spec.ClassifySpec | spec.TokenClassifySpec)
    return WeightTable(rows, base=("transformer.", "") if under else ("", "transformer."))


def _stack_rows(side: str, stack: spec.StackSpec) -> tuple[Op, ...]:
    """Return the weight operations of one stack; its position bias is published with the first layer."""
    gated = stack.block.feed_forward.gated
    feed, last = ("wi_0,wi_1,wo", "gate,up,down") if gated else ("wi,wo", "up,down"), 1
    rows: tuple[Op, ...] = (
        Rename("layer.0.SelfAttention.{q,k,v,o}.weight", "self_attn.{q,k,v,out}_proj.weight"),
        Rename("layer.0.layer_norm.weight", "norm_self.weight"),
    )
    if stack.block.cross_attention is not None:
        last = 2
        rows += (
            Rename("layer.1.EncDecAttention.{q,k,v,o}.weight", "cross_attn.{q,k,v,out}_proj.weight"),
            Rename("layer.1.layer_norm.weight", "norm_cross.weight"),
        )
    rows += (
        Rename(f"layer.{last}.DenseReluDense.{{{feed[0]}}}.weight", f"ffn.{{{feed[1]}}}.weight"),
        Rename(f"layer.{last}.layer_norm.weight", "norm_ffn.weight"),
    )
    first = f"{{base}}{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    return (
        *expand(add_prefix("{base}{s}.block.{i}.", "{s}.blocks.{i}.", rows), s=(side,), i=stack.num_layers),
        Rename(first, f"{side}.position.weight"),
        Rename(f"{{base}}{side}.final_layer_norm.weight", f"{side}.final_norm.weight"),
    )


_NEXT = {
    "small": preset(512, 6, 8, 1024),
    "base": preset(768, 12, 12, 2048),
    "large": preset(1024, 16, 24, 2816),
    "xl": preset(2048, 32, 24, 5120),
    "xxl": preset(4096, 64, 24, 10240),
}
_LATER = {"activation": "gelu_tanh", "gated": True, "tied": False}

FAMILY = Family(
    name="t5",
    builder=BUILDER,
    keys=KEYS,
    heads=_HEADS,
    presets={
        "t5-small": {},
        "t5-base": preset(768, 12, 12, 3072),
        "t5-large": preset(1024, 16, 24, 4096),
        "t5-3b": preset(1024, 32, 24, 16384, head_dim=128),
        "t5-11b": preset(1024, 128, 24, 65536, head_dim=128),
        **{
            f"{line}-{size}": {**options, **_LATER}
            for line in ("t5-v1_1", "flan-t5")
            for size, options in _NEXT.items()
        },
    },
    tiny={"vocab_size": 101, **preset(32, 4, 2, 64), "head_dim": 8},
    reader=from_config,
    writer=to_config,
    weight_table=table,
)
