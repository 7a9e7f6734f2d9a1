"""Choose the model size for the data, build the model of a recipe, and replace its head."""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from torch import nn

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.core.block import Block
from glassformer.core.build import build_model, initialize, unique_state_dict
from glassformer.core.heads import VocabularyHead
from glassformer.core.lora import add_lora
from glassformer.core.model import AnyModel, TwoTower
from glassformer.errors import GlassformerError, UnknownNameError
from glassformer.families.family import Config, Family
from glassformer.families.registry import check_option_names, families, family_of_spec, preset_spec, presets
from glassformer.families.sidecars import IMAGE_PROCESSOR_FILE
from glassformer.training.hardware import Hardware
from glassformer.training.recipe import ModelOptions, TrainingOptions

TIME_BUDGET = 45 * 60.0  # maximum seconds of training with default settings, at the assumed speed
PUBLISHED_WIDTH = 768
SIZE_OPTIONS = frozenset(
    {"d_model", "num_heads", "num_kv_heads", "d_ff", "num_layers", "max_len", "dropout", "norm"}
)
TaskSuffix = Literal["ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"]
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

    def weights(self, stacks: int) -> float:
        """Estimate the number of weights in the layers; two stacks include cross-attention."""
        attention = 4 * self.d_model**2
        layer = attention + 2 * self.d_model * self.d_ff
        return self.num_layers * (layer * stacks + attention * (stacks - 1))

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

    def weights(size: ModelSize) -> float:
        return size.weights(stacks) + size.d_model * vocab_size

    def affordable(size: ModelSize) -> float:
        """Return the number of units within the time budget, at the assumed speed of the device type."""
        return TIME_BUDGET * hardware.flops / (6 * weights(size))

    def enough(size: ModelSize) -> bool:
        return affordable(size) >= min(units * min(target_epochs, 10), 3 * weights(size))

    chosen = next((size for size in reversed(suitable) if enough(size)), suitable[0])
    epochs = min(float(f"{target_epochs:.2g}"), float(f"{affordable(chosen) / units:.2g}"))
    reason = f"model size '{chosen.name}' for {units:,} training {unit}"
    if chosen is not suitable[-1]:
        reason += f" on a {hardware.device.type} ('{suitable[-1].name}' would suit the data)"
    if length_known:
        return chosen, epochs, reason
    estimate = hardware.estimate(epochs * units * 6 * weights(chosen))
    return chosen, epochs, f"{reason}; {epochs:g} epochs, {estimate}"


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
    if isinstance(model, TwoTower):
        for tower in (model.image, model.text):
            tower.load_state_dict(build_initialized(tower.spec).state_dict())
        return model
    assert not isinstance(spec, specs.TwoTowerSpec)
    stack = spec.encoder if hasattr(spec, "encoder") else spec.decoder
    width = stack.d_model
    if isinstance(spec.init, specs.NormalSpec) and width < PUBLISHED_WIDTH:
        initialize(model, replace(spec.init, std=spec.init.std * math.sqrt(PUBLISHED_WIDTH / width)))
    return model


def with_head(bundle: Bundle, head: specs.HeadSpec) -> Bundle:
    """Return the model with a newly initialized head; unchanged if its head has the same spec.

    Files of the folder that describe the old head, e.g. the pooling of a sentence encoder, are dropped.
    """
    if bundle.spec.head == head:
        return bundle
    assert not isinstance(bundle.spec, specs.TwoTowerSpec | specs.PromptedSegmenterSpec)
    tied: Any = tuple(name for name in bundle.spec.tied if name != "head")
    model = build_model(replace(bundle.spec, head=head, tied=tied))
    body = {name: t for name, t in unique_state_dict(bundle.model).items() if not name.startswith("head.")}
    model.load_state_dict(body, strict=False)
    files = {name: bundle.files[name] for name in (IMAGE_PROCESSOR_FILE,) if name in bundle.files}
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
    spec, family = bundle.spec, families().get(bundle.family or "")
    assert isinstance(spec, specs.EncoderOnlySpec)
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
        position = getattr(getattr(spec, name, None), "position", None)
        limits.append(getattr(position, "max_len", None))
    return min((limit for limit in limits if limit is not None), default=1 << 30)


def select_trainable(model: nn.Module, options: TrainingOptions) -> str:
    """Add LoRA adapters, freeze parameters and set the stochastic depth as the options say; return a message.

    With LoRA, the adapters and a task head are trained, but not a vocabulary head.
    """
    if options.lora_r is not None:
        add_lora(
            model,
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
