"""PatchTST: each channel of a time series is split into overlapping patches; all share one encoder."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from glassformer.core import spec
from glassformer.core.distributions import DISTRIBUTIONS, Distribution
from glassformer.errors import InvalidValueError
from glassformer.families.family import (
    Config,
    Family,
    Key,
    UnsupportedConfigError,
    layer_rows,
    model_prefixes,
    preset,
    read_options,
    rename_modules,
    write_options,
)
from glassformer.weights.convert import WeightTable
from glassformer.weights.ops import Op, Rename, Reshape

Pool = Literal["flatten", "mean", "max", "first"]
_POSITIONS: dict[str, Literal["learned", "sincos"]] = {"random": "learned", "sincos": "sincos"}
_SCALINGS: dict[Any, Literal["std", "mean", "none"]] = {"std": "std", "mean": "mean", True: "mean"}
_SCALINGS |= {None: "none", False: "none"}
_ARCHITECTURES: dict[type, str] = {
    spec.FeaturesSpec: "PatchTSTModel",
    spec.ForecastSpec: "PatchTSTForPrediction",
    spec.SeriesClassifySpec: "PatchTSTForClassification",
    spec.SeriesRegressSpec: "PatchTSTForRegression",
    spec.PatchReconstructSpec: "PatchTSTForPretraining",
}


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


KEYS = (
    Key("context_length", default=32),
    Key("num_input_channels", "channels", 1),
    Key("patch_length", default=1),
    Key("patch_stride", "stride", 1),
    Key("d_model", default=128, aliases=("hidden_size",)),
    Key("num_attention_heads", "num_heads", 4),
    Key("ffn_dim", "d_ff", 512),
    Key("num_hidden_layers", "num_layers", 3),
    Key("activation_function", "activation", "gelu"),
    Key("norm_eps", default=1e-5),
    Key("bias", "ffn_bias", True),
    Key("path_dropout", "dropout", 0.0),
    Key("attention_dropout", default=0.0),
    Key("ff_dropout", "ffn_dropout", 0.0),
    Key("positional_dropout", "embed_dropout", 0.0),
)


def from_config(config: Config) -> spec.EncoderOnlySpec:
    config.only("channel_attention", False, default=False)
    for key, only in {
        "scaling_dim": 1,
        "keepdim": True,
        "minimum_scale": None,
        "default_scale": None,
    }.items():
        config.only(key, only, default=only)
    if config.architecture == "PatchTSTModel":
        config.only("do_mask_input", False, None)  # else the bare model masks patches at random
    prefix: Literal[0, 1] = 1 if config.get("use_cls_token", False) else 0
    return patchtst(
        **read_options(config, KEYS),
        norm=config.choose("norm_type", {"batchnorm": "batch", "layernorm": "layer"}, "batchnorm"),
        wiring="pre" if config.get("pre_norm", True) else "post",
        position=config.choose("positional_encoding_type", _POSITIONS, "sincos"),
        scaling=config.choose("scaling", _SCALINGS, "std"),
        embedding="shared" if config.get("share_embedding", True) else "per_channel",
        prefix=prefix,
        head=_head(config, prefix),
    )


def _head(config: Config, prefix: int) -> spec.HeadSpec:
    dropout = config.get("head_dropout", 0.0)
    pools: dict[Any, Pool] = {"mean": "mean", "max": "max", None: "flatten"}
    pool: Pool = config.choose("pooling_type", pools, "mean")
    if prefix:
        pool = "first"  # transformers uses the prefix token for any pooling_type
    names: dict[str, Distribution] = {name: name for name in DISTRIBUTIONS}
    distribution = config.choose("distribution_output", names, "student_t")
    if config.only("loss", "mse", "nll", default="mse") == "mse":
        distribution = "none"
    targets = config.get("num_targets", 1)
    match config.architecture:
        case "PatchTSTModel":
            return spec.FeaturesSpec()
        case "PatchTSTForPretraining":
            config.only("mask_value", 0, default=0)
            return spec.PatchReconstructSpec(dropout=dropout)
        case "PatchTSTForPrediction":
            return spec.ForecastSpec(
                prediction_length=config.get("prediction_length", 24),
                pool=pool,
                projection="shared" if config.get("share_projection", True) else "per_channel",
                distribution=distribution,
                dropout=dropout,
            )
    if pool == "flatten":
        raise UnsupportedConfigError(config.where, "pooling_type", None, "mean or max")
    if config.architecture == "PatchTSTForClassification":
        return spec.SeriesClassifySpec(num_labels=targets, pool=pool, dropout=dropout)
    between = _output_range(config) if distribution == "none" else None
    return spec.SeriesRegressSpec(
        num_targets=targets, pool=pool, distribution=distribution, output_range=between, dropout=dropout
    )


def _output_range(config: Config) -> tuple[float, float] | None:
    given: Any = config.get("output_range", None)
    if given is None:
        return None
    if not isinstance(given, list | tuple) or [type(n) in (int, float) for n in given] != [True, True]:
        raise InvalidValueError(f"{config.where}: output_range", given, "[low, high]")
    return (float(given[0]), float(given[1]))


def to_config(model: spec.ModelSpec) -> dict[str, Any]:
    assert isinstance(model, spec.EncoderOnlySpec) and isinstance(model.input, spec.SeriesPatchesSpec)
    read, block, head = model.input, model.encoder.block, model.head
    assert isinstance(block.norm, spec.BatchNormSpec | spec.LayerNormSpec)
    config = {
        "model_type": "patchtst",
        "architectures": [_ARCHITECTURES[type(head)]],
        **write_options(model, KEYS),
        "norm_type": "batchnorm" if isinstance(block.norm, spec.BatchNormSpec) else "layernorm",
        "pre_norm": block.wiring == "pre",
        "positional_encoding_type": {"learned": "random", "sincos": "sincos"}[read.position],
        "scaling": None if read.scaling == "none" else read.scaling,
        "share_embedding": read.embedding == "shared",
        "use_cls_token": read.prefix == 1,
        "channel_attention": False,
        "do_mask_input": isinstance(head, spec.PatchReconstructSpec),
    }
    if hasattr(head, "dropout"):
        config["head_dropout"] = head.dropout
    if (
        isinstance(head, spec.ForecastSpec | spec.SeriesClassifySpec | spec.SeriesRegressSpec)
        and head.pool != "first"
    ):
        config["pooling_type"] = None if head.pool == "flatten" else head.pool
    if isinstance(head, spec.ForecastSpec | spec.SeriesRegressSpec):
        config["loss"] = "mse" if head.distribution == "none" else "nll"
        if head.distribution != "none":
            config["distribution_output"] = head.distribution
    if isinstance(head, spec.ForecastSpec):
        config["prediction_length"] = head.prediction_length
        config["share_projection"] = head.projection == "shared"
    elif isinstance(head, spec.SeriesClassifySpec):
        config["num_targets"] = head.num_labels
    elif isinstance(head, spec.SeriesRegressSpec):
        config["num_targets"] = head.num_targets
        config["output_range"] = head.output_range and list(head.output_range)
    return config


def table(model: spec.ModelSpec, names: Collection[str]) -> WeightTable:
    assert isinstance(model, spec.EncoderOnlySpec) and isinstance(model.input, spec.SeriesPatchesSpec)
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
    return WeightTable(rows, base=model_prefixes(model.head, "model."))


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
    model_types=("patchtst",),
    architectures=tuple(_ARCHITECTURES.values()),
    build=patchtst,
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
    from_config=from_config,
    to_config=to_config,
    table=table,
    ignored_keys=frozenset(
        """init_std num_parallel_samples do_mask_input mask_type random_mask_ratio mask_value
        num_forecast_mask_patches channel_consistent_masking unmasked_channel_indices prediction_length
        share_projection num_targets output_range""".split()
    ),
)
