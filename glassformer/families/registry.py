"""All families by name, by preset and by what a published config calls them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from glassformer.core.schema import nearest
from glassformer.core.spec import Model
from glassformer.core.spec.checks import wanted_size
from glassformer.errors import GlassformerError
from glassformer.families.family import Config, Family

NAMES = (
    "original",
    "t5",
    "bart",
    "marian",
    "bert",
    "roberta",
    "distilbert",
    "sentence",
    "vit",
    "deit",
    "patchtst",
    "gpt2",
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "falcon",
    "palm",
)


# which modules may read a model_type: the others need not be imported to load a folder
READERS = {
    "t5": ("t5",),
    "bart": ("bart",),
    "marian": ("marian",),
    "bert": ("bert", "sentence"),
    "roberta": ("roberta", "sentence"),
    "xlm-roberta": ("roberta", "sentence"),
    "camembert": ("roberta", "sentence"),
    "distilbert": ("distilbert", "sentence"),
    "vit": ("vit",),
    "deit": ("deit",),
    "patchtst": ("patchtst",),
    "gpt2": ("gpt2",),
    "llama": ("llama",),
    "mistral": ("mistral",),
    "qwen2": ("qwen2",),
    "qwen3": ("qwen3",),
    "falcon": ("falcon",),
    "cohere": ("palm",),
}


# settings that families reckon others from, which would hide what is wrong with them
RECKONED = frozenset({"d_model", "num_heads", "num_kv_heads", "head_dim", "d_ff"})


def families(names: Iterable[str] = NAMES) -> dict[str, Family]:
    """Every family by name, or those named."""
    return {name: import_module(f"glassformer.families.{name}").FAMILY for name in names}


def presets() -> dict[str, Family]:
    """Every preset's name with its family."""
    return {preset: family for family in families().values() for preset in family.presets}


def spec_of(name: str, **words: Any) -> Model:
    """The spec of a preset, with some of its words changed."""
    known = presets()
    if name not in known:
        raise GlassformerError(f"there is no preset '{name}'{nearest(str(name), known)}")
    family = known[name]
    return _build(family, {**family.presets[name], **words})


def tiny(name: str, **words: Any) -> Model:
    """The spec of a family's smallest sensible model, for tests and docs."""
    known = families()
    if name not in known:
        raise GlassformerError(f"there is no family '{name}'{nearest(str(name), known)}")
    return _build(known[name], {**known[name].tiny, **words})


def refuse_unknown(family: Family, words: Iterable[str]) -> None:
    """A sentence where a family has no setting of one of these names."""
    allowed = inspect.signature(family.build).parameters
    for word in words:
        if word not in allowed:
            raise GlassformerError(f"{family.name} has no setting '{word}'{nearest(word, allowed)}")


def _build(family: Family, words: dict[str, Any]) -> Model:
    refuse_unknown(family, words)
    for word in sorted(RECKONED & words.keys()):
        if words[word] is not None and (wanted := wanted_size((words[word],))):
            raise GlassformerError(f"{family.name}'s {word} is {words[word]!r:.60}; it must be {wanted}")
    try:
        return family.build(**words)
    except GlassformerError:
        raise
    except (TypeError, ValueError, ArithmeticError) as error:
        raise GlassformerError(f"{family.name} cannot be built with these words ({error})") from error


def family_of(config: Config) -> Family:
    """The family that reads a published config; an unknown architecture is a sentence."""
    kind, architecture = config.values.get("model_type"), config.architecture
    fitting = [
        family
        for family in families(READERS.get(kind, ()) if isinstance(kind, str) else ()).values()
        if architecture in family.architectures
        and all(config.beside(name) is not None for name in family.beside)
    ]
    if fitting:
        return max(fitting, key=lambda family: len(family.beside))
    known = {name for family in families().values() for name in family.architectures}
    if architecture in known:
        plain = (f for f in families().values() if architecture in f.architectures and not f.beside)
        kinds = {kind for family in plain for kind in family.model_types}
        raise GlassformerError(
            f"{config.where} sets model_type to {kind!r}, which does not go with the architecture "
            f"'{architecture}'; it must be {' or '.join(map(repr, sorted(kinds)))}"
        )
    # no guess is made: a published name that is like another one is another model all the same
    readers = families(READERS.get(kind, ()) if isinstance(kind, str) else ()).values()
    read = ", ".join(sorted({name for family in readers for name in family.architectures} or READERS))
    raise GlassformerError(
        f"{config.where} names the architecture '{architecture}' (model_type '{kind}'), which is not "
        f"supported; {'of this model_type' if readers else 'of the model_types'} these are: {read}"
    )


def family_for(model: Model) -> Family | None:
    """The family whose published config describes this spec exactly; None where there is none."""
    for family in families().values():
        try:
            config = Config(family.to_config(model), files=family.files(model))
            if config.architecture in family.architectures and family.from_config(config) == model:
                return family
        except (AssertionError, AttributeError, KeyError, GlassformerError):
            continue  # another family's shape
    return None
