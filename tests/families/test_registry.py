"""The registry of families."""

from __future__ import annotations

from typing import Any

import pytest

import glassformer
from glassformer.errors import InvalidValueError
from glassformer.families.registry import FAMILIES_BY_MODEL_TYPE, NAMES, families


def test_model_types_are_mapped_to_their_families() -> None:
    named: dict[str, tuple[str, ...]] = {}
    for name, family in families().items():
        for kind in family.model_types:
            named[kind] = (*named.get(kind, ()), name)
    assert named == FAMILIES_BY_MODEL_TYPE
    assert tuple(families()) == NAMES


@pytest.mark.parametrize("family", NAMES)
@pytest.mark.parametrize("size", [0, "64"])
def test_invalid_width_is_rejected(family: str, size: Any) -> None:
    name = "embed_dim" if family in ("swin", "swinv2") else "d_model"
    with pytest.raises(InvalidValueError) as caught:
        glassformer.tiny(family, **{name: size})
    assert caught.value.name == name
