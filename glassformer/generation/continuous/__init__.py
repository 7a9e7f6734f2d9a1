"""Writing for many callers at once: requests join and leave the batch between any two steps."""

from glassformer.generation.continuous.errors import Busy, Cancelled, Closed, Failed, Unsound
from glassformer.generation.continuous.job import Job, Token
from glassformer.generation.continuous.writer import Stats, Writer

__all__ = ["Busy", "Cancelled", "Closed", "Failed", "Job", "Stats", "Token", "Unsound", "Writer"]
