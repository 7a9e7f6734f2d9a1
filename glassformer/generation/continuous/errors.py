"""Why a request was not accepted, or did not finish."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from glassformer.errors import GlassformerError


@dataclass(eq=False)
class RequestTooLargeError(GlassformerError):
    """A request that would never fit. unit: `rows` or `tokens`."""

    needed: int
    available: int
    unit: str
    hint: str = ""
    template: ClassVar[str] = "the request needs {needed:,} {unit}, and there are {available:,}"


@dataclass(eq=False)
class SchedulerFullError(GlassformerError):
    """As many requests are waiting as may wait."""

    waiting: int
    template: ClassVar[str] = "{waiting} requests are waiting already; try again in a moment"


@dataclass(eq=False)
class SchedulerClosedError(GlassformerError):
    """The scheduler was closed before the request finished, or takes no more."""

    template: ClassVar[str] = "the scheduler is closed"


@dataclass(eq=False)
class RequestCancelledError(GlassformerError):
    """The caller cancelled the request."""

    template: ClassVar[str] = "the request was cancelled"


@dataclass(eq=False)
class GenerationFailedError(GlassformerError):
    """An unexpected error, or too little memory. stage: `prefill` or `decoding`."""

    stage: str
    cause: str
    hint: str = ""
    template: ClassVar[str] = "{stage} failed: {cause}"


def failure(stage: str, error: Exception) -> GenerationFailedError:
    """Describe an exception raised while serving a request."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        return GenerationFailedError(stage, "out of memory", hint="request fewer or shorter sequences")
    lines = str(error).splitlines() or [type(error).__name__]
    return GenerationFailedError(stage, lines[0])
