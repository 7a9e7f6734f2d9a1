"""Writing text with a model: token by token, from a source or a prompt."""

from glassformer.generation.decoder import Decoder, PrefillResult, SupportsPrefill
from glassformer.generation.engine import write, write_all
from glassformer.generation.greedy import decode_all, greedy
from glassformer.generation.inference_model import prefill
from glassformer.generation.settings import Decoding, decoding_from
from glassformer.generation.tree import Node, Tree
from glassformer.generation.written import Written

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
    "prefill",
    "PrefillResult",
    "SupportsPrefill",
    "Decoder",
]
