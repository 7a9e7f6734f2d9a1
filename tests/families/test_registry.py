"""The registry's short cuts say what the families say."""

from __future__ import annotations

from glassformer.families.registry import NAMES, READERS, families


def test_readers_are_the_families_that_name_the_type() -> None:
    named: dict[str, tuple[str, ...]] = {}
    for name, family in families().items():
        for kind in family.model_types:
            named[kind] = (*named.get(kind, ()), name)
    assert named == READERS
    assert tuple(families()) == NAMES
