"""Listening: one server process until it is told to end, and answers under way are finished first."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from glassformer.errors import GlassformerError
from glassformer.server.guard import App

GRACE = 30  # seconds for answers under way when the server is to end
BACKLOG = 512
PATIENCE = 30.0  # seconds for the head of a request
READ = 1 << 16  # bytes of an answer that a client takes in that time, at least


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens; what stands in the way is told in a sentence."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise GlassformerError(f"there is no address '{host}' to listen on; give one as 127.0.0.1") from None
    family, kind, protocol, _, where = found[0]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind(where)
        made.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        made.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise GlassformerError(
            f"port {port} of {host} cannot be listened on: {reason}; give another with --port"
        ) from None
    return made


def serve(app: App, sock: socket.socket, *, ready: Callable[[], None], patience: float = PATIENCE) -> None:
    """Answer until SIGTERM or Ctrl-C; a second one ends at once. `ready` is called when it listens."""
    server(app, ready=ready, patience=patience).run(sockets=[sock])


def server(app: App, *, ready: Callable[[], None], patience: float = PATIENCE) -> uvicorn.Server:
    """What answers; patience: seconds for a client to say what it asks for."""
    config = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        server_header=False,
        ws="none",
        http=_patient(patience),
        loop="asyncio",
        timeout_keep_alive=15,
        timeout_graceful_shutdown=GRACE,
        h11_max_incomplete_event_size=65_536,
    )
    return _Server(config, ready)


def _patient(seconds: float) -> type[H11Protocol]:
    """A protocol that closes connections on which no request begins, or no answer is read, for so long."""

    class Patient(H11Protocol):
        _waits: asyncio.TimerHandle | None = None
        _unread: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            transport.set_write_buffer_limits(high=0)  # `pause_writing` as soon as anything is left unread
            self._wait()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._watch()

        def resume_writing(self) -> None:
            self._stop_watching()
            super().resume_writing()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._answers():
                self._stop_waiting()
            elif self._waits is None:
                self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            self._stop_watching()
            super().connection_lost(exc)

        def _answers(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _wait(self) -> None:
            self._waits = self.loop.call_later(seconds, self._late)

        def _late(self) -> None:
            self._waits = None
            if not self._answers():
                self.transport.close()

        def _stop_waiting(self) -> None:
            if self._waits is not None:
                self._waits.cancel()
                self._waits = None

        def _watch(self) -> None:
            left = self.transport.get_write_buffer_size()
            self._unread = self.loop.call_later(seconds, self._look, left)

        def _look(self, before: int) -> None:
            """Closing would wait for the client to read the rest, so who does not read is cut off."""
            if self.transport.get_write_buffer_size() > before - READ:
                self.transport.abort()
            else:
                self._watch()

        def _stop_watching(self) -> None:
            if self._unread is not None:
                self._unread.cancel()
                self._unread = None

    return Patient


class _Server(uvicorn.Server):
    """uvicorn's, which says when it listens and what a signal did."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(128 + sig)  # whatever threads still do
        self.should_exit = True
        name = "Ctrl-C" if sig == signal.SIGINT else signal.Signals(sig).name
        print(f"{name}: finishing what is under way; again to stop at once", file=sys.stderr, flush=True)
