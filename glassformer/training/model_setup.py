"""Choose the model size for the data, build the model of a recipe, and replace its head."""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.core.block import Block
from glassformer.core.build import build_model, initialize, unique_state_dict
from glassformer.core.heads import VocabularyHead
from glassformer.core.lora import add_lora
from glassformer.core.model import AnyModel
from glassformer.data.image_files import MAX_DEFAULT_SIDE
from glassformer.errors import GlassformerError, InvalidValueError, UnknownNameError, UnsupportedError
from glassformer.families.config import Config
from glassformer.families.family import Family
from glassformer.families.registry import check_option_names, families, family_of_spec, preset_spec, presets
from glassformer.families.sidecars import SIDECARS
from glassformer.messages import plural
from glassformer.training.hardware import Hardware
from glassformer.training.recipe import ModelOptions, TrainingOptions

TIME_BUDGET = 45 * 60.0  # maximum seconds of training with default settings, at the assumed speed
PUBLISHED_WIDTH = 768
SIZE_OPTIONS = frozenset(
    {"d_model", "num_heads", "num_kv_heads", "d_ff", "num_layers", "max_len", "dropout", "norm"}
)
TaskSuffix = Literal["ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"]
MAX_SMALL_SIDE = 64  # largest image for the smallest hierarchical encoder; larger ones get these options
LARGE_STAGES = {
    "patch_size": 4,
    "embed_dim": 96,
    "depths": (2, 2, 6, 2),
    "num_heads": (3, 6, 12, 24),
    "window_size": 7,
}
SMALL_DATA = 1_000_000  # training values below which a small forecaster does better
SATURATING_WIDTH = 128  # model width from which the hardware is fully used
MAX_CONTEXT = 1024  # tokens of a block of text, unless the recipe sets a context length
PATCHES = 48  # number of patches of a series that the default stride aims at
PATCH_LENGTH = 16
PATCH_COUNTS = (49, 256)  # fewest and most patches of an image
MAX_PATCH_SIZE = 16
BASELINES = ("lstm", "linear", "repeat", "seasonal")


class ModelSize(NamedTuple):
    """A model size. min_units: number of training units (e.g. tokens) from which the size is useful."""

    name: str
    min_units: int
    d_model: int
    num_heads: int
    d_ff: int
    num_layers: int
    dropout: float

    def weights(self, stacks: int, vocab_size: int) -> int:
        """Estimate the number of weights of layers and head; two stacks include cross-attention."""
        attention = 4 * self.d_model**2
        layer = attention + 2 * self.d_model * self.d_ff
        layers = self.num_layers * (layer * stacks + attention * (stacks - 1))
        return layers + self.d_model * vocab_size

    def options(self) -> dict[str, int | float]:
        names = ("d_model", "num_heads", "d_ff", "num_layers", "dropout")
        return {name: getattr(self, name) for name in names}


SIZES = (
    ModelSize("nano", 0, 64, 4, 256, 2, 0.3),
    ModelSize("tiny", 50_000, 128, 4, 512, 3, 0.3),
    ModelSize("small", 300_000, 256, 4, 1024, 4, 0.2),
    ModelSize("middle", 3_000_000, 384, 6, 1536, 6, 0.15),
    ModelSize("base", 15_000_000, 512, 8, 2048, 6, 0.1),
    ModelSize("big", 300_000_000, 768, 12, 3072, 12, 0.1),
)


def choose_size(
    hardware: Hardware,
    *,
    units: int,
    unit: str = "tokens",
    vocab_size: int,
    stacks: int = 1,
    epochs: float | None = None,
    length_known: bool = False,
) -> tuple[ModelSize, float, str]:
    """Choose the largest model size for the data and the type of device; return size, epochs and reason.

    units: number of tokens (or of another `unit`) per epoch. stacks: 2 for an encoder-decoder.
    epochs: number of epochs; by default chosen from the units. length_known: the recipe sets the training
    length, so the reason does not mention it.
    The cost is estimated at six FLOPs per weight and unit. A size is too large if the budget allows neither
    ten epochs nor three units per weight.
    """
    target_epochs = epochs or min(200.0, max(1.0, 20_000_000 / max(units, 1)))  # many for little data
    suitable = [size for size in SIZES if units >= size.min_units]

    def affordable(size: ModelSize) -> float:
        """Return the number of units within the time budget, at the assumed speed of the device type."""
        return TIME_BUDGET * hardware.flops / (6 * size.weights(stacks, vocab_size))

    def enough(size: ModelSize) -> bool:
        return affordable(size) >= min(units * min(target_epochs, 10), 3 * size.weights(stacks, vocab_size))

    chosen = next((size for size in reversed(suitable) if enough(size)), suitable[0])
    epochs = min(float(f"{target_epochs:.2g}"), float(f"{affordable(chosen) / units:.2g}"))
    reason = f"model size '{chosen.name}' for {units:,} training {unit}"
    if chosen is not suitable[-1]:
        reason += f" on a {hardware.device.type} ('{suitable[-1].name}' would suit the data)"
    if length_known:
        return chosen, epochs, reason
    return chosen, epochs, f"{reason}; {epochs:g} {plural('epoch', epochs)}"


def find_preset(name: str) -> tuple[str, Family]:
    """Return the name of a preset, or of the first preset of a family, and its family."""
    known = presets()
    if name in known:
        return name, known[name]
    family = families().get(name)
    if family is None:
        raise UnknownNameError("model preset", name, {*known, *families(), "lstm"})
    return next(iter(family.presets)), family


def supported_options(preset: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the family of a preset, or the LSTM baseline, supports.

    >>> supported_options("lstm", {"d_model": 64, "num_heads": 4, "dropout": 0.1})
    {'d_model': 64, 'dropout': 0.1}
    """
    if preset == "lstm":
        supported: Collection[str] = ("d_model", "dropout")
    else:
        supported = inspect.signature(find_preset(preset)[1].build).parameters
        if is_hierarchical(preset):  # it has its own number of heads for each stage
            supported = [name for name in supported if name not in ("num_heads", "dropout")]
    return {name: value for name, value in options.items() if name in supported}


def is_hierarchical(preset: str) -> bool:
    """Return whether a preset has stages of different widths, with their own options."""
    return "depths" in inspect.signature(find_preset(preset)[1].build).parameters


def has_fixed_size(preset: str) -> bool:
    """Return whether a preset, e.g. bert-base-cased, has a published size that is not adapted to the data."""
    return preset in presets() and preset not in families()


def check_overrides(preset: str, overrides: Mapping[str, Any]) -> None:
    """Raise an error if no model size that may be chosen is valid together with the overrides."""
    if preset in BASELINES:
        return
    name, family = find_preset(preset)
    check_option_names(family, overrides)
    if is_hierarchical(preset):  # its size is not chosen for the data
        preset_spec(name, **overrides)
        return
    sizes = {option: value for option, value in overrides.items() if option in SIZE_OPTIONS - {"max_len"}}
    if not sizes:
        return
    rests: list[dict[str, Any]] = [{}]
    if not has_fixed_size(
        preset
    ):  # as many KV heads as heads, since the preset's number might not divide them
        rests = [supported_options(preset, {**size.options(), "num_kv_heads": None}) for size in SIZES]
    errors = []
    for rest in rests:
        try:
            preset_spec(name, **{**rest, **sizes})
            return
        except GlassformerError as error:
            errors.append(error)
    raise errors[0]


def new_model_spec(options: ModelOptions, fixed: Mapping[str, Any]) -> specs.ModelSpec:
    """Return the spec of a preset or family with the recipe's overrides. fixed: options set by the data."""
    name, _ = find_preset(options.preset or "")
    return preset_spec(name, **{**options.overrides, **fixed})


def build_initialized(spec: specs.ModelSpec) -> AnyModel:
    """Build a newly initialized model; for widths below 768 the published std is scaled up."""
    model = build_model(spec)
    if children := spec.children():
        for name, child in children.items():
            model.get_submodule(name).load_state_dict(build_initialized(child).state_dict())
        return model
    width = next((stack.d_model for stack in spec.stacks().values()), PUBLISHED_WIDTH)
    if isinstance(spec.init, specs.NormalSpec) and width < PUBLISHED_WIDTH:
        initialize(model, replace(spec.init, std=spec.init.std * math.sqrt(PUBLISHED_WIDTH / width)))
    return model


def with_head(bundle: Bundle, head: specs.HeadSpec) -> Bundle:
    """Return the model with a newly initialized head; unchanged if its head has the same spec.

    Files of the folder that describe the old head, e.g. the pooling of a sentence encoder, are dropped.
    """
    if bundle.spec.head == head:
        return bundle
    tied = tuple(name for name in bundle.spec.tied if name != "head")
    model = build_model(replace(bundle.spec, head=head, tied=tied))  # type: ignore[type-var]
    body = {name: t for name, t in unique_state_dict(bundle.model).items() if not name.startswith("head.")}
    model.load_state_dict(body, strict=False)
    files = {name: bundle.files[name] for name in SIDECARS if name in bundle.files}
    return replace(bundle, model=model, family=None, config={}, files=files)


def published_head(
    spec: specs.EncoderOnlySpec, task: TaskSuffix, num_labels: int, family_name: str | None = None
) -> specs.HeadSpec:
    """Return the head of the published architecture of a text encoder.

    task: suffix of the published class, e.g. ForTokenClassification.
    family_name: the family that the encoder was loaded as; by default the first that describes it.
    """
    plain = replace(spec, head=specs.FeaturesSpec(), tied=())
    family = families().get(family_name or "")
    if family is None or not family.describes(plain):
        family = family_of_spec(plain)
    if family is not None:
        config = family.to_config(plain)
        name = config["architectures"][0].removesuffix("Model") + task
        if name in family.architectures:
            labels = {str(n): str(n) for n in range(num_labels)}
            return family.from_config(Config({**config, "architectures": [name], "id2label": labels})).head
    heads: dict[TaskSuffix, specs.HeadSpec] = {
        "ForSequenceClassification": specs.ClassifySpec(num_labels=num_labels),
        "ForTokenClassification": specs.TokenClassifySpec(num_labels=num_labels),
        "ForQuestionAnswering": specs.AnswerSpec(),
    }
    return heads[task]


def image_head(bundle: Bundle, num_labels: int) -> specs.ClassifySpec:
    """Return the head of the published classifier of an image encoder.

    By default it reads the first token, or the mean of all if there is no class token.
    """
    spec: Any = bundle.spec
    family = families().get(bundle.family or "")
    pools: tuple[Literal["first", "first_mean", "mean"], ...] = ("first", "first_mean", "mean")
    heads = [specs.ClassifySpec(num_labels=num_labels, pool=pool) for pool in pools]
    for head in heads:
        if family is not None and family.describes(replace(spec, head=head)):
            return head
    return heads[0] if getattr(spec.input, "prefix", 0) else heads[-1]


def max_input_length(spec: Any) -> int:
    """Return the maximum input length of a model in tokens; a very large number if unlimited."""
    limits = [getattr(spec, "max_len", None)]
    for name in ("input", "source", "target"):
        own = getattr(spec, name, None)
        for part in () if own is None else own.parts():
            limits.append(getattr(getattr(part, "position", None), "max_len", None))
    return min((limit for limit in limits if limit is not None), default=1 << 30)


def select_trainable(model: nn.Module, options: TrainingOptions) -> str:
    """Add LoRA adapters, freeze parameters and set the stochastic depth as the options say; return a message.

    With LoRA, the adapters and a task head are trained, but not a vocabulary head; of a vision-language
    model, the decoder is adapted and the connector is trained; of a diffusion model, the denoiser is adapted.
    """
    connector = getattr(getattr(model, "embed", None), "connector", None)
    if options.lora_r is not None:
        if isinstance(connector, nn.Module):
            model.requires_grad_(False)
            connector.requires_grad_(True)
        add_lora(
            getattr(model, "denoiser", model if connector is None else model.decoder),  # type: ignore[arg-type]
            r=options.lora_r,
            lora_alpha=options.lora_alpha,
            lora_dropout=options.lora_dropout,
            target_modules=options.lora_target_modules,
        )
        head = getattr(model, "head", None)
        if isinstance(head, nn.Module) and not isinstance(head, VocabularyHead):
            head.requires_grad_(True)
    if options.drop_path_rate is not None:
        blocks = [module for module in model.modules() if isinstance(module, Block)]
        for n, block in enumerate(blocks):
            block.drop_path = options.drop_path_rate * n / max(1, len(blocks) - 1)
    names = dict(model.named_parameters())
    for prefix in options.freeze:
        frozen = [p for name, p in names.items() if f"{name}.".startswith(f"{prefix}.")]
        if not frozen:
            known = {".".join(name.split(".")[:depth]) for name in names for depth in (1, 3)}
            raise UnknownNameError("parameter", prefix, known, where="training.freeze")
        for parameter in frozen:
            parameter.requires_grad_(False)
    trained = sum(p.numel() for p in names.values() if p.requires_grad)
    total = sum(p.numel() for p in names.values())
    return f"{trained:,} of {total:,} parameters are trained" if trained < total else ""


def fit_to_patches(height: int, width: int, patch: int | Sequence[int] | None) -> tuple[int, int]:
    """Return the image size, or the closest one that is divisible into patches. patch: None if it is chosen.

    >>> fit_to_patches(28, 28, None), fit_to_patches(224, 212, None), fit_to_patches(30, 21, 4)
    ((28, 28), (224, 208), (32, 20))
    """
    if patch is None:
        with suppress(InvalidValueError):
            choose_patch_size(height, width)
            return height, width
    scale = min(1.0, MAX_DEFAULT_SIDE / max(height, width)) if patch is None else 1.0
    rows, columns = patch if isinstance(patch, Sequence) else [patch or MAX_PATCH_SIZE] * 2
    return max(1, round(scale * height / rows)) * rows, max(1, round(scale * width / columns)) * columns


def choose_patch_size(height: int, width: int) -> int:
    """Choose the largest patch size that leaves enough patches.

    >>> [choose_patch_size(side, side) for side in (28, 32, 8, 224)]
    [4, 4, 1, 16]
    """
    fewest, most = PATCH_COUNTS
    sizes = [n for n in range(1, MAX_PATCH_SIZE + 1) if height % n == 0 == width % n]
    counts = {size: height * width // size**2 for size in sizes}
    suitable = [size for size, count in counts.items() if fewest <= count <= most]
    if suitable:
        return max(suitable)
    if counts[max(sizes)] <= most:
        return 1  # a very small image: each pixel is a patch
    rounded = [-(-side // 16) * 16 for side in (height, width)]
    raise InvalidValueError(
        "the image size",
        f"{height} x {width}",
        f"a size divisible into {fewest} to {most} equal patches",
        f"resize the images, e.g. data.image_size={rounded}",
    )


def keep_fitting_weights(bundle: Bundle, spec: specs.ModelSpec) -> Bundle:
    """Return a newly initialized model with all weights of the bundle that have the same name and shape.

    spec: of the new model, e.g. with another number of labels.
    """
    model = build_model(spec)
    own = unique_state_dict(model)
    known = {
        name: tensor
        for name, tensor in unique_state_dict(bundle.model).items()
        if name in own and own[name].shape == tensor.shape
    }
    model.load_state_dict(known, strict=False)
    files = {name: bundle.files[name] for name in SIDECARS if name in bundle.files}
    return replace(bundle, model=model, family=None, config={}, files=files)


def count_queries(spec: Any) -> int:
    """Return the number of object queries of a detector, the most objects that it finds in an image."""
    return int(spec.head.num_queries or spec.target.num_queries)


def add_queries(detector: Bundle, number: int) -> Bundle:
    """Return a detector with more object queries; the new ones are copies of the others with some noise."""
    spec: Any = detector.spec
    count = count_queries(spec)
    if spec.head.num_queries is None:  # they are the input of a decoder
        extended = replace(spec, target=replace(spec.target, num_queries=count + number))
    else:
        tokens = replace(spec.input, suffix=count + number)
        extended = replace(spec, input=tokens, head=replace(spec.head, num_queries=count + number))
    result = keep_fitting_weights(detector, extended)
    sources = dict(detector.model.named_parameters())
    with torch.no_grad():
        for name, parameter in result.model.named_parameters():
            source = sources[name]
            if parameter.shape != source.shape:  # (..., tokens, D), with the queries at the end
                queries = source[..., -count:, :]
                copies = queries[..., torch.arange(number, device=source.device) % count, :]
                noise = torch.randn_like(copies) * (0.1 * queries.std())
                parameter.copy_(torch.cat((source, copies + noise), -2))
    return result


def keep_positions(base: Bundle, bundle: Bundle) -> None:
    """Copy the trained positions of prefix and patches to a model with more tokens behind them."""
    old: Any = base.model
    new: Any = bundle.model
    if old.embed.position is not None:
        with torch.no_grad():
            new.embed.position[:, : old.embed.position.shape[1]] = old.embed.position


def forecaster_lengths(bundle: Bundle, context: int | None) -> tuple[int | None, int]:
    """Return context length and horizon of a saved forecaster.

    context: returned if the model works with any context length.
    """
    spec: Any = bundle.spec
    if spec.yields == "future values":
        if spec.heads():
            return spec.input.context_length, spec.head.prediction_length
        known = bundle.job.context  # of a baseline
        return getattr(spec, "context_length", context or known), spec.prediction_length
    raise UnsupportedError("the model in model.folder", "forecasting")


def forecaster_options(context: int, rows: int) -> dict[str, Any]:
    """Choose PatchTST options. rows: number of training windows, each column counted."""
    patch = 16 if context >= 64 else max(2, context // 6)
    options: dict[str, Any] = {"patch_length": patch, "stride": max(1, patch // 2), "num_layers": 3}
    if context <= patch:
        options["norm"] = "layer"  # batch norm fails on a single window with a single patch
    if rows < SMALL_DATA:
        dropouts = dict.fromkeys(("dropout", "ffn_dropout", "embed_dropout"), 0.3)
        return options | {"d_model": 16, "num_heads": 4, "d_ff": 128, **dropouts}
    return options | {"d_model": 128, "num_heads": 16, "d_ff": 256}


def forecaster_epochs(
    hardware: Hardware, options: Mapping[str, Any], rows: int, horizon: int, context: int
) -> tuple[float, float]:
    """Return the number of epochs that fits the time budget (1 to 30), and the FLOPs of all."""
    patches = (context - options["patch_length"]) // options["stride"] + 1
    layer = 4 * options["d_model"] ** 2 + 2 * options["d_model"] * options["d_ff"]
    weights = patches * (options["num_layers"] * layer + options["d_model"] * horizon)
    idle = max(
        1.0, SATURATING_WIDTH / options["d_model"]
    )  # small matrix multiplications do not saturate the hardware
    flops = 6 * weights * rows * idle  # per epoch
    epochs = float(f"{min(30.0, max(1.0, TIME_BUDGET * hardware.flops / flops)):.2g}")
    return epochs, epochs * flops


def series_classifier_options(length: int) -> dict[str, Any]:
    """Choose PatchTST options for series of a length."""
    patch = min(PATCH_LENGTH, max(2, length // 4))
    return {
        "patch_length": patch,
        "stride": max(1, round((length - patch) / PATCHES)),
        "d_model": 64,
        "num_heads": 4,
        "d_ff": 128,
        "num_layers": 3,
        "norm": "layer",  # better than batch norm on small data sets, and with a moving average of weights
        "wiring": "pre",
        "position": "sincos",
        "scaling": "none",  # the series are standardized with the training data's statistics
        "embedding": "per_channel",
        "head_dropout": 0.2,
        "dropout": 0.2,
        "ffn_dropout": 0.2,
        "embed_dropout": 0.2,
    }


def choose_context_length(tokens: int, longest: int) -> int:
    """Choose a power of two from 128 to 1024, limited by the longest document and leaving 2,500 blocks.

    >>> [choose_context_length(*sizes) for sizes in ((10**6, 10**6), (10**6, 90), (10**9, 10**6))]
    [256, 128, 1024]
    """
    length = 128
    while length < min(MAX_CONTEXT, longest) and tokens // (2 * length) >= 2500:
        length *= 2
    return length
