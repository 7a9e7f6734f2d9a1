"""Limits of the server: open requests, response time and body size. Clients that disconnect are detected."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glassformer.errors import GlassformerError
from glassformer.server.errors import (
    PayloadTooLargeError,
    QueueFullError,
    RequestTimeoutError,
    error_response,
)
from glassformer.server.metrics import Metrics

EXPENSIVE = ("/trace", "/runs")  # GET requests that count as work


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of the server. max_requests: in progress or queued. timeout: seconds per response."""

    max_requests: int = 256
    timeout: float = 300.0
    max_body_bytes: int = 32 << 20


class LimitsMiddleware:
    """Apply the limits, count the requests, and cancel the work for clients that disconnect.

    `request.scope["deadline"]` is the time at which a streaming response must end, in `time.monotonic()`
    seconds.
    """

    def __init__(self, app: ASGIApp, limits: Limits, metrics: Metrics) -> None:
        self.app, self.limits, self.metrics = app, limits, metrics
        self.active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, response = time.monotonic(), _Response(send)
        limited = scope["method"] == "POST" or scope["path"].startswith(EXPENSIVE)
        scope["deadline"] = start + self.limits.timeout
        try:
            if limited and self.active >= self.limits.max_requests:
                raise QueueFullError(self.limits.max_requests)
            self._count(limited)
            try:
                await self._respond(scope, receive, response)
            finally:
                self._count(-limited)
        except GlassformerError as error:
            await error_response(error, {"Connection": "close"})(scope, receive, response)
        except Exception:
            response.status = response.status or 500
            raise
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.record(route, scope["method"], response.status, time.monotonic() - start)

    def _count(self, change: int) -> None:
        self.active += change
        self.metrics.active.set(self.active)

    async def _respond(self, scope: Scope, receive: Receive, response: _Response) -> None:
        try:
            async with asyncio.timeout(self.limits.timeout):
                body = await self._read_body(scope, receive)
        except TimeoutError:
            raise RequestTimeoutError(self.limits.timeout) from None
        if body is None:
            self.metrics.disconnects.inc()
            return
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])
        disconnected = asyncio.Event()

        async def replay() -> Message:
            if (message := next(messages, None)) is not None:
                return message
            await disconnected.wait()
            return {"type": "http.disconnect"}

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        work = asyncio.ensure_future(self.app(scope, replay, response))
        watcher = asyncio.ensure_future(watch())
        try:
            remaining = scope["deadline"] - time.monotonic()
            await asyncio.wait({work, watcher}, timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
            if work.done() or response.complete:
                await work
            elif watcher.done():
                self.metrics.disconnects.inc()
            elif response.status == 0:
                error = RequestTimeoutError(self.limits.timeout)
                await error_response(error, {"Connection": "close"})(scope, replay, response)
        finally:
            disconnected.set()
            for task in (work, watcher):
                task.cancel()
            # work in a thread cannot be canceled, and counts as a request until it ends
            await asyncio.gather(work, watcher, return_exceptions=True)

    async def _read_body(self, scope: Scope, receive: Receive) -> bytes | None:
        """Read the complete body; return None if the client disconnects first."""
        declared = Headers(scope=scope).get("content-length", "0")
        body, declared_length = bytearray(), int(declared[:15]) if declared.isdecimal() else 0
        more = True
        while more:
            if max(len(body), declared_length) > self.limits.max_body_bytes:
                raise PayloadTooLargeError("bytes", self.limits.max_body_bytes)
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            more = message.get("more_body", False)
        if len(body) > self.limits.max_body_bytes:
            raise PayloadTooLargeError("bytes", self.limits.max_body_bytes)
        return bytes(body)


class _Response:
    def __init__(self, send: Send) -> None:
        self._send = send
        self.status, self.complete = 0, False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif not message.get("more_body", False):
            self.complete = True
        await self._send(message)
