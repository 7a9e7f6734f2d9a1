"""Token generation: greedy decoding, sampling and beam search, from a source or a prompt."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassformer.generation.config import (
        GenerationConfig,
        GenerationOptions,
        merge_generation_config,
    )
    from glassformer.generation.engine import generate, generate_batched
    from glassformer.generation.inference_model import prefill
    from glassformer.generation.params import GeneratedToken, GenerationOutput, GenerationParams
    from glassformer.generation.prompt import EmbeddingSpan, Prompt
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
    "EmbeddingSpan",
    "Prompt",
    "SearchTree",
    "SearchNode",
    "prefill",
    "PrefillResult",
    "SupportsPrefill",
    "StepDecoder",
]
# imported on first use, so that the options can be listed without torch
_MODULE_OF = {
    **dict.fromkeys(("GenerationConfig", "GenerationOptions", "merge_generation_config"), "config"),
    **dict.fromkeys(("GenerationParams", "GenerationOutput", "GeneratedToken"), "params"),
    **dict.fromkeys(("generate", "generate_batched"), "engine"),
    **dict.fromkeys(("EmbeddingSpan", "Prompt"), "prompt"),
    **dict.fromkeys(("SearchTree", "SearchNode"), "search_tree"),
    **dict.fromkeys(("prefill",), "inference_model"),
    **dict.fromkeys(("PrefillResult", "StepDecoder", "SupportsPrefill"), "step_decoder"),
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'glassformer.generation' has no attribute '{name}'")
    return getattr(import_module(f"glassformer.generation.{_MODULE_OF[name]}"), name)
