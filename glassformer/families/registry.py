"""All families by name, by preset and by the `model_type` or `_class_name` of published configs."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from glassformer.core.spec import ModelSpec
from glassformer.errors import GlassformerError, InvalidValueError, UnknownNameError
from glassformer.families.config import Config, UnsupportedConfigError
from glassformer.families.family import Family
from glassformer.schema import MAX_INT, matches_type

# "original" has no published layout; a family that reads another one's model_type comes last
NAMES = tuple(
    """original t5 bart marian
    bert roberta distilbert electra albert modernbert deberta
    vit deit dinov2 swin swinv2 clip siglip patchtst
    vision_encoder_decoder blip vilt llava smolvlm idefics3
    sam mobile_sam eomt maskformer mask2former yolos detr
    dit pixart latte autoencoder_kl vq_model unet_2d_condition
    gpt2 llama mistral qwen2 qwen3 falcon palm gpt_neox gemma2 gemma3
    sentence""".split()
)
CLASSES_OF_DIFFUSERS = {
    "dit": "DiTTransformer2DModel",
    "pixart": "PixArtTransformer2DModel",
    "latte": "LatteTransformer3DModel",
    "autoencoder_kl": "AutoencoderKL",
    "vq_model": "VQModel",
    "unet_2d_condition": "UNet2DConditionModel",
}
# the families that may read a model_type, or a class of diffusers; the others need not be imported
FAMILIES_BY_MODEL_TYPE: dict[str, tuple[str, ...]] = {
    **{
        name: (name,)
        for name in NAMES
        if name not in ("original", "palm", "deberta", "sentence", "vision_encoder_decoder")
        and name not in CLASSES_OF_DIFFUSERS
    },
    "bert": ("bert", "sentence"),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), ("roberta", "sentence")),
    **{name: (name, "sentence") for name in ("distilbert", "electra", "albert", "modernbert")},
    "cohere": ("palm",),
    "vision-encoder-decoder": ("vision_encoder_decoder",),
    **dict.fromkeys(("clip_text_model", "clip_vision_model"), ("clip",)),
    **dict.fromkeys(("siglip_text_model", "siglip_vision_model"), ("siglip",)),
    "dinov2_with_registers": ("dinov2",),
    "gemma3_text": ("gemma3",),
    "deberta-v2": ("deberta", "sentence"),
    **{kind: (name,) for name, kind in CLASSES_OF_DIFFUSERS.items()},
}
# diffusers' former class of several families, which differ in the kind of norm
FORMER_CLASS = "Transformer2DModel"
CLASSES_BY_NORM = {
    "ada_norm_zero": CLASSES_OF_DIFFUSERS["dit"],
    "ada_norm_single": CLASSES_OF_DIFFUSERS["pixart"],
}

# validated first: other options are derived from them, which would hide the cause of an error
SIZES = frozenset(
    {"d_model", "embed_dim", "widths", "num_heads", "num_kv_heads", "head_dim", "d_ff", "window_size"}
)


def families(names: Iterable[str] = NAMES) -> dict[str, Family]:
    """Return all families by name, or only those in `names`."""
    return {name: import_module(f"glassformer.families.{name}").FAMILY for name in names}


def presets() -> dict[str, Family]:
    """Return the family of every preset, by the preset's name."""
    return {preset: family for family in families().values() for preset in family.presets}


def preset_spec(name: str, **options: Any) -> ModelSpec:
    """Create the spec of a preset, with some options overridden."""
    known = presets()
    if name not in known:
        raise UnknownNameError("preset", name, known)
    family = known[name]
    return _build(family, {**family.presets[name], **options})


def tiny_spec(name: str, **options: Any) -> ModelSpec:
    """Create the spec of a tiny model of a family, for tests and docs."""
    known = families()
    if name not in known:
        raise UnknownNameError("family", name, known)
    return _build(known[name], {**known[name].tiny, **options})


def check_option_names(family: Family, names: Iterable[str]) -> None:
    """Raise if one of these names is not an option of the family."""
    allowed = inspect.signature(family.build).parameters
    for name in names:
        if name not in allowed:
            raise UnknownNameError("option", name, allowed, where=family.name)


def _build(family: Family, options: dict[str, Any]) -> ModelSpec:
    check_option_names(family, options)
    options = {name: tuple(v) if isinstance(v, list) else v for name, v in options.items()}
    for name in sorted(SIZES & options.keys()):
        value = options[name]
        numbers = value if isinstance(value, tuple) else (value,)  # one for each stage
        if value is not None and not all(matches_type(n, int) and 0 < n <= MAX_INT for n in numbers):
            raise InvalidValueError(name, value, f"an integer from 1 to {MAX_INT}")
    try:
        return family.build(**options)
    except GlassformerError:
        raise
    except (TypeError, ValueError, ArithmeticError) as error:
        raise InvalidValueError(f"options of {family.name}", options, f"a valid model ({error})") from error


def family_of_config(config: Config) -> Family:
    """Return the family that reads a published config."""
    if config.values.get("_class_name") == FORMER_CLASS:
        config.values["_class_name"] = config.choose("norm_type", CLASSES_BY_NORM, None)
    key = "_class_name" if "_class_name" in config.values else "model_type"
    kind = config.values.get(key)
    readers = families(FAMILIES_BY_MODEL_TYPE.get(kind, ()) if isinstance(kind, str) else ()).values()
    if not config.values.get("architectures"):  # a config without classes describes the bare encoder
        bare = [f.bare_architecture for f in readers if f.bare_architecture]
        config.values |= {"architectures": bare} if bare else {}
    architecture = config.architecture
    matches = [
        family
        for family in readers
        if architecture in family.architectures
        and all(config.read_sibling(name) is not None for name in family.marker_files)
    ]
    if matches:
        return max(matches, key=lambda family: len(family.marker_files))
    kinds = {
        kind
        for family in families().values()
        if architecture in family.architectures and not family.marker_files
        for kind, names in FAMILIES_BY_MODEL_TYPE.items()
        if family.name in names
    }
    if kinds:
        expected = f"{' or '.join(map(repr, sorted(kinds)))} for {architecture}"
        raise InvalidValueError(f"{config.where}: model_type", kind, expected)
    if not readers:
        raise UnsupportedConfigError(config.where, key, kind, ", ".join(sorted(FAMILIES_BY_MODEL_TYPE)))
    raise _unsupported_architecture(config, [family for family in readers if not family.marker_files])


def _unsupported_architecture(config: Config, readers: list[Family]) -> UnsupportedConfigError:
    """Return the error for an unsupported class of a known model_type: the classes of the same model."""
    name = config.architecture
    known = [known for family in readers for known in family.architectures]
    stem = name.partition("For")[0].removesuffix("Model")
    same = [other for other in known if other.startswith(stem)] or known
    hint = ""
    if name.endswith("ForPreTraining"):  # its tensors are those of the first class, and a second head
        hint = f'set "architectures" to ["{same[0]}"] to load it without its second head'
    return UnsupportedConfigError(config.where, "architectures", name, ", ".join(same), hint)


def family_of_spec(model: ModelSpec, architecture: str = "") -> Family | None:
    """Return the family whose published config describes this spec exactly, if any.

    architecture: class in an earlier config of the model; of several families, that of this class is chosen
    """
    ordered = sorted(families().values(), key=lambda family: architecture not in family.architectures)
    return next((family for family in ordered if family.describes(model)), None)
