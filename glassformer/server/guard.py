"""Who may ask: this machine's own names, pages of this server, and on other addresses whoever has the token.

A browser lets any page on the web send requests to a server on the reader's machine. What it cannot do is
forge `Host`, `Origin` and `Sec-Fetch-Site`; so these are looked at first, for every route and method.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any

from glassformer.errors import GlassformerError
from glassformer.server.answers import Forbidden, NoToken, Refused, Send, send_bytes, send_refusal

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SHORTEST = 16  # letters of a token
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
# what a browser without the token is given, so that a person can enter it; nothing of the models
OPEN = frozenset({("GET", "/login"), ("GET", "/login.js"), ("POST", "/login")})

CSP = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "style-src-attr 'unsafe-inline'",  # positions of what is drawn; a style attribute runs nothing
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = (
    ("content-security-policy", CSP),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), microphone=(), geolocation=()"),
)


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where the server listens, and what it answers to. token: what clients must show; None: nothing."""

    host: str
    port: int
    token: str | None = None
    # what a browser is given for the token, so that the token itself is kept nowhere
    session: str = field(default_factory=secrets.token_urlsafe, repr=False)

    def __post_init__(self) -> None:
        if self.token is None and not is_loopback(self.host):
            raise GlassformerError(
                f"'{self.host}' can be reached from other machines, so a token is needed: set "
                "GLASSFORMER_TOKEN or --token, or listen on 127.0.0.1"
            )
        if self.token is not None and not re.fullmatch(rf"[!-~]{{{SHORTEST},}}", self.token):
            raise GlassformerError(
                f"a token has at least {SHORTEST} letters, all of them ASCII and no spaces"
            )

    @property
    def cookie(self) -> str:
        """The name of a browser's cookie, which goes to every port of a machine: it tells them apart."""
        return f"glassformer-{self.port}"

    @property
    def url(self) -> str:
        """Where a browser on this machine, or the nearest thing to it, finds the server."""
        host = "127.0.0.1" if _is_any(self.host) else self.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def answers_to(self, host: str) -> bool:
        """Whether a `Host` header names this server: its own names, with its own port."""
        name, port = split_host(host)
        if port != self.port:
            return False
        if name in LOOPBACK or is_loopback(name.strip("[]")):
            return True
        if is_loopback(self.host):
            return False
        own = f"[{self.host}]" if ":" in self.host else self.host
        if name == own.lower() or name == socket.gethostname().lower():
            return True
        # every address of this machine: a name that another site made up is none of them
        return _is_any(self.host) and _is_number(name.strip("[]"))


class Guard:
    """Lets through what may ask, and puts on every answer the headers that keep a browser strict."""

    def __init__(self, app: App, address: Address) -> None:
        self.app, self.address = app, address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def strict(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *_STRICT]}
            await send(message)

        try:
            self.check(scope)
        except Refused as error:
            error.headers["Connection"] = "close"  # a body that nobody reads may follow
            if isinstance(error, NoToken) and _is_page(scope):
                await send_bytes(strict, 303, b"", "text/plain", {"Location": "/login"}.items())
                return
            await send_refusal(strict, error)
            return
        await self.app(scope, receive, strict)

    def check(self, scope: Scope) -> None:
        """Raise a sentence where this request may not be made."""
        given = [(name.lower(), value.decode("latin-1")) for name, value in scope["headers"]]

        def only(name: bytes) -> str | None:
            found = [value for key, value in given if key == name]
            if len(found) > 1:
                raise Forbidden(f"the header {name.decode()} stands there {len(found)} times")
            return found[0] if found else None

        host = only(b"host")
        if host is None or not self.address.answers_to(host):
            raise Forbidden(
                "this server does not answer to the Host it was asked under; use the address it printed"
            )
        origin, site = only(b"origin"), only(b"sec-fetch-site")
        if origin is not None and origin.lower() != f"http://{host.lower()}":
            raise Forbidden("pages of another origin may not ask this server")
        if site is not None and site not in ("same-origin", "none"):
            raise Forbidden("pages of another site may not ask this server")
        if self.address.token is not None and (scope["method"], scope["path"]) not in OPEN:
            self._check_token(self.address.token, only(b"authorization"), only(b"cookie"))

    def _check_token(self, token: str, authorization: str | None, cookie: str | None) -> None:
        scheme, _, shown = (authorization or "").partition(" ")
        if scheme.lower() == "bearer" and same(shown.strip(), token):
            return
        try:
            held = SimpleCookie(cookie or "").get(self.address.cookie)
        except CookieError:
            held = None
        if held is not None and same(held.value, self.address.session):
            return
        raise NoToken("this server asks for its token: Authorization: Bearer TOKEN, or /login in a browser")


def _is_page(scope: Scope) -> bool:
    """Whether a person opens the page, rather than a program asking for something."""
    kinds = b",".join(value for name, value in scope["headers"] if name.lower() == b"accept")
    return scope["method"] == "GET" and scope["path"] == "/" and b"text/html" in kinds


def same(one: str, other: str) -> bool:
    """Whether two secrets are the same, in a time that tells nothing of where they differ."""
    return secrets.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    >>> is_loopback("localhost"), is_loopback("127.0.0.2"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def split_host(host: str) -> tuple[str, int]:
    """A `Host` header as name and port; 80 where none is given, -1 where it is no port.

    >>> split_host("LocalHost:8000"), split_host("[::1]:8000"), split_host("a:b")
    (('localhost', 8000), ('[::1]', 8000), ('a', -1))
    """
    text = host.lower()
    name, mark, port = text.rpartition(":")
    if not mark or text.endswith("]"):
        return text, 80
    return name, int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else -1


def _is_any(host: str) -> bool:
    return _is_number(host) and ipaddress.ip_address(host).is_unspecified


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


_STRICT = [(name.encode(), value.encode()) for name, value in HEADERS]
