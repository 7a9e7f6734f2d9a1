"""A model in training, at rest for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """No dropout inside; afterwards every module is as it was.

    >>> model = nn.Dropout()
    >>> with at_rest(model):
    ...     model.training
    False
    >>> model.training
    True
    """
    active = [module for module in model.modules() if module.training]
    for module in active:
        module.training = False
    try:
        yield
    finally:
        for module in active:
            module.training = True
