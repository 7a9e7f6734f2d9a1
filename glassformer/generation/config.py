"""Generation settings, named as in transformers, and how those of a model folder and a caller are merged.

Values are validated once, when a `GenerationConfig` is created.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, TypedDict, get_args

from glassformer.errors import ConflictError, InvalidValueError, UnknownNameError, UnsupportedError

LengthFormula = Literal["hf", "fairseq", "paper"]
EarlyStopping = bool | Literal["never"]


class GenerationOptions(TypedDict, total=False):
    """The fields of `GenerationConfig` as keyword arguments; None means that the field is not set."""

    max_new_tokens: int | None
    min_new_tokens: int | None
    max_length: int | None
    min_length: int | None
    num_beams: int | None
    num_return_sequences: int | None
    do_sample: bool | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int | None
    repetition_penalty: float | None
    no_repeat_ngram_size: int | None
    length_penalty: float | None
    length_formula: LengthFormula | None
    early_stopping: EarlyStopping | None
    stop_strings: str | Sequence[str] | None
    suppress_tokens: Sequence[int] | None
    forced_bos_token_id: int | None
    forced_eos_token_id: int | None
    renormalize_logits: bool | None


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """Generation settings. `num_beams=1` without `do_sample` is greedy decoding.

    max_new_tokens: maximum number of generated tokens; None: the model's limit
    min_new_tokens: minimum number of generated tokens
    max_length, min_length: the same bounds including the prompt or the decoder's start tokens; max_new_tokens
    takes precedence
    num_beams: number of beams; 1 means no beam search
    num_return_sequences: number of results per input, at most num_beams without sampling
    do_sample: sample instead of taking the most likely token
    temperature: divides the logits before sampling; below 1 is more conservative
    top_k: sample from the k most likely tokens; 0: off
    top_p: sample from the smallest set of tokens with this total probability; 1: off
    min_p: sample from tokens with at least this fraction of the top probability; 0: off
    seed: seed of the sampling; None: a random one
    repetition_penalty: divides the positive and multiplies the negative logits of tokens that occurred; 1:
    off
    no_repeat_ngram_size: never generate an n-gram of this size twice; 0: off
    length_penalty: exponent of the length in the beam score; above 0 favors longer results
    length_formula: divisor of a finished beam's log-probability for n tokens, including the end token: "hf"
    and
    "fairseq" n ** penalty, "paper" ((5 + n) / 6) ** penalty
    early_stopping: stop when num_beams results are finished (True), when no better one is likely (False), or
    when none is possible ("never")
    stop_strings: end the text before one of these strings
    suppress_tokens: token ids that are never generated
    forced_bos_token_id: id of the first generated token
    forced_eos_token_id: id of the last token of a sequence that reaches its maximum length
    renormalize_logits: normalize the logits again after all logits processors

    >>> GenerationConfig(num_beams=4, length_penalty=0.6).num_beams
    4
    """

    max_new_tokens: int | None = None
    min_new_tokens: int = 0
    max_length: int | None = None
    min_length: int = 0
    num_beams: int = 1
    num_return_sequences: int = 1
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    length_penalty: float = 1.0
    length_formula: LengthFormula = "hf"
    early_stopping: EarlyStopping = False
    stop_strings: tuple[str, ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | None = None
    renormalize_logits: bool = False

    def __post_init__(self) -> None:
        for name, (allowed, expected) in _CHECKS.items():
            value = getattr(self, name)
            if not (value is None and name in _OPTIONAL):
                _check(name, value, allowed(value), expected)
        if not self.do_sample and self.num_return_sequences > self.num_beams:
            raise ConflictError(
                ("num_return_sequences", "num_beams"),
                f"{self.num_return_sequences} sequences cannot come from {self.num_beams} beams",
                hint="increase num_beams, or set do_sample",
            )
        if self.max_new_tokens is not None and self.min_new_tokens > self.max_new_tokens:
            raise ConflictError(
                ("min_new_tokens", "max_new_tokens"),
                f"the minimum {self.min_new_tokens} is above the maximum {self.max_new_tokens}",
            )

    @property
    def rows(self) -> int:
        """Number of batch rows per input: its beams, or its samples."""
        return self.num_beams if self.num_beams > 1 else self.num_return_sequences


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value.bit_length() <= 64


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_OPTIONAL: Final = {"max_new_tokens", "max_length", "seed", "forced_bos_token_id", "forced_eos_token_id"}
_CHECKS: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    **{
        name: (lambda x: _is_int(x) and x >= 0, "an integer of at least 0")
        for name in ("min_new_tokens", "min_length", "top_k", "no_repeat_ngram_size", *_OPTIONAL)
    },
    **{
        name: (lambda x: _is_int(x) and x >= 1, "an integer of at least 1")
        for name in ("num_beams", "num_return_sequences")
    },
    **{
        name: (lambda x: isinstance(x, bool), "true or false") for name in ("do_sample", "renormalize_logits")
    },
    "temperature": (
        lambda x: _is_number(x) and x > 0,
        "a number above 0 (for greedy decoding, set do_sample to false)",
    ),
    "top_p": (lambda x: _is_number(x) and 0 < x <= 1, "a number above 0 and at most 1"),
    "min_p": (lambda x: _is_number(x) and 0 <= x <= 1, "a number from 0 to 1"),
    "repetition_penalty": (lambda x: _is_number(x) and x > 0, "a number above 0 (1: off)"),
    # bounds the penalty, so that length ** penalty is finite in float32
    "length_penalty": (lambda x: _is_number(x) and abs(x) <= 10, "a number from -10 to 10"),
    "length_formula": (lambda x: x in get_args(LengthFormula), " or ".join(get_args(LengthFormula))),
    "early_stopping": (lambda x: isinstance(x, bool) or x == "never", "true, false or 'never'"),
    "stop_strings": (
        lambda x: isinstance(x, tuple) and all(isinstance(text, str) and text for text in x),
        "a tuple of non-empty strings",
    ),
    "suppress_tokens": (
        lambda x: isinstance(x, tuple) and all(_is_int(token) and token >= 0 for token in x),
        "a tuple of token ids",
    ),
}
_NAMES: Final = tuple(field.name for field in fields(GenerationConfig))
_SAMPLING_ONLY: Final = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}

# Keys of a generation_config.json that do not decide which tokens are generated, or are read elsewhere.
_IGNORED = frozenset(
    "bos_token_id eos_token_id pad_token_id decoder_start_token_id transformers_version use_cache "
    "cache_implementation cache_config return_legacy_cache return_dict_in_generate output_attentions "
    "output_hidden_states output_scores output_logits low_memory disable_compile compile_config "
    "prefill_chunk_size num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold "
    "assistant_early_exit assistant_lookbehind target_lookbehind prompt_lookup_num_tokens "
    "max_matching_ngram_size is_assistant lang_to_id task_to_id no_timestamps_token_id "
    "remove_invalid_values".split()
)
# Unsupported keys, and the values at which they change nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "num_beam_groups": (1,),
    "diversity_penalty": (0,),
    "typical_p": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "encoder_repetition_penalty": (1,),
    "encoder_no_repeat_ngram_size": (0,),
    "guidance_scale": (1,),
    "penalty_alpha": (0,),
    "token_healing": (False,),
    "begin_suppress_tokens": ([],),
    "forced_decoder_ids": ([],),
    "constraints": ([],),
    "sequence_bias": ([], {}),
}


def merge_generation_config(
    published: Mapping[str, Any], options: Mapping[str, object] | GenerationOptions
) -> GenerationConfig:
    """Merge a folder's generation_config.json with the caller's options, which take precedence unless None.

    published: the contents of generation_config.json
    options: fields of GenerationConfig

    >>> merge_generation_config({"num_beams": 6, "max_length": 512}, {"num_beams": 2}).num_beams
    2
    """
    overrides = {name: value for name, value in options.items() if value is not None}
    for name in overrides:
        if name not in _NAMES:
            raise UnknownNameError("generation option", name, _NAMES)
    values = _read_published(published)
    # a maximum or minimum from the file applies unless the caller sets one
    for name, other in (("max_new_tokens", "max_length"), ("min_new_tokens", "min_length")):
        if name in overrides:
            values.pop(other, None)
        if other in overrides:
            values.pop(name, None)
    if "num_beams" in overrides or "do_sample" in overrides:
        values.pop("num_return_sequences", None)  # refers to the num_beams of the file
    least, most = values.get("min_new_tokens"), overrides.get("max_new_tokens")
    if isinstance(least, int) and isinstance(most, int):
        values["min_new_tokens"] = max(0, min(least, most))
    for name, value in overrides.items():
        values[name] = _as_tuple(name, value) if name in ("stop_strings", "suppress_tokens") else value
    config = GenerationConfig(**values)
    for name, neutral in _SAMPLING_ONLY.items():
        if overrides.get(name, neutral) != neutral and not config.do_sample:
            raise ConflictError(
                (name, "do_sample"),
                f"{name} only applies to sampling",
                hint=f"set do_sample, or leave out {name}",
            )
    return config


def _read_published(published: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a generation_config.json sets; raise if it sets something unsupported."""
    values: dict[str, Any] = {}
    for name, value in published.items():
        if value is None or name in _IGNORED or name.startswith("_"):
            continue
        if name == "bad_words_ids":
            never = _single_tokens(value, published.get("eos_token_id"))
            values["suppress_tokens"] = (*values.get("suppress_tokens", ()), *never)
        elif name == "suppress_tokens":
            never = tuple(token for token in _as_tuple(name, value) if not (_is_int(token) and token < 0))
            values[name] = (*values.get(name, ()), *never)
        elif name == "stop_strings":
            values[name] = _as_tuple(name, value)
        elif name in _NAMES:
            values[name] = value
        elif name not in _NEUTRAL or value not in _NEUTRAL[name]:
            raise UnsupportedError(
                "generation", f"{name} = {value!r}", hint="remove it from generation_config.json"
            )
    return values


def _single_tokens(bad_words: Any, eos: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return the tokens of bad_words_ids, which must be single tokens; end tokens are left out."""
    lists = isinstance(bad_words, list) and all(isinstance(word, list) for word in bad_words)
    _check("bad_words_ids", bad_words, lists, "a list of lists of token ids")
    if any(len(word) != 1 for word in bad_words):
        raise UnsupportedError(
            "generation",
            "bad_words_ids of several tokens",
            hint="remove them from generation_config.json; single tokens can be suppressed",
        )
    ends = {eos} if isinstance(eos, int) else set(eos or ())
    return tuple(word[0] for word in bad_words if word[0] not in ends)


def _as_tuple(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str):
        return (value,)
    _check(name, value, isinstance(value, Iterable), "a list")
    return tuple(value)


def _check(name: str, value: Any, valid: bool, expected: str) -> None:
    if not valid:
        raise InvalidValueError(name, value, expected)
