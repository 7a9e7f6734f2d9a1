"""Structured output: constrain generated tokens to a JSON schema, with llguidance.

The constraint masks at every step the tokens that cannot continue a JSON value of the schema. The end token
is allowed only when the value is complete, so an output that did not reach the token limit is valid.
"""

from __future__ import annotations

import hashlib
import json
import reprlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock, Timer
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
VENDOR_KEY = "x-guidance"  # options of llguidance, which could turn off errors about keywords it ignores
COMPILE_SECONDS = 3.5  # in which a schema must compile, however busy the machine is
MAX_ACCEPTED = 4096
_accepted: dict[bytes, None] = {}  # digests of schemas that compile within the limits, oldest first
_idle: list[subprocess.Popen[str]] = []  # processes that wait for a schema
_tables: WeakKeyDictionary[Tokenizer, tuple[tuple[int, ...], LLTokenizer]] = WeakKeyDictionary()


class JSONConstraint:
    """Allow only JSON values of a schema; implements `TokenConstraint`.

    schema: a JSON schema. Keywords that cannot be enforced, e.g. uniqueItems, are errors.
    eos_ids: tokens that end a sequence
    """

    def __init__(self, tokenizer: Tokenizer, schema: JSONSchema, eos_ids: Sequence[int]) -> None:
        check = SchemaCheck(schema)
        check.run()
        from glassformer.tasks.schema_compiler import compile_schema

        if not eos_ids:
            raise UnsupportedError("a model without an end token", "structured output")
        self._table, self._eos_ids = _token_table(tokenizer, tuple(eos_ids)), tuple(eos_ids)
        try:
            self._first = compile_schema(check.text, self._table)
        except ValueError as error:
            raise check.error(str(error)) from None
        self.start().mask(tokenizer.target_vocab_size)  # raises if the vocabulary cannot spell JSON

    def start(self) -> JSONState:
        """Return the state of a new sequence."""
        return JSONState(self._first.deep_copy(), self._eos_ids)


class SchemaCheck:
    """Compiles a schema within limits of time and memory, in a process; `cancel` ends it from any thread."""

    def __init__(self, schema: JSONSchema) -> None:
        self.schema, self.text = schema, ""
        self._process: subprocess.Popen[str] | None = None
        self._lock, self._canceled = Lock(), False

    def run(self) -> None:
        """Raise unless the schema compiles, or compiled before."""
        self.text = _schema_text(self.schema)
        digest = hashlib.sha256(self.text.encode()).digest()
        if digest in _accepted:
            return
        reason = self._compile()
        if reason:
            raise self.error(reason)
        _accepted[digest] = None
        while len(_accepted) > MAX_ACCEPTED:
            _accepted.pop(next(iter(_accepted)), None)

    def _compile(self) -> str:
        """Return the error of the compiler, empty if there is none."""
        process = _compiler_process()
        with self._lock:
            self._process = process
        if self._canceled:
            process.kill()
        timer = Timer(COMPILE_SECONDS, self.cancel)
        timer.start()
        try:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(f"{self.text}\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:
            answer = ""
        finally:
            timer.cancel()
            with self._lock:
                self._process = None
        if not answer:
            _end(process)
            return "it takes too much time or memory to compile"
        _idle.append(process)
        return str(json.loads(answer))

    def cancel(self) -> None:
        """End the compilation, if it is running."""
        self._canceled = True
        with self._lock:
            if self._process is not None:
                self._process.kill()

    def error(self, reason: str) -> InvalidValueError:
        return InvalidValueError("json_schema", self.text, f"a JSON schema that can be enforced ({reason})")


def _schema_text(schema: JSONSchema) -> str:
    """Return a schema as JSON on one line."""
    if not isinstance(schema, Mapping):
        raise InvalidValueError("json_schema", type(schema).__name__, "a dict, the JSON schema")
    if VENDOR_KEY in schema:
        raise InvalidValueError("json_schema", VENDOR_KEY, "the keywords of JSON Schema", "leave it out")
    try:
        return json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValueError("json_schema", reprlib.repr(schema), f"JSON values ({error})") from error


def _compiler_process() -> subprocess.Popen[str]:
    """Return a process that compiles schemas, an idle one if possible."""
    while _idle:
        process = _idle.pop()
        if process.poll() is None:
            return process
        _end(process)
    try:
        from glassformer.tasks import schema_compiler
    except ImportError:
        raise MissingDependencyError("llguidance", "structured") from None
    return subprocess.Popen(
        [sys.executable, "-P", str(Path(schema_compiler.__file__))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C is for this process
    )


def _end(process: subprocess.Popen[str]) -> None:
    with suppress(BrokenPipeError), process:  # closes its pipes and waits for it
        process.kill()


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
