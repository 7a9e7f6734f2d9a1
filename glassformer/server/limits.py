"""Limits of the server: open requests, response time, body size and memory.

A request counts only after its body was read, so that slow clients do not keep others out. Clients that
disconnect are detected, and their work is canceled.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import math
import sys
import time
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glassformer.errors import GlassformerError, InvalidValueError
from glassformer.inference.memory import available_memory
from glassformer.server.api_keys import KeyUsage
from glassformer.server.errors import (
    PayloadTooLargeError,
    QueueFullError,
    RequestTimeoutError,
    UnavailableError,
    error_response,
)
from glassformer.server.metrics import Metrics
from glassformer.tasks.registry import TaskSpec, tasks

EXPENSIVE = ("/trace", "/runs", "/models/")  # GET requests that count as work; /models is a list
MIN_MEMORY = 256 << 20  # free bytes below which requests are refused
LARGE_REQUEST = 1 << 20  # bytes of a body after which memory is returned to the system
TIMEOUT_HEADER = "x-request-timeout"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of the server.

    max_requests: in progress or queued. timeout: seconds per response; a request may ask for less.
    max_body_bytes: of a request with images or series; other bodies have at most `max_text_bytes`.
    max_unread_bytes: of all bodies that have not arrived completely.
    """

    max_requests: int = 256
    timeout: float = 300.0
    max_body_bytes: int = 32 << 20
    max_text_bytes: int = 8 << 20
    max_unread_bytes: int = 256 << 20


@dataclass(kw_only=True)
class ServerState:
    """Whether the server takes requests. active: requests in progress or queued. draining: it is stopping."""

    limits: Limits = field(default_factory=Limits)
    active: int = 0
    draining: bool = False

    def check(self) -> None:
        """Raise if no further request can be accepted at the moment."""
        if self.active >= self.limits.max_requests:
            raise QueueFullError(self.limits.max_requests)
        free = available_memory()
        if free is not None and free < MIN_MEMORY:
            raise UnavailableError("the server is short of memory; try again in a second")

    def check_ready(self) -> None:
        """Raise if a load balancer should send requests to another server."""
        if self.draining:
            raise UnavailableError("the server is stopping")
        self.check()


class LimitsMiddleware:
    """Apply the limits, count the requests, and cancel the work for clients that disconnect.

    `request.scope["deadline"]` is the time at which a streaming response must end, in `time.monotonic()`
    seconds.
    """

    def __init__(self, app: ASGIApp, state: ServerState, metrics: Metrics) -> None:
        self.app, self.state, self.limits, self.metrics = app, state, state.limits, metrics
        self.large = ("/trace", *large_routes())
        self.unread = 0  # bytes of bodies that have not arrived completely

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, response = time.monotonic(), _Response(send)
        limited = scope["method"] == "POST" or scope["path"].startswith(EXPENSIVE)
        size = 0
        try:
            timeout = self._timeout(Headers(scope=scope))
            scope["deadline"] = start + timeout
            if limited:
                self.state.check()  # before the body is read, and again when the request starts
            body = await self._read_body(scope, receive)
            if body is None:
                self.metrics.disconnects.inc()
                return
            size = len(body)
            if not limited:
                await self._respond(scope, receive, response, body, timeout)
                return
            self.state.check()
            usage: KeyUsage | None = scope.get("key_usage")
            admission = None if usage is None else usage.start()
            self._count(1)
            try:
                await self._respond(scope, receive, response, body, timeout)
            finally:
                self._count(-1)
                if admission is not None:
                    admission.end(admission.used)
        except GlassformerError as error:
            await error_response(error, {"Connection": "close"})(scope, receive, response)
        except Exception:
            response.status = response.status or 500
            raise
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.record(route, scope["method"], response.status, time.monotonic() - start)
            if size > LARGE_REQUEST:
                body = None
                asyncio.get_running_loop().run_in_executor(None, release_memory)

    def _timeout(self, headers: Headers) -> float:
        """Return the seconds for this response: the server's limit, or less if the client asks for it."""
        value = headers.get(TIMEOUT_HEADER)
        if value is None:
            return self.limits.timeout
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not seconds > 0:
            raise InvalidValueError("X-Request-Timeout", value[:40], "a number of seconds above 0")
        return min(seconds, self.limits.timeout)

    def _count(self, change: int) -> None:
        self.state.active += change
        self.metrics.active.set(self.state.active)

    async def _respond(
        self, scope: Scope, receive: Receive, response: _Response, body: bytes, timeout: float
    ) -> None:
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        del body
        disconnected = asyncio.Event()

        async def replay() -> Message:
            if messages:
                return messages.pop()
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
                error = RequestTimeoutError(timeout)
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
        declared_length = int(declared[:15]) if declared.isdecimal() else 0
        is_large = scope["path"].startswith(self.large)
        most = self.limits.max_body_bytes if is_large else self.limits.max_text_bytes
        body, more, timeout = bytearray(), True, scope["deadline"] - time.monotonic()
        try:
            async with asyncio.timeout(timeout):
                while more:
                    if max(len(body), declared_length) > most:
                        raise PayloadTooLargeError("bytes", most)
                    if self.unread > self.limits.max_unread_bytes:
                        raise UnavailableError("too many bodies are arriving; try again in a second")
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    chunk = message.get("body", b"")
                    body += chunk
                    self.unread += len(chunk)
                    more = message.get("more_body", False)
        except TimeoutError:
            raise RequestTimeoutError(timeout) from None
        finally:
            self.unread -= len(body)
        if len(body) > most:
            raise PayloadTooLargeError("bytes", most)
        return bytes(body)


def large_routes() -> list[str]:
    """Return the routes whose bodies contain images or series."""

    def is_large(spec: TaskSpec) -> bool:
        images = any(option.metadata.get("is_image") for option in spec.all_options)
        return images or bool({"image", "series"} & {*spec.inputs.modalities})

    large = [f"/{spec.name}" for spec in tasks().values() if is_large(spec)]
    return [*large, "/v1/chat/completions", "/v1/images/edits"]


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


def release_memory() -> None:
    """Return freed memory to the system, which the C library otherwise keeps for later requests."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
        if trim is not None:
            trim(0)
