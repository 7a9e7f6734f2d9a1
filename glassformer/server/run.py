"""Run the server in one process; on a signal it finishes the responses in progress."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from glassformer.errors import InvalidValueError

BACKLOG = 512
SHUTDOWN_SECONDS = 30


def listen(host: str, port: int) -> socket.socket:
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise InvalidValueError("host", host, "an address of this machine, e.g. 127.0.0.1") from None
    family, kind, protocol, _, address = addresses[0]
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        expected = f"a free port of {host} ({error.strerror})"
        raise InvalidValueError("port", port, expected, hint="choose another port") from None
    return sock


def run(app: ASGIApp, sock: socket.socket, *, on_ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; a second signal stops at once."""
    make_server(app, on_ready=on_ready).run(sockets=[sock])


def make_server(app: ASGIApp, *, on_ready: Callable[[], None]) -> uvicorn.Server:
    """Create the uvicorn server; `on_ready` is called once it accepts connections."""
    config = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        server_header=False,
        ws="none",
        http="h11",
        loop="asyncio",
        timeout_keep_alive=15,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        h11_max_incomplete_event_size=65_536,
    )
    return _Server(config, on_ready)


class _Server(uvicorn.Server):
    """uvicorn's server, with a callback at startup and a message at a signal."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(128 + sig)  # even if threads are still working
        self.should_exit = True
        name = "Ctrl-C" if sig == signal.SIGINT else signal.Signals(sig).name
        print(f"{name}: finishing requests in progress; repeat to stop at once", file=sys.stderr, flush=True)
