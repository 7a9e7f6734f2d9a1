"""PatchTST: each channel of a time series is split into overlapping patches; all share one encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from glassformer.core import spec
from glassformer.core.series.distributions import DISTRIBUTIONS, Distribution
from glassformer.errors import InvalidValueError
from glassformer.families.config import Config, UnsupportedConfigError
from glassformer.families.family import Builder, Family, preset, spec_options
from glassformer.families.keys import Head, Key, Options, Rule, activation, fixed
from glassformer.families.rows import layer_rows, rename_modules
from glassformer.weights.ops import Op, Rename, Reshape

Pool = Literal["flatten", "mean", "max", "first"]


def patchtst(
    *,
    context_length: int = 512,
    prediction_length: int = 96,
    channels: int = 7,
    patch_length: int = 16,
    stride: int = 8,
    d_model: int = 128,
    num_heads: int = 16,
    d_ff: int = 256,
    num_layers: int = 3,
    activation: spec.Activation = "gelu",
    norm: Literal["batch", "layer"] = "batch",
    norm_eps: float = 1e-5,
    wiring: Literal["pre", "post"] = "post",
    position: Literal["learned", "sincos"] = "learned",
    scaling: Literal["std", "mean", "none"] = "std",
    embedding: Literal["shared", "per_channel"] = "shared",
    prefix: Literal[0, 1] = 0,
    ffn_bias: bool = True,
    dropout: float = 0.2,
    attention_dropout: float = 0.0,
    ffn_dropout: float = 0.2,
    embed_dropout: float = 0.2,
    pool: Pool = "flatten",
    distribution: Distribution = "none",
    num_labels: int | None = None,
    head_dropout: float = 0.0,
    covariates: int = 0,
    head: spec.HeadSpec | None = None,
) -> spec.EncoderOnlySpec:
    """Create the spec of a PatchTST; the defaults are the paper's for long series, forecasting 96 steps.

    num_labels: for a classifier instead of a forecaster.
    covariates: number of known covariates of a forecaster, which the published models do not have.
    """
    if head is None and num_labels is not None:
        pooling: Any = "mean" if pool == "flatten" else pool
        head = spec.SeriesClassifySpec(num_labels=num_labels, pool=pooling, dropout=head_dropout)
    return spec.EncoderOnlySpec(
        input=spec.SeriesPatchesSpec(
            context_length=context_length,
            patch_length=patch_length,
            stride=stride,
            channels=channels,
            position=position,
            scaling=scaling,
            embedding=embedding,
            prefix=prefix,
            dropout=embed_dropout,
            covariates=covariates,
        ),
        encoder=spec.StackSpec(
            d_model=d_model,
            num_layers=num_layers,
            block=spec.BlockSpec(
                attention=spec.AttentionSpec(num_heads=num_heads, dropout=attention_dropout),
                feed_forward=spec.FeedForwardSpec(
                    d_ff=d_ff,
                    activation=activation,
                    biases=("up", "down") if ffn_bias else (),
                    dropout=ffn_dropout,
                ),
                norm=spec.BatchNormSpec(eps=norm_eps)
                if norm == "batch"
                else spec.LayerNormSpec(eps=norm_eps),
                wiring=wiring,
                dropout=dropout,
            ),
        ),
        head=head
        or spec.ForecastSpec(
            prediction_length=prediction_length, pool=pool, distribution=distribution, dropout=head_dropout
        ),
        init=spec.NormalSpec(std=0.02),
    )


def _invert(model: spec.EncoderOnlySpec) -> dict[str, Any]:
    """Return the options of `patchtst` that give a spec."""
    batch = isinstance(model.encoder.block.norm, spec.BatchNormSpec)
    return {**spec_options(model), "norm": "batch" if batch else "layer"}


BUILDER = Builder(patchtst, _invert)


# ---- the published config ---------------------------------------------------------------------------


_SCALINGS = {"std": "std", "mean": "mean", True: "mean", None: "none", False: "none"}
_EMBEDDINGS = {True: "shared", False: "per_channel"}
KEYS = (
    Key("context_length", default=32),
    Key("num_input_channels", "channels", 1),
    Key("patch_length", default=1),
    Key("patch_stride", "stride", 1),
    Key("d_model", default=128, aliases=("hidden_size",)),
    Key("num_attention_heads", "num_heads", 4),
    Key("ffn_dim", "d_ff", 512),
    Key("num_hidden_layers", "num_layers", 3),
    activation("activation_function", "gelu"),
    Key("norm_eps", default=1e-5),
    Key("bias", "ffn_bias", True),
    Key("path_dropout", "dropout", 0.0),
    Key("attention_dropout", default=0.0),
    Key("ff_dropout", "ffn_dropout", 0.0),
    Key("positional_dropout", "embed_dropout", 0.0),
    Key("norm_type", "norm", "batchnorm", values={"batchnorm": "batch", "layernorm": "layer"}),
    Key("pre_norm", "wiring", True, values={True: "pre", False: "post"}),
    Key("positional_encoding_type", "position", "sincos", values={"random": "learned", "sincos": "sincos"}),
    Key("scaling", default="std", values=_SCALINGS),
    Key("share_embedding", "embedding", True, values=_EMBEDDINGS),
    Key("use_cls_token", "prefix", False, values={False: 0, True: 1}),
    fixed("channel_attention", False),
    fixed("scaling_dim", 1),
    fixed("keepdim", True),
    fixed("minimum_scale", None),
    fixed("default_scale", None),
)


def _read_pool(config: Config, _: Options) -> dict[str, Any]:
    pools: dict[Any, Pool] = {"mean": "mean", "max": "max", None: "flatten"}
    pool = config.choose("pooling_type", pools, "mean")
    if config.get("use_cls_token", False):
        pool = "first"  # transformers uses the prefix token for any pooling_type
    elif pool == "flatten" and config.architecture != "PatchTSTForPrediction":
        raise UnsupportedConfigError(config.where, "pooling_type", None, "mean or max")
    return {"pool": pool}


def _write_pool(head: Options) -> dict[str, Any]:
    pool = head["pool"]
    return {} if pool == "first" else {"pooling_type": None if pool == "flatten" else pool}


def _read_distribution(config: Config, _: Options) -> dict[str, Any]:
    names: dict[str, Distribution] = {name: name for name in DISTRIBUTIONS}
    distribution = config.choose("distribution_output", names, "student_t")
    mean = config.only("loss", "mse", "nll", default="mse") == "mse"
    return {"distribution": "none" if mean else distribution}


def _write_distribution(head: Options) -> dict[str, Any]:
    name = head["distribution"]
    return {"loss": "mse"} if name == "none" else {"loss": "nll", "distribution_output": name}


def _read_output_range(config: Config, head: Options) -> dict[str, Any]:
    given: Any = config.get("output_range", None)
    if given is None or head["distribution"] != "none":
        return {"output_range": None}
    if not isinstance(given, list | tuple) or [type(n) in (int, float) for n in given] != [True, True]:
        raise InvalidValueError(f"{config.where}: output_range", given, "[low, high]")
    return {"output_range": (float(given[0]), float(given[1]))}


def _write_output_range(head: Options) -> dict[str, Any]:
    return {"output_range": head["output_range"] and [*head["output_range"]]}


_DROPOUT = Key("head_dropout", "dropout", 0.0)
_POOL = Rule(("pool",), _read_pool, _write_pool)
_DISTRIBUTION = Rule(("distribution",), _read_distribution, _write_distribution)
_HEADS = {
    # else the bare model masks patches at random
    "PatchTSTModel": Head(spec.FeaturesSpec, (fixed("do_mask_input", False, None, default=None),)),
    "PatchTSTForPrediction": Head(
        spec.ForecastSpec,
        (
            Key("prediction_length", default=24),
            _POOL,
            Key("share_projection", "projection", True, values=_EMBEDDINGS),
            _DISTRIBUTION,
            _DROPOUT,
        ),
    ),
    "PatchTSTForClassification": Head(
        spec.SeriesClassifySpec, (Key("num_targets", "num_labels", 1), _POOL, _DROPOUT)
    ),
    "PatchTSTForRegression": Head(
        spec.SeriesRegressSpec,
        (
            Key("num_targets", default=1),
            _POOL,
            _DISTRIBUTION,
            Rule(("output_range",), _read_output_range, _write_output_range),
            _DROPOUT,
        ),
    ),
    "PatchTSTForPretraining": Head(
        spec.PatchReconstructSpec,
        (fixed("mask_value", 0), _DROPOUT, Rule((), lambda config, _: {}, lambda _: {"do_mask_input": True})),
    ),
}


def weight_rows(model: Any) -> Sequence[Op]:
    d_model, block = model.encoder.d_model, model.encoder.block
    rows: tuple[Op, ...] = (Rename("{base}encoder.positional_encoder.position_enc", "embed.position"),)
    if model.input.prefix:
        token, one = "{base}encoder.positional_encoder.cls_token", (1, 1, d_model)
        rows += (Reshape(token, "embed.prefix", their_shape=(1, *one), our_shape=one),)
    embedder, both = "{base}encoder.embedder.input_embedding", ("weight", "bias")
    if model.input.embedding == "shared":
        rows += rename_modules((embedder, "embed.patch"))
    else:
        rows += rename_modules(
            *((f"{embedder}.{c}", f"embed.patch.{c}") for c in range(model.input.channels))
        )
    batch = isinstance(block.norm, spec.BatchNormSpec)
    inner = ".batchnorm" if batch else ""
    counted = ("running_mean", "running_var", "num_batches_tracked") if batch else ()
    projections = {"self_attn.{q,k,v,out}_proj": "self_attn.{q,k,v,out}_proj"}
    feed = {"ff.0": "ffn.up", "ff.3": "ffn.down"}
    norms = {f"norm_sublayer1{inner}": "norm_self", f"norm_sublayer3{inner}": "norm_ffn"}
    for modules, parts in (
        (projections, both),
        (feed, both if block.feed_forward.biases else ("weight",)),
        (norms, (*both, *counted)),
    ):
        rows += layer_rows(
            "{base}encoder.layers.{i}", "encoder.blocks.{i}", model.encoder.num_layers, modules, parts
        )
    rows += _head_rows(model.head, model.input.channels)
    return rows


def _head_rows(head: spec.HeadSpec, channels: int) -> tuple[Op, ...]:
    match head:
        case spec.SeriesClassifySpec() | spec.PatchReconstructSpec():
            pairs = [("head.linear", "head.out")]
        case spec.ForecastSpec(projection="per_channel"):
            pairs = [(f"head.projections.{c}", f"head.out.{c}") for c in range(channels)]
        case spec.ForecastSpec() | spec.SeriesRegressSpec():
            pairs = [("head.projection", "head.out")]
        case _:
            pairs = []
    if isinstance(head, spec.ForecastSpec | spec.SeriesRegressSpec) and head.distribution != "none":
        fields = DISTRIBUTIONS[head.distribution]._fields
        pairs = [(f"{t}.proj.{n}", f"{o}.{name}") for t, o in pairs for n, name in enumerate(fields)]
    return rename_modules(*pairs)


_SHORT = {"context_length": 336, "d_model": 16, "num_heads": 4, "d_ff": 128}
_DROP = {"dropout": 0.3, "ffn_dropout": 0.3, "embed_dropout": 0.3}

FAMILY = Family(
    name="patchtst",
    builder=BUILDER,
    keys=KEYS,
    heads=_HEADS,
    presets={
        "patchtst": {},
        "patchtst-small": {**_SHORT, **_DROP},  # the paper's sizes for small data sets
    },
    tiny={
        "context_length": 24,
        "prediction_length": 6,
        "channels": 2,
        "patch_length": 6,
        "stride": 3,
        **preset(16, 4, 2, 32),
    },
    rows=weight_rows,
    prefixes=("model.",),
)
