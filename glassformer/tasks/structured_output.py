"""Structured output: constrain generated tokens to a JSON schema, with llguidance.

The constraint masks at every step the tokens that cannot continue a JSON value of the schema. The end token
is allowed only when the value is complete, so an output that did not reach the token limit is valid.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from glassformer.errors import InvalidValueError, MissingDependencyError, UnsupportedError
from glassformer.tokenization import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

JSONSchema = Mapping[str, Any]
ANY_OBJECT: JSONSchema = {"type": "object"}
# one space, or a line break with indentation: a model must not fill its output with spaces
WHITESPACE = r"\x20|\x0A[\x20\x09]{0,32}"
_tables: WeakKeyDictionary[Tokenizer, tuple[tuple[int, ...], LLTokenizer]] = WeakKeyDictionary()


class JSONConstraint:
    """Allow only JSON values of a schema; implements `TokenConstraint`.

    schema: a JSON schema. Keywords that cannot be enforced, e.g. uniqueItems, are errors.
    eos_ids: tokens that end a sequence
    """

    def __init__(self, tokenizer: Tokenizer, schema: JSONSchema, eos_ids: Sequence[int]) -> None:
        try:
            from llguidance import LLMatcher
        except ImportError:
            raise MissingDependencyError("llguidance", "structured") from None
        if not isinstance(schema, Mapping):
            raise InvalidValueError("json_schema", type(schema).__name__, "a dict, the JSON schema")
        if not eos_ids:
            raise UnsupportedError("a model without an end token", "structured output")
        self._table, self._eos_ids = _token_table(tokenizer, tuple(eos_ids)), tuple(eos_ids)
        try:
            text = json.dumps(schema)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidValueError("json_schema", str(schema), f"JSON values ({error})") from error
        options: Any = {"whitespace_pattern": WHITESPACE}
        self._grammar = LLMatcher.grammar_from_json_schema(text, defaults=options)
        self._first = LLMatcher(self._table, self._grammar, log_level=0)
        if self._first.is_error():
            reason = next(iter(self._first.get_error().splitlines()), "")
            raise InvalidValueError("json_schema", text, f"a JSON schema that can be enforced ({reason})")
        self.start().mask(tokenizer.target_vocab_size)  # raises if the vocabulary cannot spell JSON

    def start(self) -> JSONState:
        """Return the state of a new sequence."""
        return JSONState(self._first.deep_copy(), self._eos_ids)


class JSONState:
    """The part of a JSON value that one sequence has generated."""

    def __init__(self, matcher: LLMatcher, eos_ids: tuple[int, ...]) -> None:
        self._matcher, self._eos_ids = matcher, eos_ids

    def mask(self, vocab_size: int) -> Tensor:
        """Return which tokens may follow, (V,)."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(bits, bitorder="little", count=min(vocab_size, 8 * len(bits)))
        mask = torch.zeros(vocab_size, dtype=torch.bool)
        mask[: len(allowed)] = torch.from_numpy(allowed.astype(bool))
        ended = self._matcher.is_stopped() or self._matcher.is_accepting()
        if not ended:
            mask[[token for token in self._eos_ids if token < vocab_size]] = False
        if self._matcher.is_error() or not bool(mask.any()):
            raise UnsupportedError(
                "the vocabulary of the model",
                "this JSON schema",
                hint="no token can continue the output, or the schema is too complex",
            )
        return mask

    def append(self, token: int) -> None:
        """Add a generated token; tokens after the end are ignored."""
        if not self._matcher.is_stopped():
            self._matcher.consume_token(token)

    def copy(self) -> JSONState:
        return JSONState(self._matcher.deep_copy(), self._eos_ids)


def _token_table(tokenizer: Tokenizer, eos_ids: tuple[int, ...]) -> LLTokenizer:
    """Return llguidance's table of the bytes of all tokens, cached."""
    from llguidance import LLTokenizer, TokenizerWrapper

    if (cached := _tables.get(tokenizer)) is None or cached[0] != eos_ids:
        cached = _tables[tokenizer] = (
            eos_ids,
            LLTokenizer(TokenizerWrapper(_TokenBytes(tokenizer, eos_ids)), eos_token=list(eos_ids)),
        )
    return cached[1]


class _TokenBytes:
    """What llguidance reads of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, eos_ids: tuple[int, ...]) -> None:
        parts = tokenizer.parts(range(tokenizer.target_vocab_size), side="target")
        special = tokenizer.special_ids | {n for n, part in enumerate(parts) if isinstance(part, str)}
        if len(special) == len(parts):  # the text of a token depends on its neighbors
            raise UnsupportedError("a tokenizer without byte or SentencePiece tokens", "structured output")
        self._tokenizer = tokenizer
        self.tokens = [part.encode() if isinstance(part, str) else part for part in parts]
        self.special_token_ids = sorted(n for n in special if n < len(parts))
        self.eos_token_id, self.bos_token_id = eos_ids[0], tokenizer.bos_id
        self._index = {token: n for n, token in enumerate(self.tokens) if n not in special and token}
        self._longest = max(map(len, self._index))

    def __call__(self, text: str) -> list[int]:
        """Encode a part of an output; llguidance prefers these tokens where the grammar leaves no choice."""
        if not isinstance(text, str):
            raise TypeError("expected a string")  # the wrapper tries bytes first
        ids = self._tokenizer.encode(text, special=False, side="target").ids
        data = text.encode()
        if b"".join(self.tokens[index] for index in ids) == data:
            return ids
        return self._longest_tokens(data)  # the tokenizer adds a space before a text

    def _longest_tokens(self, data: bytes) -> list[int]:
        ids, start = [], 0
        while start < len(data):
            ends = range(min(len(data), start + self._longest), start, -1)
            end = next((end for end in ends if data[start:end] in self._index), None)
            if end is None:
                break
            ids.append(self._index[data[start:end]])
            start = end
        return ids
