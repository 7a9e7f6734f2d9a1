"""Listening: one server process until it is told to end, and answers under way are finished first."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn

from glassformer.core.errors import GlassformerError
from glassformer.serve.guard import App

GRACE = 30  # seconds for answers under way when the server is to end
BACKLOG = 512


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


def serve(app: App, sock: socket.socket, *, ready: Callable[[], None]) -> None:
    """Answer until SIGTERM or Ctrl-C; a second one ends at once. `ready` is called when it listens."""
    config = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        server_header=False,
        ws="none",
        http="h11",
        loop="asyncio",
        timeout_keep_alive=15,
        timeout_graceful_shutdown=GRACE,
        h11_max_incomplete_event_size=65_536,
    )
    _Server(config, ready).run(sockets=[sock])


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
