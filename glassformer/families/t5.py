"""T5: pre-norm encoder-decoder with RMS norms, no biases, and a learned bias on the scores by distance.

v1.0 has a plain ReLU feed-forward and scales the vectors before the tied scores; v1.1 (and what was trained
from it) a gated GELU and a head of its own. The reference also drops out the last norm's output in
training; here dropout falls on the embeddings and on every sub-layer.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from glassformer.core import spec
from glassformer.errors import InvalidValueError, UnsupportedError
from glassformer.families.family import (
    ACTIVATIONS,
    PUBLISHED,
    Config,
    Family,
    UnsupportedConfigError,
    labels_of,
)
from glassformer.weights.convert import Table
from glassformer.weights.ops import Ignored, Op, Rename, Tied, expand, within

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
    head: spec.Head | None = None,
) -> spec.EncoderDecoder:
    """T5's spec; the defaults are the small v1.0 model's. Tied scores are scaled, unless told."""

    def stack(causal: bool) -> spec.Stack:
        layers = num_layers if decoder_layers is None or not causal else decoder_layers
        return _stack(
            d_model=d_model,
            num_layers=layers,
            num_heads=num_heads,
            head_dim=head_dim,
            d_ff=d_ff,
            activation=activation,
            gated=gated,
            position=spec.Relative(buckets=buckets, max_distance=max_distance),
            norm=spec.RMSNorm(eps=norm_eps),
            dropout=dropout,
            causal=causal,
        )

    tokens = spec.Tokens(vocab_size=vocab_size, dropout=dropout, pad_id=pad_id)
    scale = d_model**-0.5 if (tied if scaled is None else scaled) else 1.0
    head = head or spec.LanguageModel(vocab_size=vocab_size, scale=scale)
    return spec.EncoderDecoder(
        source=tokens,
        target=tokens,
        encoder=stack(causal=False),
        decoder=stack(causal=True),
        head=head,
        tied=("source", "head") if tied and isinstance(head, spec.LanguageModel) else ("source",),
        start_id=start_id,
        init=spec.Normal(std=0.02),
    )


def _stack(
    *,
    d_model: int,
    num_layers: int,
    num_heads: int,
    head_dim: int,
    d_ff: int,
    activation: spec.Activation,
    gated: bool,
    position: spec.Relative,
    norm: spec.RMSNorm,
    dropout: float,
    causal: bool,
) -> spec.Stack:
    attention = spec.Attention(num_heads=num_heads, head_dim=head_dim, scale=1.0, biases=(), dropout=dropout)
    ffn: spec.FeedForward | spec.GatedFeedForward
    if gated:
        ffn = spec.GatedFeedForward(d_ff=d_ff, activation=activation, dropout=dropout)
    else:
        ffn = spec.FeedForward(d_ff=d_ff, activation=activation, biases=(), dropout=dropout)
    block = spec.Block(
        attention=attention,
        cross_attention=attention if causal else None,
        feed_forward=ffn,
        norm=norm,
        wiring="pre",
        dropout=dropout,
    )
    return spec.Stack(
        d_model=d_model,
        num_layers=num_layers,
        block=block,
        causal=causal,
        position=position,
        final_norm=norm,
    )


def from_config(config: Config) -> spec.Model:
    config.only("is_decoder", False, default=False)
    named = config.get("feed_forward_proj", "relu")
    gate, _, kind = named.rpartition("-")
    if gate not in ("", "gated"):
        raise UnsupportedConfigError(
            config.where, "feed_forward_proj", named, "an activation, optionally with 'gated-' before it"
        )
    usual = "gelu_new" if named == "gated-gelu" else kind
    stated = config.get("tie_word_embeddings", True)
    scaled = config.get("scale_decoder_outputs", stated)
    start = config.get("decoder_start_token_id", config.get("pad_token_id", 0))
    dropout = config.get("classifier_dropout", 0.0)
    vocab_size, d_model = config.need("vocab_size", int), config.need("d_model", int, "hidden_size")
    heads: dict[str, spec.Head] = {
        "T5ForConditionalGeneration": spec.LanguageModel(
            vocab_size=vocab_size, scale=d_model**-0.5 if scaled else 1.0
        ),
        "T5Model": spec.Features(),
        "T5EncoderModel": spec.Features(),
        "T5ForSequenceClassification": spec.Classify(
            num_labels=config.num_labels,
            pool="end",
            hidden="tanh",
            dropout=dropout,
            end_id=config.get("eos_token_id", 1),
        ),
        "T5ForTokenClassification": spec.TokenClassify(num_labels=config.num_labels, dropout=dropout),
        "T5ForQuestionAnswering": spec.Answer(),
    }
    if config.architecture == "T5ForQuestionAnswering" and config.num_labels != 2:
        raise InvalidValueError(f"{config.where}: num_labels", config.num_labels, "2 for question answering")
    whole = t5(
        vocab_size=vocab_size,
        d_model=d_model,
        num_heads=config.need("num_heads", int, "num_attention_heads"),
        head_dim=config.get("d_kv", 64, "head_dim"),
        d_ff=config.need("d_ff", int),
        num_layers=config.need("num_layers", int, "num_hidden_layers"),
        decoder_layers=config.maybe("num_decoder_layers", int),
        activation=config.choose("dense_act_fn", ACTIVATIONS, usual),
        gated=config.get("is_gated_act", gate == "gated"),
        buckets=config.get("relative_attention_num_buckets", 32),
        max_distance=config.get("relative_attention_max_distance", 128),
        norm_eps=config.get("layer_norm_epsilon", 1e-6),
        dropout=config.get("dropout_rate", 0.1),
        pad_id=config.get("pad_token_id", 0),
        start_id=start,
        tied=_tied(config, stated, scaled),
        head=heads[config.architecture],
    )
    return _encoder(whole) if config.architecture in ENCODERS else whole


def _tied(config: Config, stated: bool, scaled: bool) -> bool:
    """Whether the scores share the token matrix: the config may say so of a model with a head of its own.

    Newer files of v1.1 call themselves tied; that they are not shows in a head beside unscaled vectors.
    """
    if not config.names:
        return stated
    return "lm_head.weight" not in config.names or (stated and scaled)


def _encoder(whole: spec.EncoderDecoder) -> spec.EncoderOnly:
    """The encoder alone, under the whole model's head."""
    return spec.EncoderOnly(input=whole.source, encoder=whole.encoder, head=whole.head, init=whole.init)


def to_config(model: spec.Model) -> dict[str, Any]:
    assert isinstance(model, spec.EncoderDecoder | spec.EncoderOnly)
    source = model.source if isinstance(model, spec.EncoderDecoder) else model.input
    encoder, head = model.encoder, model.head
    attention, ffn = encoder.block.attention, encoder.block.feed_forward
    assert isinstance(source, spec.Tokens) and isinstance(encoder.position, spec.Relative)
    assert isinstance(encoder.block.norm, spec.RMSNorm)
    gated, kind = isinstance(ffn, spec.GatedFeedForward), PUBLISHED[ffn.activation]
    config = {
        "model_type": "t5",
        "architectures": [_architecture(model)],
        "is_encoder_decoder": isinstance(model, spec.EncoderDecoder),
        "vocab_size": source.vocab_size,
        "d_model": encoder.d_model,
        "d_kv": attention.head_dim,
        "d_ff": ffn.d_ff,
        "num_layers": encoder.num_layers,
        "num_heads": attention.num_heads,
        "relative_attention_num_buckets": encoder.position.buckets,
        "relative_attention_max_distance": encoder.position.max_distance,
        "dropout_rate": source.dropout,
        "layer_norm_epsilon": encoder.block.norm.eps,
        "feed_forward_proj": f"gated-{kind.removesuffix('_new')}" if gated else kind,
        "dense_act_fn": kind,
        "is_gated_act": gated,
        "pad_token_id": source.pad_id,
        "tie_word_embeddings": "head" in model.tied or not isinstance(head, spec.LanguageModel),
        "scale_decoder_outputs": not isinstance(head, spec.LanguageModel) or head.scale != 1.0,
        **labels_of(head),
    }
    if isinstance(model, spec.EncoderDecoder):
        config["num_decoder_layers"] = model.decoder.num_layers
        config["decoder_start_token_id"] = model.start_id
    if isinstance(head, spec.Classify | spec.TokenClassify):
        config["classifier_dropout"] = head.dropout
    if isinstance(head, spec.Classify):
        config["eos_token_id"] = head.end_id
    return config


def _architecture(model: spec.EncoderDecoder | spec.EncoderOnly) -> str:
    match model, model.head:
        case spec.EncoderOnly(), spec.Features():
            return "T5EncoderModel"
        case spec.EncoderOnly(), spec.TokenClassify():
            return "T5ForTokenClassification"
        case spec.EncoderDecoder(), spec.LanguageModel():
            return "T5ForConditionalGeneration"
        case spec.EncoderDecoder(), spec.Features():
            return "T5Model"
        case spec.EncoderDecoder(), spec.Classify():
            return "T5ForSequenceClassification"
        case spec.EncoderDecoder(), spec.Answer():
            return "T5ForQuestionAnswering"
    raise UnsupportedError("this family", "a published class with such a head")


def table(model: spec.Model, names: Collection[str]) -> Table:
    assert isinstance(model, spec.EncoderDecoder | spec.EncoderOnly)
    rows = _stack_rows("encoder", model.encoder)
    token: tuple[str, ...] = ("{base}shared.weight", "{base}encoder.embed_tokens.weight")
    if isinstance(model, spec.EncoderDecoder):
        rows += _stack_rows("decoder", model.decoder)
        # of no use: distance biases cross-attention nowhere
        rows += (Ignored("{base}decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"),)
        token += ("{base}decoder.embed_tokens.weight",)
        ours = "src_embed.token.weight"
    else:
        rows += (Ignored(("{base}decoder.*", "lm_head.weight")),)  # a whole model's file
        ours = "embed.token.weight"
    match model.head:
        case spec.LanguageModel() if "head" in model.tied:
            token += ("lm_head.weight",)
        case spec.LanguageModel():
            rows += (Rename("lm_head.weight", "head.weight"),)
        case spec.Classify():
            rows += (Rename("classification_head.{dense,out_proj}.{p}", "head.{dense,out}.{p}"),)
        case spec.TokenClassify():
            rows += (Rename("classifier.{p}", "head.out.{p}"),)
        case spec.Answer():
            rows += (Rename("qa_outputs.{p}", "head.out.{p}"),)
    rows = (Tied(token, ours), *expand(rows, p=("weight", "bias")))
    under = isinstance(model.head, spec.Classify | spec.TokenClassify)
    return Table(rows, base=("transformer.", "") if under else ("", "transformer."))


def _stack_rows(side: str, stack: spec.Stack) -> tuple[Op, ...]:
    """The rows of one stack; its scores' bias is published with its first layer."""
    gated = isinstance(stack.block.feed_forward, spec.GatedFeedForward)
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
        *expand(within("{base}{s}.block.{i}.", "{s}.blocks.{i}.", rows), s=(side,), i=stack.num_layers),
        Rename(first, f"{side}.position.weight"),
        Rename(f"{{base}}{side}.final_layer_norm.weight", f"{side}.final_norm.weight"),
    )


_SIZES: dict[str, dict[str, Any]] = {
    "t5-small": {},
    "t5-base": {"d_model": 768, "num_heads": 12, "d_ff": 3072, "num_layers": 12},
    "t5-large": {"d_model": 1024, "num_heads": 16, "d_ff": 4096, "num_layers": 24},
    "t5-3b": {"d_model": 1024, "num_heads": 32, "head_dim": 128, "d_ff": 16384, "num_layers": 24},
    "t5-11b": {"d_model": 1024, "num_heads": 128, "head_dim": 128, "d_ff": 65536, "num_layers": 24},
}
_NEXT: dict[str, dict[str, Any]] = {
    "small": {"d_model": 512, "num_heads": 6, "d_ff": 1024, "num_layers": 8},
    "base": {"d_model": 768, "num_heads": 12, "d_ff": 2048, "num_layers": 12},
    "large": {"d_model": 1024, "num_heads": 16, "d_ff": 2816, "num_layers": 24},
    "xl": {"d_model": 2048, "num_heads": 32, "d_ff": 5120, "num_layers": 24},
    "xxl": {"d_model": 4096, "num_heads": 64, "d_ff": 10240, "num_layers": 24},
}
_LATER = {"activation": "gelu_tanh", "gated": True, "tied": False}

FAMILY = Family(
    name="t5",
    model_types=("t5",),
    architectures=(
        "T5ForConditionalGeneration",
        "T5Model",
        "T5EncoderModel",
        "T5ForSequenceClassification",
        "T5ForTokenClassification",
        "T5ForQuestionAnswering",
    ),
    build=t5,
    presets={
        **_SIZES,
        **{
            f"{line}-{size}": {**words, **_LATER}
            for line in ("t5-v1_1", "flan-t5")
            for size, words in _NEXT.items()
        },
    },
    tiny={"vocab_size": 101, "d_model": 32, "num_heads": 4, "head_dim": 8, "d_ff": 64, "num_layers": 2},
    from_config=from_config,
    to_config=to_config,
    table=table,
    immaterial=frozenset({"n_positions", "output_past"}),
)
