"""Run the server in one process; on a signal it finishes the responses in progress."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import ssl
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from glassformer.errors import FileExistsAlreadyError, FileProblemError, InvalidValueError, MissingValueError

BACKLOG = 512
SHUTDOWN_SECONDS = 30  # after a signal
CLOSING_SECONDS = 2  # of these, to cancel the requests that are left and to stop the models
HEAD_SECONDS = 30  # in which the head of a request must arrive


@dataclass(frozen=True, kw_only=True)
class HttpOptions:
    """Options of uvicorn.

    ssl_certfile, ssl_keyfile: certificate and private key, in PEM format, to serve HTTPS.
    forwarded_allow_ips: addresses of proxies, separated by commas, whose headers X-Forwarded-For and
    X-Forwarded-Proto are trusted; * for all. By default none is: any local process could forge them.
    """

    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    forwarded_allow_ips: str | None = None

    def __post_init__(self) -> None:
        if self.ssl_certfile is None:
            if self.ssl_keyfile is not None:
                raise MissingValueError("ssl_certfile", "with a private key")
            return
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                self.ssl_certfile,
                self.ssl_keyfile,
                password=lambda: "",  # never ask on the terminal
            )
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            hint = "" if self.ssl_keyfile else "is the private key in another file?"
            problem = f"cannot be used for TLS ({getattr(error, 'reason', None) or error.args[-1]})"
            raise FileProblemError(self.ssl_certfile, problem, hint=hint) from None


class _JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def configure_logging(level: str, format: Literal["text", "json"]) -> None:
    """Send the logs of this package and of uvicorn to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(_JsonFormatter() if format == "json" else text)
    for name in ("glassformer", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())
    if logging.getLogger("uvicorn").level < logging.WARNING:
        logging.getLogger("uvicorn").setLevel(logging.WARNING)  # it reports its own start and stop


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


def listen_unix(path: Path) -> socket.socket:
    """Listen on a Unix socket; one that a stopped server left behind is replaced."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists():
            if not stat.S_ISSOCK(path.stat().st_mode) or _is_in_use(path):
                raise FileExistsAlreadyError(path)
            path.unlink()
        sock.bind(str(path))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise FileProblemError(path, f"cannot be used as a Unix socket ({error.strerror or error})") from None
    except FileExistsAlreadyError:
        sock.close()
        raise
    return sock


def _is_in_use(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        return client.connect_ex(str(path)) == 0


def run(
    app: ASGIApp,
    sock: socket.socket,
    *,
    on_ready: Callable[[], None],
    on_exit: Callable[[], None] = lambda: None,
    options: HttpOptions | None = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C; a second signal stops at once. on_exit: called at the first signal."""
    path = sock.getsockname() if sock.family == socket.AF_UNIX else None
    try:
        make_server(app, on_ready=on_ready, on_exit=on_exit, options=options).run(sockets=[sock])
    finally:
        if path is not None:
            with suppress(OSError):
                os.unlink(path)


def make_server(
    app: ASGIApp,
    *,
    on_ready: Callable[[], None],
    on_exit: Callable[[], None] = lambda: None,
    options: HttpOptions | None = None,
) -> uvicorn.Server:
    """Create the uvicorn server; `on_ready` is called once it accepts connections."""
    options = options or HttpOptions()
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        http=_Protocol,
        loop="asyncio",
        timeout_keep_alive=15,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS - CLOSING_SECONDS,
        h11_max_incomplete_event_size=65_536,
        proxy_headers=options.forwarded_allow_ips is not None,
        forwarded_allow_ips=options.forwarded_allow_ips,
        ssl_certfile=options.ssl_certfile,
        ssl_keyfile=options.ssl_keyfile,
    )
    return _Server(config, on_ready, on_exit)


class _Protocol(H11Protocol):
    """uvicorn's protocol, which closes connections whose next request does not arrive in time."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._timer = self.loop.call_later(HEAD_SECONDS, transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._timer is not None and self.cycle is not None and not self.cycle.response_complete:
            self._timer.cancel()
            self._timer = None

    def on_response_complete(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)


class _Server(uvicorn.Server):
    """uvicorn's server, with a callback at startup and a message at a signal."""

    def __init__(
        self, config: uvicorn.Config, on_ready: Callable[[], None], on_exit: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._on_ready, self._on_exit = on_ready, on_exit
        self._timer: threading.Timer | None = None

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            super().run(sockets)
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(128 + sig)  # even if threads are still working
        self.should_exit = True
        self._on_exit()
        name = "Ctrl-C" if sig == signal.SIGINT else signal.Signals(sig).name
        print(f"{name}: finishing requests in progress; repeat to stop at once", file=sys.stderr, flush=True)
        self._timer = threading.Timer(SHUTDOWN_SECONDS, os._exit, (0,))  # even if threads are still working
        self._timer.daemon = True
        self._timer.start()
