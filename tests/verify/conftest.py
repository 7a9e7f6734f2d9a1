"""The exports that are verified are made as quickly as those that are tested."""

from tests.export.conftest import one_registry

__all__ = ["one_registry"]
