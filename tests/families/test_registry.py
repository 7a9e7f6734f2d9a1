"""The registry's short cuts say what the families say."""

from __future__ import annotations

from typing import Any

import pytest

import glassformer
from glassformer.errors import GlassformerError
from glassformer.families.family import Config
from glassformer.families.registry import NAMES, READERS, families, family_of


def test_readers_are_the_families_that_name_the_type() -> None:
    named: dict[str, tuple[str, ...]] = {}
    for name, family in families().items():
        for kind in family.model_types:
            named[kind] = (*named.get(kind, ()), name)
    assert named == READERS
    assert tuple(families()) == NAMES


@pytest.mark.parametrize("family", NAMES)
@pytest.mark.parametrize("size", [-4, 0, "64", 64.0])
def test_a_width_that_is_none_is_named_with_what_it_must_be(family: str, size: Any) -> None:
    with pytest.raises(GlassformerError, match=f"d_model is {size!r}; it must be a whole number from 1"):
        glassformer.tiny(family, d_model=size)


def test_an_architecture_that_is_not_read_is_told_without_a_guess() -> None:
    asked = {
        ("qwen3_moe", "Qwen3MoeForCausalLM"): "of the model_types these are: bart, bert, ",
        ("mixtral", "MixtralForCausalLM"): "of the model_types these are: bart, bert, ",
        ("vit", "ViTForMaskedImageModeling"): "of this model_type these are: ViTForImageClassification, ",
    }
    for (kind, architecture), said in asked.items():
        with pytest.raises(GlassformerError, match=said) as error:
            family_of(Config({"model_type": kind, "architectures": [architecture]}, "config.json"))
        assert "did you mean" not in str(error.value)
