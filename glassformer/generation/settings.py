"""How to write: the settings of greedy, sampled and beam decoding, under Hugging Face's names.

What a name means there it means here. A value that means nothing is refused with a sentence when the
settings are made, so that nothing below needs to check again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Literal

from glassformer.errors import GlassformerError

LengthFormula = Literal["hf", "fairseq", "paper"]


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """Settings of one decoding. `num_beams` 1 without `do_sample` is greedy.

    >>> Decoding(num_beams=4, length_penalty=0.6).num_beams
    4
    """

    max_new_tokens: int | None = None  # None: whoever writes says how many
    min_new_tokens: int = 0
    num_beams: int = 1
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0  # 0 is off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    length_penalty: float = 1.0
    # what a finished beam's log-probability is divided by, n tokens counted with the end token:
    # hf and fairseq n ** penalty, paper ((5 + n) / 6) ** penalty
    length_formula: LengthFormula = "hf"
    early_stopping: bool | Literal["never"] = False
    num_return_sequences: int = 1
    seed: int | None = None
    stop: tuple[str, ...] = ()
    # the same bounds with the prompt's or the start's tokens counted; max_new_tokens goes before max_length
    max_length: int | None = None
    min_length: int = 0
    forced_bos_token_id: int | None = None  # the first token after a start of one token
    forced_eos_token_id: int | None = None  # the last token where the length ends a row
    suppress_tokens: tuple[int, ...] = ()  # never written
    renormalize_logits: bool = False  # log-probabilities sum to one again after all this

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "max_length", "forced_bos_token_id", "forced_eos_token_id", "seed"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), 0)
        for name in ("min_new_tokens", "top_k", "no_repeat_ngram_size", "min_length"):
            _whole(name, getattr(self, name), 0)
        for name in ("num_beams", "num_return_sequences"):
            _whole(name, getattr(self, name), 1)
        for name in ("do_sample", "renormalize_logits"):
            if not isinstance(getattr(self, name), bool):
                raise GlassformerError(f"{name} must be true or false; got {getattr(self, name)!r}")
        for name in ("temperature", "repetition_penalty"):
            if _number(name, getattr(self, name)) <= 0:
                raise GlassformerError(f"{name} must be above 0; got {getattr(self, name)!r}{_HINTS[name]}")
        _number("length_penalty", self.length_penalty)
        if not 0 < _number("top_p", self.top_p) <= 1:
            raise GlassformerError(
                f"top_p must lie above 0 and at most at 1 (1 keeps all); got {self.top_p!r}"
            )
        if not 0 <= _number("min_p", self.min_p) <= 1:
            raise GlassformerError(f"min_p must lie between 0 (off) and 1; got {self.min_p!r}")
        _one_of("length_formula", self.length_formula, ("hf", "fairseq", "paper"))
        _one_of("early_stopping", self.early_stopping, (True, False, "never"))
        if isinstance(self.stop, str) or not all(isinstance(text, str) and text for text in self.stop):
            raise GlassformerError(f"stop must be a tuple of texts that are not empty; got {self.stop!r}")
        for token in self.suppress_tokens:
            _whole("suppress_tokens", token, 0)
        if not self.do_sample and self.num_return_sequences > self.num_beams:
            raise GlassformerError(
                f"num_return_sequences {self.num_return_sequences} is more than num_beams {self.num_beams}; "
                "raise --num-beams (`num_beams`), or sample with --do-sample (`do_sample=True`)"
            )
        if self.max_new_tokens is not None and self.min_new_tokens > self.max_new_tokens:
            raise GlassformerError(
                f"min_new_tokens {self.min_new_tokens} is more than max_new_tokens {self.max_new_tokens}"
            )


_HINTS = {
    "temperature": "; for the likeliest token each time say --no-do-sample (`do_sample=False`) in its place",
    "repetition_penalty": "; 1 is off",
}
_MOST = 1 << 63  # larger numbers do not go into the integers that are computed with
_NAMES = tuple(field.name for field in fields(Decoding))
_ONLY_SAMPLING = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}

# Of a generation config: what says nothing about which tokens are written, or is read elsewhere.
_ELSEWHERE = frozenset(
    "bos_token_id eos_token_id pad_token_id decoder_start_token_id transformers_version use_cache "
    "cache_implementation cache_config return_legacy_cache return_dict_in_generate output_attentions "
    "output_hidden_states output_scores output_logits low_memory disable_compile compile_config "
    "prefill_chunk_size num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold "
    "assistant_early_exit assistant_lookbehind target_lookbehind prompt_lookup_num_tokens "
    "max_matching_ngram_size is_assistant lang_to_id task_to_id no_timestamps_token_id "
    "remove_invalid_values".split()
)
# What we do not do; harmless at these values.
_OFF: dict[str, tuple[Any, ...]] = {
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


def decoding_from(generation_config: Mapping[str, Any], **given: Any) -> Decoding:
    """What a folder's generation_config.json says, and over it what was given; None is not given.

    >>> decoding_from({"num_beams": 6, "max_length": 512}, num_beams=2).num_beams
    2
    """
    words: dict[str, Any] = {}
    for name, value in generation_config.items():
        if value is None or name in _ELSEWHERE or name.startswith("_"):
            continue
        if name == "bad_words_ids":
            words["suppress_tokens"] = (*words.get("suppress_tokens", ()), *_single(value, generation_config))
        elif name == "suppress_tokens":
            words[name] = (*words.get(name, ()), *(token for token in value if token >= 0))
        elif name == "stop_strings":
            words["stop"] = (value,) if isinstance(value, str) else tuple(value)
        elif name in _NAMES:
            words[name] = value
        elif name not in _OFF or value not in _OFF[name]:
            raise GlassformerError(
                f"generation_config.json asks for {name} = {value!r}, which is not known here; "
                "take it out of the file"
            )
    # the bounds of the file hold unless the same kind of bound was given
    for name, other in (("max_new_tokens", "max_length"), ("min_new_tokens", "min_length")):
        if given.get(name) is not None:
            words.pop(other, None)
        if given.get(other) is not None:
            words.pop(name, None)
    if given.get("num_beams") is not None or given.get("do_sample") is not None:
        # how many the file wants to see does not bind another way of searching
        words.pop("num_return_sequences", None)
    least, most = words.get("min_new_tokens"), given.get("max_new_tokens")
    if least is not None and most is not None:
        words["min_new_tokens"] = min(least, most)
    for name, value in given.items():
        if name not in _NAMES:
            near = get_close_matches(name, _NAMES, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise GlassformerError(f"decoding has no setting {name!r}{hint}")
        if value is not None:
            words[name] = (value,) if name == "stop" and isinstance(value, str) else value
    for name in ("stop", "suppress_tokens"):
        if isinstance(words.get(name), list):
            words[name] = tuple(words[name])
    settings = Decoding(**words)
    for name, off in _ONLY_SAMPLING.items():
        if given.get(name) not in (None, off) and not settings.do_sample:
            raise GlassformerError(
                f"{name} only has a say in sampling; add --do-sample (`do_sample=True`), or leave {name} out"
            )
    return settings


def _single(bad: Sequence[Sequence[int]], config: Mapping[str, Any]) -> tuple[int, ...]:
    """The tokens of bad_words_ids, each a word by itself; an end token is never a bad word."""
    longer = next((word for word in bad if len(word) != 1), None)
    if longer is not None:
        raise GlassformerError(
            f"generation_config.json forbids the tokens {list(longer)} in a row (bad_words_ids); "
            "only single tokens can be forbidden here: take it out of the file"
        )
    ends = config.get("eos_token_id")
    kept = {ends} if isinstance(ends, int) else set(ends or ())
    return tuple(word[0] for word in bad if word[0] not in kept)


def _whole(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise GlassformerError(f"{name} must be a whole number, {least} or more; got {value!r}")


def _number(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise GlassformerError(f"{name} must be a finite number; got {value!r}")
    if abs(value) >= _MOST:
        raise GlassformerError(f"{name} must be a number below 2^63; got {value!r:.40}")
    return value


def _one_of(name: str, value: Any, known: Sequence[Any]) -> None:
    # 1 == True, and neither a number nor its text is meant
    if not any(value == one and type(value) is type(one) for one in known):
        told = ", ".join(map(repr, known))
        raise GlassformerError(f"{name} must be one of {told}; got {value!r}")
