"""Writing for many callers at once: requests join and leave the batch between any two steps."""

from glassformer.decoding.continuous.errors import Busy, Cancelled, Closed, Failed, Unsound
from glassformer.decoding.continuous.job import Job, Token
from glassformer.decoding.continuous.writer import Stats, Writer

__all__ = ["Busy", "Cancelled", "Closed", "Failed", "Job", "Stats", "Token", "Unsound", "Writer"]
