"""Writing text with a model: token by token, from a source or a prompt."""

from glassformer.decoding.greedy import decode_all, greedy
from glassformer.decoding.steps import Begins, Begun, Steps, begin

__all__ = ["greedy", "decode_all", "begin", "Begun", "Begins", "Steps"]
