"""Continuous batching: requests join and leave the batch between any two steps."""

from glassformer.generation.continuous.errors import (
    GenerationFailedError,
    RequestCancelledError,
    RequestTooLargeError,
    SchedulerClosedError,
    SchedulerFullError,
)
from glassformer.generation.continuous.job import Request
from glassformer.generation.continuous.writer import Scheduler, Stats

__all__ = [
    "GenerationFailedError",
    "SchedulerFullError",
    "Request",
    "RequestCancelledError",
    "RequestTooLargeError",
    "Scheduler",
    "SchedulerClosedError",
    "Stats",
]
