"""Token generation: greedy decoding, sampling and beam search, from a source or a prompt."""

from glassformer.generation.config import GenerationConfig, GenerationOptions, merge_generation_config
from glassformer.generation.decoder import Decoder, PrefillResult, SupportsPrefill
from glassformer.generation.engine import generate, generate_batched
from glassformer.generation.inference_model import prefill
from glassformer.generation.request import GenerationOutput, GenerationRequest, Token
from glassformer.generation.search_tree import SearchNode, SearchTree

__all__ = [
    "GenerationConfig",
    "GenerationOptions",
    "merge_generation_config",
    "GenerationRequest",
    "GenerationOutput",
    "Token",
    "generate",
    "generate_batched",
    "SearchTree",
    "SearchNode",
    "prefill",
    "PrefillResult",
    "SupportsPrefill",
    "Decoder",
]
