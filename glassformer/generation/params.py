"""Inputs and outputs of `generate`, `generate_batched` and the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Final, NamedTuple, Protocol

import torch
from torch import Tensor

from glassformer.errors import (
    ConflictError,
    InvalidValueError,
    MissingValueError,
    NonFiniteError,
    UnsupportedError,
)
from glassformer.generation.config import GenerationConfig
from glassformer.generation.generators import RandomGenerator, RowGenerators
from glassformer.generation.search_tree import SearchTree
from glassformer.generation.stopping_criteria import FinishReason

MAX_TOP_LOGPROBS: Final = 100


class GeneratedToken(NamedTuple):
    """A token that was just chosen."""

    row: int  # index among all outputs: inputs times num_return_sequences
    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # the most likely tokens and their log-probs, best first


class ConstraintState(Protocol):
    """What one sequence has generated under a constraint."""

    def mask(self, vocab_size: int) -> Tensor:
        """Return which tokens may follow, (V,) bool on the CPU; at least one."""
        ...

    def append(self, token: int) -> None:
        """Add a generated token; tokens after the end are ignored."""
        ...

    def copy(self) -> ConstraintState: ...


class TokenConstraint(Protocol):
    """A rule for the generated tokens, e.g. a JSON schema."""

    def start(self) -> ConstraintState:
        """Return the state of a new sequence."""
        ...


@dataclass(frozen=True, kw_only=True)
class GenerationParams:
    """Parameters of a generation, besides the model and its inputs.

    eos_token_id: one or several tokens that end a sequence; None: sequences end only by length.
    pad_token_id: pads the inputs, on either side; an attention mask takes precedence.
    start_ids: first input tokens of an encoder-decoder's decoder; by default from the model's spec. They are
    not part of the output.
    prefix_ids: tokens that every sequence begins with. They are part of the output, with log-prob 0.
    max_new_tokens: maximum number of generated tokens, including the end token, or a function of the input's
    length; by default from the config. A row ends earlier if the model has no more positions.
    decode: ids to text, needed for `stop_strings`; the tokens that complete a stop string stay in `ids`.
    constraint: rule for the generated tokens; it takes precedence over forced end tokens and minimum lengths.
    top_logprobs: number of most likely tokens that are passed to `on_token` with each token.
    seeds: one for each input, whose tokens are then sampled with its own generator on the CPU: they are the
    same alone, in a batch and on every device.
    on_token: called with each token as soon as it is chosen, but not with end tokens.
    """

    config: GenerationConfig = field(default_factory=GenerationConfig)
    eos_token_id: int | Sequence[int] | None = None
    pad_token_id: int = 0
    start_ids: int | Sequence[int] | None = None
    prefix_ids: Sequence[int] | None = None
    max_new_tokens: int | Callable[[int], int] | None = None
    decode: Callable[[list[int]], str] | None = None
    return_tree: bool = False
    constraint: TokenConstraint | None = None
    top_logprobs: int = 0
    seeds: Sequence[int] | None = None
    on_token: Callable[[GeneratedToken], object] | None = None

    def __post_init__(self) -> None:
        if self.config.stop_strings and self.decode is None:
            raise MissingValueError("decode", "to find stop strings in the generated text")
        if not 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS:
            raise InvalidValueError("top_logprobs", self.top_logprobs, f"from 0 to {MAX_TOP_LOGPROBS}")
        if self.config.num_beams > 1 and (self.top_logprobs or self.on_token is not None):
            raise UnsupportedError("beam search", "streaming tokens", hint="set num_beams to 1")
        if self.config.rows > 1 and self.seeds is not None:
            raise ConflictError(("seeds", "num_return_sequences"), "a seed generates one sequence")
        if self.config.num_beams > 1 and self.constraint is not None:
            raise UnsupportedError("beam search", "structured output", hint="set num_beams to 1")

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens that end a sequence."""
        return (self.eos_token_id,) if isinstance(self.eos_token_id, int) else tuple(self.eos_token_id or ())

    def limit(self, input_length: int, read: int) -> int:
        """Return the maximum number of new tokens. read: prompt or start tokens, counted in max_length."""
        config, limit = self.config, self.max_new_tokens
        if callable(limit):
            limit = limit(input_length)
        if limit is None:
            limit = config.max_new_tokens
        if limit is None and config.max_length is not None:
            limit = config.max_length - read
        if limit is None:
            raise MissingValueError("max_new_tokens", "to bound the generation")
        return max(0, limit)

    def prefix(self, starts: Sequence[int]) -> tuple[int, ...]:
        """Return the forced first tokens. starts: the decoder's start tokens."""
        if self.prefix_ids is None and self.config.forced_bos_token_id is not None and len(starts) == 1:
            return (self.config.forced_bos_token_id,)
        return tuple(self.prefix_ids or ())

    def check_forced_ids(self, vocab_size: int) -> None:
        """Raise if a forced or biased token is not in the vocabulary."""
        config, expected = self.config, f"a token id from 0 to {vocab_size - 1}"
        forced = (*(self.prefix_ids or ()), config.forced_bos_token_id, config.forced_eos_token_id)
        for token in forced:
            if token is not None and not 0 <= token < vocab_size:
                raise InvalidValueError("forced token", token, expected)
        for token, _ in config.logit_bias:
            if token >= vocab_size:
                raise InvalidValueError("logit_bias", token, expected)

    def generator(self, device: torch.device) -> RandomGenerator:
        """Create a random generator from the seed; None (torch's global generator) without a seed."""
        if self.seeds is not None:
            return RowGenerators(self.seeds)
        seed = self.config.seed
        return None if seed is None else torch.Generator(device).manual_seed(seed)


@dataclass(frozen=True, kw_only=True)
class GenerationOutput:
    """One generated sequence."""

    ids: list[int]  # without the prompt and the end token
    score: float  # a beam's sum of log-probs over its length term; the sum itself otherwise
    logprobs: list[float]  # one per id, and one for the end token if there is one
    finish_reason: FinishReason
    tree: SearchTree | None = None

    def check_finite(self) -> None:
        """Raise if the model's scores were NaN."""
        if isnan(self.score):
            raise NonFiniteError(
                "the scores of the generated tokens",
                hint="the model overflowed, or every token is suppressed; try dtype float32",
            )
