"""How likely an answer's tokens were, as OpenAI tells it: each spelt by itself, and its place.

What was begun of a letter that never came stands nowhere in the text, and is not counted.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from glassformer.generation.continuous import Token
from glassformer.tokenization import Tokenizer


class Spelling:
    """How single tokens are spelt; those of many answers share it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._pieces: dict[int, str] = {}

    def piece(self, token: int) -> str:
        """The token in a form to show; a share of a letter as its bytes."""
        if token not in self._pieces:
            (self._pieces[token],) = self._tokenizer.pieces([token], side="target")
        return self._pieces[token]

    def part(self, token: int, *, bare: bool) -> str | bytes:
        """What the token adds to a text: letters, or bytes of some. bare: without its space."""
        (part,) = self._tokenizer.parts([token], side="target")
        alone = self._tokenizer.decode([token], side="target")
        if isinstance(part, bytes):
            return part.removeprefix(b" ") if bare and not alone.startswith(" ") else part
        return alone if bare or not alone else part  # a mark adds nothing


class Likelihoods:
    """Those of one answer, told some tokens at a time."""

    def __init__(self, spelling: Spelling, top: int, *, bare: bool) -> None:
        """top: how many of the likeliest are told. bare: the text begins without its first token's space."""
        self._spelling, self._top, self._bare = spelling, top, bare
        self._letters = 0
        self._bytes = codecs.getincrementaldecoder("utf-8")("ignore")

    def told(self, tokens: Sequence[Token]) -> dict[str, Any]:
        """How likely the next tokens were, and where in the text they begin."""
        return {
            "tokens": [self._spelling.piece(token.id) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [self._tops(token) for token in tokens] if self._top else None,
            "text_offset": [self._offset(token.id) for token in tokens],
        }

    def _tops(self, token: Token) -> dict[str, float]:
        """The likeliest tokens, and the one that was written where it is none of them."""
        return {self._spelling.piece(one): value for one, value in (*token.top, (token.id, token.logprob))}

    def _offset(self, token: int) -> int:
        """Where the token begins; the letters that it completes are counted."""
        begin = self._letters
        part = self._spelling.part(token, bare=self._bare)
        self._bare = False
        if isinstance(part, str):
            self._bytes.reset()
            self._letters += len(part)
        else:
            self._letters += len(self._bytes.decode(part))
        return begin
