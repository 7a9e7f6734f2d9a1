"""Generation settings, named as in transformers, and how those of a model folder and a caller are merged.

Values are validated once, when a `GenerationConfig` is created.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from typing import Any, Final, Literal, TypedDict, get_args

from glassformer.errors import ConflictError, InvalidValueError, UnknownNameError, UnsupportedError
from glassformer.schema import in_interval, matches_type, setting

LengthFormula = Literal["hf", "fairseq", "paper"]
EarlyStopping = bool | Literal["never"]
PYTHON: dict[str, Any] = {"edges": ()}  # not on the command line and not in requests
BEAMS: dict[str, Any] = {"beams": True}  # not of a chat, which has no beam search


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
    guidance_scale: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
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

    Commands, requests and `GenerationOptions` have the same fields; min, max: narrower bounds of a request.

    >>> GenerationConfig(num_beams=4, length_penalty=0.6).num_beams
    4
    """

    max_new_tokens: int | None = setting(
        None, "Maximum number of generated tokens (default: the model's limit).", interval="[0, inf)", min=1
    )
    min_new_tokens: int = setting(0, "Minimum number of generated tokens.", interval="[0, inf)", **BEAMS)
    max_length: int | None = setting(
        None,
        "Maximum length with the prompt; max_new_tokens takes precedence.",
        interval="[0, inf)",
        **PYTHON,
    )
    min_length: int = setting(
        0, "Minimum length with the prompt; min_new_tokens takes precedence.", interval="[0, inf)", **PYTHON
    )
    num_beams: int = setting(
        1, "Number of beams; 1 means no beam search.", interval="[1, inf)", max=16, **BEAMS
    )
    num_return_sequences: int = setting(
        1,
        "Number of texts per input, at most num_beams without sampling; needs --json.",
        interval="[1, inf)",
        edges=("command",),
        **BEAMS,
    )
    do_sample: bool = setting(False, "Sample instead of taking the most likely token.")
    temperature: float = setting(
        1.0, "Sampling temperature; below 1 is more conservative.", interval="(0, inf)", min=0.001, max=100
    )
    top_k: int = setting(0, "Sample from the k most likely tokens; 0: off.", interval="[0, inf)")
    top_p: float = setting(
        1.0,
        "Sample from the smallest set of top tokens with this cumulative probability; 1: off.",
        interval="(0, 1]",
    )
    min_p: float = setting(
        0.0,
        "Sample from tokens with at least this fraction of the top probability; 0: off.",
        interval="[0, 1]",
    )
    seed: int | None = setting(None, "Random seed for sampling.", interval="[0, inf)", max=2**63 - 1)
    guidance_scale: float = setting(
        1.0,
        "Classifier-free guidance: how strongly tokens follow the prompt rather than a negative one; 1: off.",
        interval="[0, inf)",
        **PYTHON,
    )
    repetition_penalty: float = setting(
        1.0,
        "Repetition penalty; above 1 discourages repeated tokens.",
        interval="(0, inf)",
        min=0.01,
        max=100,
    )
    presence_penalty: float = setting(
        0.0, "From -2 to 2; above 0 discourages tokens that were generated.", interval="[-2, 2]"
    )
    frequency_penalty: float = setting(
        0.0, "From -2 to 2; above 0 discourages tokens that were generated often.", interval="[-2, 2]"
    )
    logit_bias: tuple[tuple[int, float], ...] = setting(
        (),
        "Biases from -100 to 100 that are added to the logits of tokens, by their ids.",
        edges=("route",),
        min=-100,
        max=100,
        max_items=1024,
    )
    no_repeat_ngram_size: int = setting(
        0, "Never repeat an n-gram of this size; 0: off.", interval="[0, inf)"
    )
    length_penalty: float = setting(
        1.0,
        "Length penalty of beam search; above 0 favors longer texts.",
        interval="[-10, 10]",  # bounds the penalty, so that length ** penalty is finite in float32
        **BEAMS,
    )
    length_formula: LengthFormula = setting(
        "hf",
        "Divisor of a finished beam's log-probability for n tokens, including the end token: hf and fairseq "
        "n ** penalty, paper ((5 + n) / 6) ** penalty.",
        **BEAMS,
    )
    early_stopping: EarlyStopping = setting(
        False,
        "Stop beam search when num_beams results are finished (true), when no better one is likely (false), "
        "or when none is possible (never).",
        **BEAMS,
    )
    stop_strings: tuple[str, ...] = setting(
        (),
        "Stop at this string, which is not part of the text.",
        flag="--stop",
        max_items=4,
        max_length=256,
        single=True,
    )
    suppress_tokens: tuple[int, ...] = setting((), "Ids of tokens that are never generated.", **PYTHON)
    forced_bos_token_id: int | None = setting(
        None, "Id of the first generated token.", interval="[0, inf)", **PYTHON
    )
    forced_eos_token_id: int | None = setting(
        None,
        "Id of the last token of a sequence that reaches its maximum length.",
        interval="[0, inf)",
        **PYTHON,
    )
    renormalize_logits: bool = setting(
        False, "Normalize the logits again after all logits processors.", **PYTHON
    )

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

    @property
    def decoder_rows(self) -> int:
        """Number of rows per input that the decoder runs: with guidance, each row runs twice."""
        return self.rows if self.guidance_scale == 1 else 2 * self.rows


def _is_int(value: Any) -> bool:
    return matches_type(value, int) and value.bit_length() <= 64


def _is_number(value: Any) -> bool:
    return matches_type(value, float)


def _is_bias(pair: Any) -> bool:
    return matches_type(pair, tuple[int, float]) and 0 <= pair[0] < 2**64 and abs(pair[1]) <= 100


_OPTIONAL: Final = {field.name for field in fields(GenerationConfig) if "None" in str(field.type)}


def _number_check(field: Field[Any]) -> tuple[Callable[[Any], bool], str]:
    """Return the check of a number in the interval of its field."""
    interval, is_kind = field.metadata["interval"], _is_int if "int" in str(field.type) else _is_number
    kind = "an integer" if is_kind is _is_int else "a number"
    hint = " (for greedy decoding, set do_sample to false)" if field.name == "temperature" else ""
    return lambda x: is_kind(x) and in_interval(x, interval), f"{kind} in {interval}{hint}"


_CHECKS: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    **{one.name: _number_check(one) for one in fields(GenerationConfig) if one.metadata["interval"]},
    **dict.fromkeys(("do_sample", "renormalize_logits"), (lambda x: matches_type(x, bool), "true or false")),
    "logit_bias": (
        lambda x: matches_type(x, tuple[tuple[Any, ...], ...]) and all(map(_is_bias, x)),
        "token ids, each with a bias from -100 to 100",
    ),
    "length_formula": (lambda x: x in get_args(LengthFormula), " or ".join(get_args(LengthFormula))),
    "early_stopping": (lambda x: matches_type(x, bool) or x == "never", "true, false or 'never'"),
    "stop_strings": (
        lambda x: matches_type(x, tuple[str, ...]) and all(x),
        "a tuple of non-empty strings",
    ),
    "suppress_tokens": (
        lambda x: matches_type(x, tuple[int, ...]) and all(_is_int(token) and token >= 0 for token in x),
        "a tuple of token ids",
    ),
}
_NAMES: Final = tuple(field.name for field in fields(GenerationConfig))
_TUPLES: Final = ("stop_strings", "suppress_tokens", "logit_bias")
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
        values[name] = _as_tuple(name, value) if name in _TUPLES else value
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
        elif name in _TUPLES:
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
    if isinstance(value, Mapping):  # JSON has only strings as keys
        return tuple(
            (int(key) if re.fullmatch(r"\d{1,18}", str(key)) else key, item) for key, item in value.items()
        )
    _check(name, value, isinstance(value, Iterable), "a list")
    return tuple(value)


def _check(name: str, value: Any, valid: bool, expected: str) -> None:
    if not valid:
        raise InvalidValueError(name, value, expected)
