"""The model a recipe asks for: fresh from a preset, a baseline, or one to go on from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from glassformer import api
from glassformer.core import spec as specs
from glassformer.core.build import build, canonical
from glassformer.core.errors import GlassformerError
from glassformer.core.schema import nearest
from glassformer.families.registry import families, presets, spec_of
from glassformer.training import recipe as recipes


def fresh_spec(words: recipes.Model, fixed: Mapping[str, Any]) -> specs.Model:
    """The spec of a preset or family with the recipe's words, and those that the data fixes."""
    name = words.preset or ""
    known = presets()
    if name not in known:
        family = families().get(name)
        if family is None:
            names = {*known, *families(), "lstm"}
            raise GlassformerError(f"model.preset '{name}' is not known{nearest(name, names)}")
        name = next(iter(family.presets))
    return spec_of(name, **{**words.words, **fixed})


def loaded(folder: str, head: specs.Head | None = None) -> api.Bundle:
    """A model to go on from, in float32; with another head where one is given, which is drawn fresh."""
    bundle = api.load(folder, dtype="float32")
    if head is None or bundle.spec.head == head:
        return bundle
    tied: Any = tuple(name for name in bundle.spec.tied if name != "head")
    model = build(replace(bundle.spec, head=head, tied=tied))
    kept = {name: t for name, t in canonical(bundle.model).items() if not name.startswith("head.")}
    model.load_state_dict(kept, strict=False)
    return replace(bundle, model=model, config={})
