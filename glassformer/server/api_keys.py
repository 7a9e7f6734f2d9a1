"""API keys: who may use the server, and how much.

A keys file is a JSON list. Each key has a `name`, which errors show, and its `key` or the hexadecimal
SHA-256 hash of it (`sha256`). The limits are optional:

    [{"name": "search", "sha256": "9f86...", "requests_per_minute": 60, "tokens_per_minute": 100000,
      "max_concurrent_requests": 4}]
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from glassformer.errors import FileMissingError, FileProblemError, GlassformerError, InvalidValueError
from glassformer.server.errors import InvalidApiKeyError, RateLimitExceededError, TooManyFailuresError

MIN_KEY = 16  # characters
CHECK_SECONDS = 1.0  # between checks whether the keys file changed
MAX_FAILURES = 20  # wrong keys of one client per minute
MAX_CLIENTS = 10_000  # remembered addresses
_log = logging.getLogger("glassformer.server")


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """A key and its limits; None: no limit. digest: SHA-256 of the key."""

    name: str
    digest: bytes = field(repr=False)
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    max_concurrent_requests: int | None = None


LIMITS = tuple(item.name for item in fields(ApiKey))[2:]


def digest_key(key: str) -> bytes:
    """Return the SHA-256 hash of a key; raise if the key is too short to be safe."""
    if not re.fullmatch(rf"[!-~]{{{MIN_KEY},}}", key):
        expected = f"at least {MIN_KEY} ASCII characters without spaces"
        raise InvalidValueError("api_key", f"{len(key)} characters", expected)
    return hashlib.sha256(key.encode()).digest()


def read_api_keys(path: Path) -> list[ApiKey]:
    """Read a keys file."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileMissingError(path, "API keys file") from None
    except OSError as error:
        raise FileProblemError(path, error.strerror or "cannot be read") from None
    except (ValueError, RecursionError) as error:
        raise FileProblemError(path, f"is not valid JSON ({error})") from None
    if not isinstance(entries, list) or not entries:
        raise FileProblemError(path, "must be a JSON list with at least one key")
    keys = [_read_key(path, number, entry) for number, entry in enumerate(entries, 1)]
    for values in ([key.name for key in keys], [key.digest for key in keys]):
        if len(set(values)) < len(values):
            raise FileProblemError(path, "two keys have the same name or the same key")
    return keys


def _read_key(path: Path, number: int, entry: Any) -> ApiKey:
    def problem(text: str) -> FileProblemError:
        return FileProblemError(path, f"key {number}: {text}")

    if not isinstance(entry, Mapping):
        raise problem("must be an object")
    if unknown := sorted(set(entry) - {"name", "key", "sha256", *LIMITS}):
        raise problem(f"unknown entry {unknown[0]!r}; known are name, key, sha256, {', '.join(LIMITS)}")
    name, key, sha256 = (entry.get(part) for part in ("name", "key", "sha256"))
    if not isinstance(name, str) or not re.fullmatch(r"[\w.@-]{1,64}", name):
        raise problem("needs a name of up to 64 letters, digits and . @ _ -")
    if (key is None) == (sha256 is None):
        raise problem("needs either key or sha256")
    if key is not None:
        try:
            digest = digest_key(str(key))
        except InvalidValueError as error:
            raise problem(f"expected {error.expected}") from None
    elif isinstance(sha256, str) and re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
        digest = bytes.fromhex(sha256)
    else:
        raise problem("sha256 must have 64 hexadecimal digits")
    limits = {limit: entry[limit] for limit in LIMITS if entry.get(limit) is not None}
    for limit, value in limits.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise problem(f"{limit} must be an integer of at least 1")
    return ApiKey(name=name, digest=digest, **limits)


class RateLimit:
    """A token bucket that holds one minute's worth; `take` may leave a debt that delays later requests."""

    def __init__(self, per_minute: float) -> None:
        self.per_minute, self._level, self._time = per_minute, per_minute, time.monotonic()

    def wait_seconds(self, needed: float) -> float:
        """Return the seconds until `needed` units are available; 0 if they are."""
        now = time.monotonic()
        refill = (now - self._time) * self.per_minute / 60
        self._level, self._time = min(self.per_minute, self._level + refill), now
        return max(0.0, (needed - self._level) * 60 / self.per_minute)

    def take(self, amount: float) -> None:
        self._level -= amount


class Admission:
    """A request that was admitted with a key.

    reserved: tokens of the limit per minute that it may need. used: tokens that it read and generated.
    """

    def __init__(self, usage: KeyUsage) -> None:
        self.usage, self.reserved, self.used = usage, 0, 0

    def reserve(self, tokens: int) -> None:
        """Reserve tokens; raise if the key has not as many left."""
        self.usage.reserve(tokens)
        self.reserved += tokens

    def end(self, tokens: int) -> None:
        """Replace the reserved tokens by those used; if none were counted, the answer was not finished."""
        self.usage.finish((tokens or self.reserved) - self.reserved)


_admission: ContextVar[Admission | None] = ContextVar("admission", default=None)


def reserve_tokens(tokens: int) -> None:
    """Reserve tokens that the current request reads and may generate, if its key has a limit."""
    admission = _admission.get()
    if admission is not None:
        admission.reserve(tokens)


def count_tokens(tokens: int) -> None:
    """Count tokens that the current request has read or generated."""
    admission = _admission.get()
    if admission is not None:
        admission.used += tokens


class KeyUsage:
    """How much of its limits one key uses at the moment."""

    def __init__(self, key: ApiKey) -> None:
        self.key, self.active = key, 0
        self._requests = None if key.requests_per_minute is None else RateLimit(key.requests_per_minute)
        self._tokens = None if key.tokens_per_minute is None else RateLimit(key.tokens_per_minute)

    def start(self) -> Admission:
        """Count a request that starts, in the current context; raise if the key is at one of its limits."""
        key = self.key
        if key.max_concurrent_requests is not None and self.active >= key.max_concurrent_requests:
            raise RateLimitExceededError(key.name, key.max_concurrent_requests, "concurrent requests", 1.0)
        if self._requests is not None and (seconds := self._requests.wait_seconds(1)):
            raise RateLimitExceededError(key.name, self._requests.per_minute, "requests per minute", seconds)
        self._check_tokens(1)
        if self._requests is not None:
            self._requests.take(1)
        self.active += 1
        admission = Admission(self)
        _admission.set(admission)
        return admission

    def _check_tokens(self, needed: int) -> None:
        if self._tokens is not None and (seconds := self._tokens.wait_seconds(needed)):
            limit = self._tokens.per_minute
            raise RateLimitExceededError(self.key.name, limit, "tokens per minute", seconds)

    def reserve(self, tokens: int) -> None:
        """Take tokens before they are used; raise if fewer are left."""
        self._check_tokens(tokens)
        if self._tokens is not None:
            self._tokens.take(tokens)

    def finish(self, tokens: int) -> None:
        """Count the end of a request that used `tokens` tokens more than were reserved."""
        self.active -= 1
        if self._tokens is not None:
            self._tokens.take(tokens)


class KeyStore:
    """The keys of a server. The file is read again when it changes, without losing what was used so far."""

    def __init__(self, api_key: str | None = None, path: Path | None = None) -> None:
        self._path = path
        self._own = [] if api_key is None else [ApiKey(name="default", digest=digest_key(api_key))]
        self._usages: list[KeyUsage] = []
        self._stamp: object = None
        self._checked = 0.0
        self._failures: OrderedDict[str, RateLimit] = OrderedDict()  # by client address
        self._trusted: OrderedDict[tuple[str, bytes], None] = OrderedDict()  # client and a key it has used
        self._set(self._own)
        if path is not None:
            self._set([*self._own, *read_api_keys(path)])
            self._stamp = self._file_stamp()

    def __bool__(self) -> bool:
        return bool(self._own) or self._path is not None

    def authenticate(self, key: str, client: str) -> KeyUsage:
        """Return the usage of a key; raise if there is no such key, or after too many wrong keys of a client.

        Once a client is refused for its wrong keys, it may only use keys that it has used before: guesses are
        limited, and the other users behind the same address are not locked out.
        """
        self._reload_if_changed()
        digest = hashlib.sha256(key.encode("utf-8", "replace")).digest()
        match = None
        for usage in self._usages:  # always compare with all keys, in constant time
            if hmac.compare_digest(digest, usage.key.digest):
                match = usage
        failures = self._failures.get(client)
        wait = 0.0 if failures is None else failures.wait_seconds(1)
        if key and wait and (match is None or (client, digest) not in self._trusted):
            raise TooManyFailuresError(wait)
        if match is None:
            if key:  # a browser first asks without a key
                _remember(self._failures, client, failures or RateLimit(MAX_FAILURES)).take(1)
            raise InvalidApiKeyError
        _remember(self._trusted, (client, digest), None)
        return match

    def reload(self) -> None:
        """Read the file again; if it is invalid, log the problem and keep the keys."""
        if self._path is None:
            return
        self._stamp = self._file_stamp()
        try:
            self._set([*self._own, *read_api_keys(self._path)])
        except GlassformerError as error:
            _log.error("the API keys were not updated: %s", error)
        else:
            _log.info("read %d API keys from %s", len(self._usages) - len(self._own), self._path)

    def _reload_if_changed(self) -> None:
        if self._path is None or time.monotonic() < self._checked + CHECK_SECONDS:
            return
        self._checked = time.monotonic()
        if self._file_stamp() != self._stamp:
            self.reload()

    def _file_stamp(self) -> object:
        assert self._path is not None
        try:
            state = self._path.stat()
        except OSError:
            return None
        return state.st_mtime_ns, state.st_size, state.st_ino

    def _set(self, keys: Sequence[ApiKey]) -> None:
        known = {usage.key: usage for usage in self._usages}
        self._usages = [known.get(key) or KeyUsage(key) for key in keys]


def _remember(memory: OrderedDict[Any, Any], name: Any, value: Any) -> Any:
    """Store a value as the newest, and forget the oldest ones."""
    memory[name] = value
    memory.move_to_end(name)
    if len(memory) > MAX_CLIENTS:
        memory.popitem(last=False)
    return value
