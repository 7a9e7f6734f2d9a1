"""Writing text with a model: token by token, from a source or a prompt."""

from glassformer.decoding.engine import write, write_all
from glassformer.decoding.greedy import decode_all, greedy
from glassformer.decoding.ready import begin
from glassformer.decoding.settings import Decoding, decoding_from
from glassformer.decoding.steps import Begins, Begun, Steps
from glassformer.decoding.tree import Node, Tree
from glassformer.decoding.written import Written

__all__ = [
    "Decoding",
    "decoding_from",
    "write",
    "write_all",
    "Written",
    "Tree",
    "Node",
    "greedy",
    "decode_all",
    "begin",
    "Begun",
    "Begins",
    "Steps",
]
