"""The registry of families."""

from __future__ import annotations

import inspect

import pytest
import torch

import glassformer
from glassformer.core.build import build_model
from glassformer.core.embeddings import TokenInput
from glassformer.core.spec import ModelSpec
from glassformer.core.vision.embeddings import FeatureMapInput, ImageInput
from glassformer.errors import InvalidValueError
from glassformer.families.registry import (
    FAMILIES_BY_MODEL_TYPE,
    NAMES,
    families,
    tiny_spec,
)


def test_saved_model_types_are_mapped_to_their_families() -> None:
    for name, family in families().items():
        if name != "original":  # it has no published layout
            config = family.to_config(tiny_spec(name))
            kind = config["_class_name" if family.library == "diffusers" else "model_type"]
            assert name in FAMILIES_BY_MODEL_TYPE[kind]
    assert tuple(families()) == NAMES
    assert {name for names in FAMILIES_BY_MODEL_TYPE.values() for name in names} == {*NAMES} - {"original"}


@pytest.mark.parametrize("family", NAMES)
def test_invalid_width_is_rejected(family: str) -> None:
    known = inspect.signature(families()[family].build).parameters
    name = next(option for option in ("d_model", "embed_dim", "widths") if option in known)
    with pytest.raises(InvalidValueError) as caught:
        glassformer.tiny(family, **{name: 0})
    assert caught.value.name == name


@pytest.mark.parametrize("name", NAMES)
def test_a_spec_names_the_modules_of_its_model(name: str) -> None:
    """Embeddings, stacks and heads are listed by module path, and example inputs have the tokens they say."""
    with torch.device("meta"):
        model = build_model(tiny_spec(name))
    model_spec = model.spec
    assert model_spec.yields is not None and model_spec.architecture != ModelSpec.architecture
    modules = dict(model.named_modules())
    paths = [f"{path}{part}" for path, stack in model_spec.stacks().items() for part in stack.parts()]
    assert {*paths, *model_spec.stacks(), *model_spec.embeddings(), *model_spec.heads()} <= {*modules}
    for path, read in model_spec.embeddings().items():
        shape = (2, *read.example_shape(5, 8))
        if isinstance(modules[path], TokenInput | ImageInput | FeatureMapInput):
            inputs = torch.zeros(shape[:2]).long() if read.modality == "text" else torch.zeros(shape)
            assert modules[path].to_empty(device="cpu")(inputs).x.shape[1] == read.num_tokens(shape)
