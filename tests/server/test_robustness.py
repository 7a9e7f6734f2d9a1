"""Broken and oversized requests: an error with the right status, never a crash."""

from __future__ import annotations

import json
import random

import pytest

import glassformer
from glassformer.errors import GlassformerError, InputTooLongError
from glassformer.server.generation import GenerationService
from glassformer.server.openai import _embed
from glassformer.tasks import Translator
from tests.server.harness import part, run_async

DEEP = b"[" * 100_000 + b"]" * 100_000
BODIES = [
    b"{",
    b"\xff\xfe{}",
    b'{"text": "\xed\xa0\x80"}',
    b'{"text": "\\ud800"}',
    b'{"\\udfff": 1}',
    b'{"text": "a", "temperature": NaN}',
    b'{"text": "a", "temperature": 1e999}',
    b'{"text": "a", "seed": ' + b"9" * 5000 + b"}",
    DEEP,
    b'{"text": ' + DEEP + b"}",
    b'{"texts": [' + b'"a",' * 300 + b'"a"]}',
    b'{"text": "' + b"a" * 200_000 + b'"}',
    b'{"text": "a", "num_beams": 1000000000}',
    b'{"text": "a", "num_beams": 2.5}',
    b'{"text": "a", "num_beams": true}',
    b'{"text": null}',
    b'{"text": "a", "texts": ["b"]}',
    b'{"text": "a", "temperature": 2}',
    b'{"txt": "a"}',
    b'{"text": "a", "to": "xx"}',
    b"[]",
    b"",
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:40]))
def test_invalid_bodies_are_refused(server, body):
    with server.client() as client:
        response = client.post("/translate", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 422, response.text
    error = response.json()["error"]
    assert error["message"] and error["code"]


def test_overlong_inputs_are_refused_even_if_the_model_has_no_limit(bundles):
    """T5 has no table of positions: it would encode everything in one step while all others wait."""
    tokenizer = bundles["translator"].tokenizer
    bundle = glassformer.Pipeline(
        model=glassformer.tiny("t5", vocab_size=tokenizer.vocab_size).eval(), tokenizer=tokenizer
    )
    task = Translator(bundle, max_new_tokens=2, split="never")
    service = GenerationService(bundle, slots=4)

    async def tokens(count: int) -> int:
        (texts,) = await service.generate_all(task.request, [[5] * count])
        return len(texts[0].ids)

    try:
        assert run_async(tokens(200)) == 2
        with pytest.raises(InputTooLongError):
            run_async(tokens(4097))
    finally:
        service.close()
    for given in ("the cat " * 9000, [5] * 9000):
        with pytest.raises(GlassformerError) as caught:
            _embed(bundle, given)
        assert caught.value.fields["limit"] == 8192


def test_a_chunked_body_is_limited_while_it_is_read(server):
    def endless():
        for _ in range(60):
            yield b" " * (1 << 20)

    before = server.gauge("memory_bytes")
    with server.client() as client:
        response = client.post("/translate", content=endless(), headers={"Content-Type": "application/json"})
    assert response.status_code == 413
    assert server.gauge("memory_bytes") - before < 200 << 20


def test_an_excessive_content_length_is_refused_at_once(server):
    head = f"POST /translate HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Length: 99999999999\r\n\r\n"
    assert server.send(head.encode(), half=False).split(b" ", 2)[1] == b"413"


def test_paths_outside_the_page_are_not_served(server):
    for path in ("/../app.py", "/assets/../../page.py", "/%2e%2e/page.py", "/assets/%2e%2e%2fbuilt-from.txt"):
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n\r\n"
        assert server.send(head.encode(), half=False).split(b" ", 2)[1] == b"404", path


def _request(draw: random.Random, port: int) -> bytes:
    """Something like HTTP, broken in one way or more."""
    body = json.dumps({"model": "translator", "text": "a cat", "max_new_tokens": 3}).encode()
    method = draw.choice(["GET", "POST", "OPTIONS", "get", "G\x00T", "", "PRI", "CONNECT"])
    path = draw.choice(["/translate", "/health", "/trace", "*", "", "http://x/", "/" + "a" * 9000])
    version = draw.choice(["HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "", "HTTP/1.1 "])
    headers = [f"Host: 127.0.0.1:{port}", "Content-Type: application/json"]
    headers += draw.sample(
        [
            f"Content-Length: {len(body)}",
            "Content-Length: 3",
            "Content-Length: -1",
            "Transfer-Encoding: chunked",
            "Transfer-Encoding: gzip, chunked",
            "Expect: 100-continue",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "X: " + "y" * draw.choice([1, 70_000]),
            "Bad Header: z",
            ": empty",
            "X: a\nY: b",
            "Content-Encoding: gzip",
        ],
        draw.randint(0, 5),
    )
    raw = "\r\n".join([f"{method} {path} {version}", *headers, "", ""]).encode("latin-1")
    raw += draw.choice([body, b"", b'5\r\n{"a":\r\n0\r\n\r\n', b"ffffffffffffffff\r\n", b"\x00" * 64])
    match draw.randint(0, 5):
        case 0:
            raw = raw[: draw.randrange(len(raw) + 1)]
        case 1:
            at = draw.randrange(len(raw) + 1)
            raw = raw[:at] + bytes(draw.randrange(256) for _ in range(draw.randint(1, 20))) + raw[at:]
        case 2:
            raw = bytes(draw.randrange(256) for _ in range(draw.randint(1, 300)))
    return raw


@pytest.mark.slow
def test_malformed_http_never_causes_a_server_error(server, report):
    draw = random.Random(5)
    failures = []
    tried = part(2000)
    for _ in range(tried):
        raw = _request(draw, server.port)
        response = server.send(raw)
        if response.startswith(b"HTTP/1.1 5") or b"\r\nHTTP/1.1 5" in response:
            failures.append(f"{raw[:200]!r} -> {response[:200]!r}")
    with server.client() as client:
        if client.get("/health").status_code != 200:
            failures.append("the server does not respond any more")
    report("raw bytes", tried, failures)
    assert server.alive()
