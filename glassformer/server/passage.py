"""One request's way through the server: its body and its time are bounded, its client is watched."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, MutableMapping
from typing import Any

from glassformer.server.answers import (
    Busy,
    GaveUp,
    Refused,
    Send,
    TooLarge,
    TooLate,
    WrongKind,
    send_refusal,
)
from glassformer.server.body import check
from glassformer.server.guard import App, Receive, Scope
from glassformer.server.limits import LOGIN, Limits
from glassformer.server.metrics import Metrics

KEY = "glassformer.client"
ASIDE = 1 << 16  # bytes of a body that are looked at beside the loop, which goes on meanwhile
WORK = ("/trace", "/runs")  # what is asked for by GET and yet is work
ENTRY = "/login"  # what anybody may ask for: it takes no place of those who have the token


class Left(Exception):
    """Nobody waits for this answer any more."""


class Client:
    """Who asks: what is to be done when they go away, or have waited as long as anybody may."""

    def __init__(self, seconds: float) -> None:
        self.until = time.monotonic() + seconds
        self.gone = False
        self._callbacks: list[Callable[[], None]] = []

    def on_leave(self, callback: Callable[[], None]) -> None:
        """Call this when nobody waits any more; at once where that is so already."""
        if self.gone:
            callback()
        else:
            self._callbacks.append(callback)

    def leave(self) -> None:
        """Nobody waits any more."""
        self.gone = True
        while self._callbacks:
            self._callbacks.pop()()


class Passage:
    """The bounds, around everything that answers."""

    def __init__(self, app: App, limits: Limits, metrics: Metrics) -> None:
        self.app, self.limits, self.metrics = app, limits, metrics
        self.working = self.held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, heard = time.monotonic(), _Heard(send)
        try:
            await self._answer(scope, receive, heard)
        except Refused as error:
            error.headers["Connection"] = "close"  # what is left of the body is not read
            await send_refusal(heard, error)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.answered(route, scope["method"], heard.status, time.monotonic() - began)

    async def _answer(self, scope: Scope, receive: Receive, heard: _Heard) -> None:
        works = _works(scope)
        if works and self.working >= self.limits.queue:
            raise Busy(f"{self.limits.queue} requests are being answered; ask again in a second")
        self.working += works
        self.metrics.under_way(self.working)
        own = 0

        async def counted() -> MutableMapping[str, Any]:
            nonlocal own
            message = await receive()
            length = len(message.get("body", b""))
            own += length
            self.held += length
            if self.held > self.limits.bodies:
                raise Busy("the requests under way have long bodies; ask again in a second")
            return message

        try:
            body = await self._body(scope, counted)
            if body is not None:
                await self._run(scope, receive, heard, body)
        finally:
            self.working -= works
            self.held -= own
            self.metrics.under_way(self.working)

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """The whole body, checked; None where the client left before it was said."""
        headers = {name.lower(): value for name, value in scope["headers"]}
        most = LOGIN if scope["path"] == ENTRY else self.limits.body
        told = headers.get(b"content-length", b"0")
        if told.isdigit() and (len(told) > 15 or int(told) > most):
            raise TooLarge(f"the body has {told.decode()[:20]} bytes, and at most {most:,} are read")
        chunks, length = [], 0
        try:
            async with asyncio.timeout(self.limits.reading):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    length += len(message.get("body", b""))
                    if length > most:
                        raise TooLarge(f"the body has more than {most:,} bytes, and no more are read")
                    chunks.append(message.get("body", b""))
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            raise TooLate(f"the body did not come within {self.limits.reading:g} seconds") from None
        body = b"".join(chunks)
        if body:
            kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
            if kind != b"application/json" or headers.get(b"content-encoding", b"identity") != b"identity":
                raise WrongKind("a body is JSON, uncompressed, with Content-Type: application/json")
            if len(body) > ASIDE:
                await asyncio.to_thread(check, body)
            else:
                check(body)
        return body

    async def _run(self, scope: Scope, receive: Receive, heard: _Heard, body: bytes) -> None:
        client = scope[KEY] = Client(self.limits.seconds)
        left = asyncio.Event()
        handed = False

        async def hand() -> MutableMapping[str, Any]:
            nonlocal handed
            if not handed:
                handed = True
                return {"type": "http.request", "body": body, "more_body": False}
            await left.wait()
            return {"type": "http.disconnect"}

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        work = asyncio.ensure_future(self.app(scope, hand, heard))
        watcher = asyncio.ensure_future(watch())
        try:
            await asyncio.wait(
                {work, watcher}, timeout=self.limits.seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if not work.done() and not heard.ended:
                if watcher.done():
                    self.metrics.left()
                elif heard.status == 0:
                    error = GaveUp(f"the answer was not there within {self.limits.seconds:g} seconds")
                    await send_refusal(heard, error)
                client.leave()
                heard.deaf = True
                left.set()
            # what runs in a thread runs to its end, and keeps its place in the queue until then
            try:
                await work
            except Left:
                pass
            except Exception:
                if not heard.ended:  # else it was answered, and its traceback printed
                    raise
        finally:
            work.cancel()
            watcher.cancel()


def _works(scope: Scope) -> bool:
    """Whether a request takes one of the places: it is work, or has a body that is held in memory.

    >>> asked = {"method": "GET", "path": "/health"}
    >>> _works({**asked, "headers": []}), _works({**asked, "headers": [(b"Transfer-Encoding", b"chunked")]})
    (False, True)
    """
    if scope["path"] == ENTRY:
        return False
    names = {name.lower() for name, _ in scope["headers"]}
    has_body = b"content-length" in names or b"transfer-encoding" in names
    return scope["method"] == "POST" or scope["path"].startswith(WORK) or has_body


class _Heard:
    """What was answered so far; `deaf`: what comes now goes nowhere."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        self.ended = self.deaf = False

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if self.deaf:
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif not message.get("more_body", False):
            self.ended = True
        await self._send(message)
