"""Access control: API keys, Host and Origin checks.

Any web page can make a browser send requests to a server on the user's machine, but it cannot forge `Host`
and `Origin`. Without an API key, the server listens on localhost or a Unix socket only, accepts only local
host names and those of `allowed_hosts` (which prevents DNS rebinding), and rejects requests from pages of
other origins.
"""

from __future__ import annotations

import base64
import ipaddress
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glassformer.errors import GlassformerError, InvalidValueError, MissingValueError
from glassformer.server.api_keys import KeyStore
from glassformer.server.errors import (
    AmbiguousLengthError,
    CrossOriginError,
    InvalidHostError,
    error_response,
)

PROBES = ("/health", "/ready")  # open to load balancers, which send neither a key nor the server's name
ANY = "*"

CSP = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "style-src-attr 'unsafe-inline'",  # positions of drawn elements; a style attribute runs nothing
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
SECURITY_HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where the server listens, and under which names.

    uds: path of a Unix socket, in place of host and port. needs_key: whether clients must send an API key,
    which any address other than localhost requires. allowed_hosts: names that the server answers to, besides
    localhost and its own address; default: any name if a key is required. cors_origins: origins of pages that
    may use the server, besides its own. tls: whether the server itself encrypts connections.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    uds: str | None = None
    needs_key: bool = False
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    tls: bool = False

    def __post_init__(self) -> None:
        if not self.needs_key and self.uds is None and not is_loopback(self.host):
            reason = f"to listen on {self.host}, which other machines can reach"
            raise MissingValueError("api_key", reason, "set GLASSFORMER_API_KEY, or listen on 127.0.0.1")
        for host in self.allowed_hosts:
            if host != ANY and (host != _host_name(host) or "*" in host):
                raise InvalidValueError("allowed_host", host, "a name without scheme and port, or *")
        for origin in self.cors_origins:
            parts = urlsplit(origin)
            if origin != ANY and (not parts.netloc or origin != f"{parts.scheme}://{parts.netloc}"):
                raise InvalidValueError("cors_origin", origin, "an origin, e.g. https://example.com, or *")

    @property
    def url(self) -> str:
        """The URL for a browser on this machine."""
        is_wildcard = is_ip(self.host) and ipaddress.ip_address(self.host).is_unspecified
        host = "127.0.0.1" if is_wildcard else self.host
        scheme = "https" if self.tls else "http"
        return f"{scheme}://[{host}]:{self.port}" if ":" in host else f"{scheme}://{host}:{self.port}"

    def answers_to(self, host: str) -> bool:
        """Whether a Host header names this server; the port is ignored."""
        if ANY in self.allowed_hosts or (self.needs_key and not self.allowed_hosts):
            return True
        own = f"[{self.host}]" if ":" in self.host else self.host
        return _host_name(host) in ("localhost", "127.0.0.1", "[::1]", own, *self.allowed_hosts)

    def accepts_origin(self, origin: str, host: str) -> bool:
        """Whether a page may send requests: the server's own page, or one of `cors_origins`.

        The own page has the origin that the Host header names. A proxy may change that header, so pages of
        the allowed hosts are the server's own, too.
        """
        netloc = urlsplit(origin).netloc.lower()
        is_own = netloc == host.lower() or _host_name(netloc) in self.allowed_hosts
        return is_own or ANY in self.cors_origins or origin in self.cors_origins


def _host_name(netloc: str) -> str:
    """Return the name in a Host header, in lower case; empty if it is invalid.

    >>> _host_name("Example.com:80"), _host_name("[::1]:80"), _host_name("me@example.com")
    ('example.com', '[::1]', '')
    """
    name, separator, port = netloc.lower().rpartition(":")
    if not separator or netloc.endswith("]"):
        name, port = netloc.lower(), "0"
    return "" if "@" in name or "/" in name or not port.isdecimal() else name


class SecurityMiddleware:
    """Reject requests without a key, for other hosts and from other origins; add headers to every response.

    The usage of the key is in `request.scope["key_usage"]`, None if no key is required.
    """

    def __init__(self, app: ASGIApp, address: Address, keys: KeyStore) -> None:
        self.app, self.address, self.keys = app, address, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SECURITY_HEADERS)
            await send(message)

        try:
            self.check(scope)
        except GlassformerError as error:
            response = error_response(error, {"Connection": "close"})  # the body is not read
            await response(scope, receive, send_with_headers)
        else:
            await self.app(scope, receive, send_with_headers)

    def check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        scope["key_usage"] = None
        if "content-length" in headers and "transfer-encoding" in headers:
            raise AmbiguousLengthError
        is_probe = scope["path"] in PROBES
        host = headers.get("host", "")
        if not is_probe and not self.address.answers_to(host):
            raise InvalidHostError(host)
        origin = headers.get("origin")
        if origin is not None and not self.address.accepts_origin(origin, host):
            raise CrossOriginError(origin)
        if self.keys and not is_probe:
            key = _credentials(headers.get("authorization", ""))
            scope["key_usage"] = self.keys.authenticate(key, client_address(scope))


def client_address(scope: Scope) -> str:
    """Return the address of the client, `unix` on a Unix socket."""
    client = scope.get("client")
    return client[0] if client else "unix"


def _credentials(authorization: str) -> str:
    """Return the key in an Authorization header: a bearer token, or the password of basic auth.

    >>> _credentials("Bearer secret"), _credentials("Basic bWU6c2VjcmV0"), _credentials("Digest x")
    ('secret', 'secret', '')
    """
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        with suppress(ValueError):
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
    return ""


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine only.

    >>> is_loopback("localhost"), is_loopback("127.0.0.2"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    return host == "localhost" or (is_ip(host) and ipaddress.ip_address(host).is_loopback)


def is_ip(host: str) -> bool:
    with suppress(ValueError):
        return bool(ipaddress.ip_address(host))
    return False
