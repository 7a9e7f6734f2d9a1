"""Compile JSON schemas with llguidance, here or in a child process with limits of time and memory.

A compilation cannot be interrupted, and for a few schemas it takes hours, all memory or all of the stack. So
each schema is first compiled by this file run as a script, which imports nothing else of the package and
starts quickly. It answers each line of its input, a schema, with a line: the error as a JSON string, empty if
there is none. Beyond its limits the process dies.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

CPU_SECONDS = 2.0  # for one schema
MEMORY = 256 << 20  # bytes of addresses of the process, which takes 30 MB at the start
MAX_LEXER_STATES = 50_000  # of one request; each takes up to 1 kB, when generation reaches it
# one space, or a line break with indentation: a model must not fill its output with spaces
WHITESPACE = r"\x20|\x0A[\x20\x09]{0,32}"


def compile_schema(text: str, table: LLTokenizer) -> LLMatcher:
    """Compile a schema for a vocabulary; raise ValueError if it is invalid."""
    options: Any = {"whitespace_pattern": WHITESPACE}
    grammar = LLMatcher.grammar_from_json_schema(text, defaults=options)
    limits = LLParserLimits(max_lexer_states=MAX_LEXER_STATES)
    matcher = LLMatcher(table, grammar, log_level=0, limits=limits)
    if matcher.is_error():
        raise ValueError(next(iter(matcher.get_error().splitlines()), ""))
    return matcher


class _Bytes:
    """A vocabulary of single bytes and an end token: the cost of a schema barely depends on the tokens."""

    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids = (256,)
    eos_token_id, bos_token_id = 256, None

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


def _limit_process() -> None:
    """Limit the time and memory of the next compilation, where the system can do so."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # its signal ends the process
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def main() -> None:
    table = LLTokenizer(TokenizerWrapper(_Bytes()), eos_token=256)
    for line in sys.stdin:
        _limit_process()
        try:
            compile_schema(line, table).compute_bitmask()
            error = ""
        except ValueError as problem:
            error = str(problem)[:1000] or "invalid"
        print(json.dumps(error), flush=True)


if __name__ == "__main__":
    main()
