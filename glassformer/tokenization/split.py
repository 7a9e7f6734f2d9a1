"""Cutting a text at the special tokens spelled in it."""

import re
from collections.abc import Iterator, Sequence

from tokenizers import AddedToken


def split_special(text: str, tokens: Sequence[AddedToken]) -> Iterator[tuple[str, int, bool]]:
    """(stretch, its start, whether it is a special token), in order; empty stretches left out."""
    if not tokens:
        if text:
            yield text, 0, False
        return
    longest_first = sorted(tokens, key=lambda token: -len(token.content))
    pattern = "|".join(_pattern(token, number) for number, token in enumerate(longest_first))
    at = 0
    for match in re.finditer(pattern, text):
        if match.start() > at:
            yield text[at : match.start()], at, False
        start, end = match.span(match.lastgroup or 0)  # without the space around it
        yield text[start:end], start, True
        at = match.end()
    if at < len(text):
        yield text[at:], at, False


def _pattern(token: AddedToken, number: int) -> str:
    left, right = r"\s*" if token.lstrip else "", r"\s*" if token.rstrip else ""
    inner = re.escape(token.content)
    if token.single_word:
        inner = rf"(?<!\w){inner}(?!\w)"
    return f"{left}(?P<t{number}>{inner}){right}"
