"""Token generation: greedy decoding, sampling and beam search, from a source or a prompt."""

from glassformer.generation.config import GenerationConfig, GenerationOptions, merge_generation_config
from glassformer.generation.engine import generate, generate_batched
from glassformer.generation.inference_model import prefill
from glassformer.generation.params import GeneratedToken, GenerationOutput, GenerationParams
from glassformer.generation.search_tree import SearchNode, SearchTree
from glassformer.generation.step_decoder import PrefillResult, StepDecoder, SupportsPrefill

__all__ = [
    "GenerationConfig",
    "GenerationOptions",
    "merge_generation_config",
    "GenerationParams",
    "GenerationOutput",
    "GeneratedToken",
    "generate",
    "generate_batched",
    "SearchTree",
    "SearchNode",
    "prefill",
    "PrefillResult",
    "SupportsPrefill",
    "StepDecoder",
]
