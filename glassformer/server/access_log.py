"""Logs: one line per request, as text or JSON, with the request id that the response also has.

Bodies and query strings are never logged, because they contain prompts.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import uuid
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LogFormat = Literal["text", "json"]
REQUEST_ID = re.compile(r"[\w.:+/=@-]{1,128}", re.ASCII)
MAX_PATH = 200  # logged characters
_log = logging.getLogger("glassformer.access")


@dataclass(kw_only=True)
class RequestRecord:
    """The log entry of one request. key: name of its API key. seconds: to the end of the response."""

    request_id: str
    client: str
    method: str
    path: str
    status: int = 0
    seconds: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    key: str | None = None
    model: str | None = None


_current: ContextVar[RequestRecord | None] = ContextVar("request_record", default=None)


def current_record() -> RequestRecord:
    """Return the record of the request that is being answered; outside of one, a record that nobody reads."""
    return _current.get() or RequestRecord(request_id="", client="", method="", path="")


class AccessLogMiddleware:
    """Log every request after its response, and send its id in the header X-Request-ID."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        id = Headers(scope=scope).get("x-request-id", "")
        client = scope.get("client")
        record = RequestRecord(
            request_id=id if REQUEST_ID.fullmatch(id) else uuid.uuid4().hex,
            client=client[0] if client else "unix",
            method=scope["method"],
            path=quote(scope["path"])[:MAX_PATH],
        )

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                MutableHeaders(scope=message)["X-Request-ID"] = record.request_id
            await send(message)

        start, token = time.monotonic(), _current.set(record)
        try:
            await self.app(scope, receive, send_with_id)
        finally:
            _current.reset(token)
            record.seconds = round(time.monotonic() - start, 4)
            record.status = record.status or 499  # the client disconnected before the response
            _log.info("request", extra={"fields": asdict(record)})


class TextFormatter(logging.Formatter):
    """One line: time, level, message, then the fields that are set as `name=value`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: value for name, value in _fields(record).items() if value is not None}
        line = f"{_time(record)} {record.levelname} {record.getMessage()}"
        line = " ".join((line, *(f"{name}={value}" for name, value in fields.items())))
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    return fields


def configure_logging(level: str, format: LogFormat) -> None:
    """Send the logs of this package and of uvicorn to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    for name in ("glassformer", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())
    if logging.getLogger("uvicorn").level < logging.WARNING:
        logging.getLogger("uvicorn").setLevel(logging.WARNING)  # it reports its own start and stop
