"""What a client is told when something is wrong: one sentence, in the shape that OpenAI's clients read."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from http import HTTPStatus
from typing import Any

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
LONGEST = 1000  # letters of a sentence; what a client sent may stand in it


class Refused(Exception):
    """A request that is answered with a sentence; the status says whose turn it is."""

    status = 422
    kind = "invalid_request_error"

    def __init__(self, sentence: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(sentence)
        self.param, self.code = param, code
        self.headers: dict[str, str] = {}


class BadBody(Refused):
    """What was sent is no JSON that can be read."""

    status = 400


class NoToken(Refused):
    """The token is missing, or another."""

    status = 401
    kind = "authentication_error"

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, code="invalid_api_key")
        self.headers = {"WWW-Authenticate": "Bearer"}


class Forbidden(Refused):
    """The request comes from another site's page, or under a name that is not this server's."""

    status = 403
    kind = "permission_error"


class NotFound(Refused):
    """There is nothing of that name."""

    status = 404


class TooLate(Refused):
    """The client took too long to say what it wants."""

    status = 408


class TooLarge(Refused):
    """More than is taken in, or given out, at once."""

    status = 413


class WrongKind(Refused):
    """A body that is no JSON at all."""

    status = 415


class Busy(Refused):
    """As many requests as can wait are waiting."""

    status = 429
    kind = "rate_limit_error"

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.headers = {"Retry-After": "1"}


class GaveUp(Refused):
    """The answer takes longer, or more memory, than there is."""

    status = 503
    kind = "server_error"


def plain(sentence: str) -> str:
    """The sentence on one line, not too long, and of letters that can be sent."""
    flat = " ".join(str(sentence).encode("utf-8", "replace").decode().split())
    shown = "".join(letter if letter.isprintable() else "\ufffd" for letter in flat)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 1]}…"


def keyed(sentence: str) -> str:
    """A sentence for people at a terminal and in Python, for who has keys alone.

    >>> keyed("say which with --to (`to`), or add --do-sample (`do_sample=True`)")
    'say which with `to`, or add `do_sample=True`'
    """
    return re.sub(r"--[a-z-]+ \((`\w+(?:=\w+)?`)\)", r"\1", sentence)


def problem(
    sentence: str, *, kind: str = "invalid_request_error", param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """The body of every answer that is an error.

    >>> problem("there is no model 'x'", code="model_not_found")["error"]["code"]
    'model_not_found'
    """
    shown = None if param is None else plain(param)
    return {"error": {"message": plain(sentence), "type": kind, "param": shown, "code": code}}


def told(error: Refused) -> dict[str, Any]:
    """The body that says what a `Refused` says."""
    return problem(str(error), kind=error.kind, param=error.param, code=error.code)


def kind_of(status: int) -> str:
    """The type that goes with a status which nothing more is known of."""
    return "server_error" if status >= 500 else "invalid_request_error"


def phrase(status: int) -> str:
    """A status in words.

    >>> phrase(405)
    'Method Not Allowed'
    """
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return f"status {status}"


async def send_refusal(send: Send, error: Refused) -> None:
    """Answer with the sentence, below any framework."""
    await send_bytes(
        send, error.status, json.dumps(told(error)).encode(), "application/json", error.headers.items()
    )


async def send_bytes(
    send: Send, status: int, body: bytes, kind: str, headers: Iterable[tuple[str, str]] = ()
) -> None:
    """A whole answer, below any framework."""
    named: Mapping[str, str] = {"content-type": kind, "content-length": str(len(body)), **dict(headers)}
    lines = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in named.items()]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body, "more_body": False})
