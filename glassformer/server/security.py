"""Access control: token, Host and Origin checks.

Any web page can make a browser send requests to a server on the user's machine, but it cannot forge `Host`
and `Origin`. Without a token, the server listens on localhost only, accepts only local host names (which
prevents DNS rebinding) and rejects requests from pages of other origins.
"""

from __future__ import annotations

import base64
import ipaddress
import re
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glassformer.errors import GlassformerError, InvalidValueError, MissingValueError
from glassformer.server.errors import CrossOriginError, InvalidApiKeyError, error_response

MIN_TOKEN = 16  # characters

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
    """Where the server listens. token: secret that clients must send; required unless `host` is localhost."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.token is None and not is_loopback(self.host):
            reason = f"to listen on {self.host}, which other machines can reach"
            raise MissingValueError("token", reason, "set GLASSFORMER_TOKEN, or listen on 127.0.0.1")
        if self.token is not None and not re.fullmatch(rf"[!-~]{{{MIN_TOKEN},}}", self.token):
            expected = f"at least {MIN_TOKEN} ASCII characters without spaces"
            raise InvalidValueError("token", f"{len(self.token)} characters", expected)

    @property
    def url(self) -> str:
        """The URL for a browser on this machine."""
        is_wildcard = is_ip(self.host) and ipaddress.ip_address(self.host).is_unspecified
        host = "127.0.0.1" if is_wildcard else self.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def allowed_hosts(self) -> list[str]:
        """The names accepted in the Host header; any name if a token is set."""
        if self.token is not None:
            return ["*"]
        return ["localhost", "127.0.0.1", "[::1]", f"[{self.host}]" if ":" in self.host else self.host]


class SecurityMiddleware:
    """Reject requests without the token and from other origins; add security headers to every response."""

    def __init__(self, app: ASGIApp, address: Address) -> None:
        self.app, self.token = app, address.token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SECURITY_HEADERS)
            await send(message)

        try:
            self.check(Headers(scope=scope))
        except GlassformerError as error:
            response = error_response(error, {"Connection": "close"})  # the body is not read
            await response(scope, receive, send_with_headers)
        else:
            await self.app(scope, receive, send_with_headers)

    def check(self, headers: Headers) -> None:
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower():
            raise CrossOriginError(origin)
        if self.token is not None:
            token = _credentials(headers.get("authorization", ""))
            if not secrets.compare_digest(token.encode("utf-8", "replace"), self.token.encode()):
                raise InvalidApiKeyError


def _credentials(authorization: str) -> str:
    """Return the token in an Authorization header: a bearer token, or the password of basic auth.

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
