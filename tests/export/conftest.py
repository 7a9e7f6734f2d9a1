"""What torch works out anew for each graph that it exports, and comes to the same, is worked out once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest


@pytest.fixture(scope="session", autouse=True)
def one_registry() -> Iterator[None]:
    """The table of operators that it reads off onnxscript's sources: a fifth of an export of a tiny model."""
    try:
        from torch.onnx._internal.exporter._registration import ONNXRegistry
    except ImportError:  # nothing promises that it is there
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib)))
        yield
