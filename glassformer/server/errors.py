"""Errors of the HTTP server, and the JSON format of all errors.

    {"error": {"message": ..., "type": ..., "code": ..., "param": ..., "fields": {...}}}

This is OpenAI's format plus `fields`, the details of the error by name. Programs should use `code` and
`fields`; `message` is English text for people.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from glassformer.errors import GlassformerError, UnknownNameError
from glassformer.generation.continuous import (
    GenerationFailedError,
    SchedulerClosedError,
    SchedulerFullError,
)
from glassformer.interpret.schema import ItemNotFoundError, TooLargeError
from glassformer.json_text import is_not_finite

MAX_STRING = 1000  # maximum characters of a string in an error, which may quote the request
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ErrorInfo(BaseModel):
    """Details of an error. param: the invalid key or query parameter, if there is one."""

    message: str
    type: str
    code: str
    param: str | None = None
    fields: dict[str, Any] = {}


class ErrorResponse(BaseModel):
    """Body of every response with a status of 400 or above."""

    error: ErrorInfo


class HttpError(GlassformerError):
    """An error raised by the server; library errors, e.g. an input that is too long, have status 422."""

    status: ClassVar[int]


class RetryError(HttpError):
    """The client may repeat the request after `retry_after` seconds."""

    retry_after: float = 1.0


@dataclass(eq=False)
class InvalidApiKeyError(HttpError):
    status = 401
    template: ClassVar[str] = "missing or invalid API key; send it as 'Authorization: Bearer KEY'"


@dataclass(eq=False)
class TooManyFailuresError(RetryError):
    """A client sent too many wrong keys."""

    retry_after: float
    status = 429
    template: ClassVar[str] = "too many wrong API keys; try again in {retry_after:.0f} seconds"


@dataclass(eq=False)
class RateLimitExceededError(RetryError):
    """A key is at one of its limits. key: its name."""

    key: str
    limit: float
    unit: str
    retry_after: float
    status = 429
    template: ClassVar[str] = "the API key {key!r} is limited to {limit:,.0f} {unit}"


@dataclass(eq=False)
class InvalidHostError(HttpError):
    """The Host header is not a name of this server."""

    host: str
    status = 400
    template: ClassVar[str] = "this server does not answer to the host {host!r:.80}"


@dataclass(eq=False)
class AmbiguousLengthError(HttpError):
    """A request that a proxy may end elsewhere than this server does."""

    status = 400
    template: ClassVar[str] = "a request must not have both Content-Length and Transfer-Encoding"


@dataclass(eq=False)
class CrossOriginError(HttpError):
    origin: str
    status = 403
    template: ClassVar[str] = "requests from the origin {origin} are not allowed"


@dataclass(eq=False)
class ModelNotFoundError(HttpError):
    name: str
    known: list[str]
    status = 404

    def message(self) -> str:
        return f"unknown model {self.name!r}; this server has {', '.join(self.known)}"


@dataclass(eq=False)
class RouteNotFoundError(HttpError):
    path: str
    status = 404
    template: ClassVar[str] = "no route matches {path}; see /docs"


@dataclass(eq=False)
class MethodNotAllowedError(HttpError):
    method: str
    allowed: str
    status = 405
    template: ClassVar[str] = "the method {method} is not allowed; use {allowed}"


@dataclass(eq=False)
class InvalidRequestError(HttpError):
    """A body or query that does not match the schema. problems: all problems of the key `name`."""

    name: str | None
    problems: list[str]
    status = 422

    def message(self) -> str:
        text = "; or ".join(self.problems[:4])
        return f"{self.name}: {text}" if self.name else text


@dataclass(eq=False)
class ContextLengthExceededError(HttpError):
    """A prompt, or the new tokens that it asks for, exceed the model's context; the code is OpenAI's."""

    length: int
    limit: int
    unit: str = "tokens"
    max_tokens: int = 0
    status = 400

    def message(self) -> str:
        prompt = f"the prompt has {self.length:,} {self.unit}"
        new = f" and max_tokens is {self.max_tokens:,}" if self.max_tokens else ""
        return f"{prompt}{new}, but the model has room for {self.limit:,} {self.unit}"


def openai_error(error: GlassformerError) -> GlassformerError:
    """Return the error that OpenAI's clients expect: they shorten a prompt that is too long."""
    if error.code != "input_too_long":
        return error
    fields = error.fields
    return ContextLengthExceededError(fields["length"], fields["limit"], fields["unit"])


@dataclass(eq=False)
class PayloadTooLargeError(HttpError):
    what: str
    limit: int
    status = 413
    template: ClassVar[str] = "the request has more than {limit:,} {what}"


@dataclass(eq=False)
class QueueFullError(RetryError):
    limit: int
    status = 429
    template: ClassVar[str] = "{limit:,} requests are already in progress or queued; try again in a second"


@dataclass(eq=False)
class RequestTimeoutError(HttpError):
    seconds: float
    status = 504
    template: ClassVar[str] = "no response within {seconds:g} seconds"


@dataclass(eq=False)
class UnavailableError(RetryError):
    """The server cannot answer this request, e.g. because it is out of memory."""

    reason: str
    status = 503
    template: ClassVar[str] = "{reason}"


STATUS: dict[type[GlassformerError], int] = {
    ItemNotFoundError: 404,
    TooLargeError: 413,
    SchedulerFullError: 429,
    SchedulerClosedError: 503,
    GenerationFailedError: 503,
}
LOGIN = {"WWW-Authenticate": 'Basic realm="Glassformer, any user name", charset="UTF-8"'}


def _status(error: GlassformerError) -> int:
    return error.status if isinstance(error, HttpError) else STATUS.get(type(error), 422)


def error_body(error: GlassformerError) -> dict[str, Any]:
    """Convert an error to JSON values.

    >>> error_body(ModelNotFoundError("x", ["pocket"]))["error"]["code"]
    'model_not_found'
    """
    status = _status(error)
    kind = "server_error" if status >= 500 else TYPES.get(status, "invalid_request_error")
    param: str | None
    match error:
        case ModelNotFoundError():
            param = "model"
        case UnknownNameError():  # its name is the value
            param = None
        case _:
            param = error.fields.get("name")
    fields = {"message": str(error), "type": kind, "code": error.code, "param": param, "fields": error.fields}
    body: dict[str, Any] = _clip({"error": fields})
    return body


def error_response(
    error: GlassformerError, headers: Mapping[str, str] | None = None, *, status: int | None = None
) -> Response:
    status = status or _status(error)
    content = json.dumps(error_body(error))  # ASCII: a client may have sent unpaired surrogates
    return Response(
        content, status, headers={**_headers(error), **(headers or {})}, media_type="application/json"
    )


def _headers(error: GlassformerError) -> dict[str, str]:
    if isinstance(error, InvalidApiKeyError):
        return LOGIN
    if isinstance(error, RetryError):
        return {"Retry-After": str(math.ceil(error.retry_after))}
    return {"Retry-After": "1"} if isinstance(error, SchedulerFullError) else {}


def validation_error(error: RequestValidationError) -> GlassformerError:
    """Convert pydantic's errors to one error: the first invalid key with all its problems."""
    problems = error.errors()
    path = [str(part) for part in problems[0]["loc"] if part not in ("body", "query", "path")]
    name = path[0] if path and problems[0]["type"] != "json_invalid" else None
    same_key = [problem for problem in problems if name is None or name in map(str, problem["loc"])]
    return InvalidRequestError(name, list(dict.fromkeys(map(_explain, same_key))))


def _explain(problem: dict[str, Any]) -> str:
    if problem["loc"] == ("body",) and problem["type"] in ("missing", "model_attributes_type"):
        return "the body must be a JSON object, with Content-Type: application/json"
    detail = problem.get("ctx", {}).get("error") if problem["type"] == "json_invalid" else None
    return f"{problem['msg']}: {detail}" if detail else str(problem["msg"])


def http_error(request: Request, error: HTTPException) -> GlassformerError:
    if error.status_code == 404:
        return RouteNotFoundError(request.url.path)
    if error.status_code == 405:
        return MethodNotAllowedError(request.method, (error.headers or {}).get("Allow", "another method"))
    if isinstance(error.__cause__, RecursionError):
        return InvalidRequestError(None, ["the body is nested too deeply"])
    if isinstance(error.__cause__, ValueError) and "digits" in str(error.__cause__):
        return InvalidRequestError(None, ["the body has a number with too many digits"])
    return InvalidRequestError(None, [str(error.detail) or HTTPStatus(error.status_code).phrase])


def _clip(value: Any) -> Any:
    """Shorten long strings and lists, and replace NaN, which JSON lacks."""
    if isinstance(value, str):
        return value if len(value) <= MAX_STRING else f"{value[: MAX_STRING - 1]}…"
    if is_not_finite(value):
        return str(value)
    return value[:100] if isinstance(value, list) else value
