"""Continuous batching: requests join and leave the batch between any two steps."""

from glassformer.generation.continuous.request import (
    GenerationFailedError,
    Request,
    RequestCancelledError,
    RequestTooLargeError,
    SchedulerClosedError,
    SchedulerFullError,
)
from glassformer.generation.continuous.scheduler import Scheduler, Stats

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
