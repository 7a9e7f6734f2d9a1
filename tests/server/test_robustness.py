"""Broken and oversized requests: an error with the right status, never a crash."""

from __future__ import annotations

import pytest

import glassformer
from glassformer.errors import GlassformerError, InputTooLongError
from glassformer.server.models import GenerationService
from glassformer.server.openai import _encode
from glassformer.tasks import Translator
from glassformer.tasks.base import NO_CALLBACKS
from tests.server.harness import run_async

DEEP = b"[" * 100_000 + b"]" * 100_000
BODIES = [
    b"{",
    b"\xff\xfe{}",
    b'{"text": "\xed\xa0\x80"}',
    b'{"text": "\\ud800"}',
    b'{"text": "a", "temperature": NaN}',
    b'{"text": "a", "seed": ' + b"9" * 5000 + b"}",
    DEEP,
    b'{"text": ' + DEEP + b"}",
    b'{"texts": [' + b'"a",' * 300 + b'"a"]}',
    b'{"text": "' + b"a" * 200_000 + b'"}',
    b'{"text": "a", "num_beams": 2.5}',
    b'{"text": "a", "num_beams": true}',
    b'{"text": "a", "texts": ["b"]}',
    b'{"txt": "a"}',
    b'{"text": "a", "to": "xx"}',
    b"[]",
    b"",
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:40]))
def test_invalid_bodies_are_rejected(server, body):
    with server.client() as client:
        response = client.post("/translate", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 422, response.text
    error = response.json()["error"]
    assert error["message"] and error["code"]


def test_long_inputs_are_rejected_even_if_the_model_has_no_limit(bundles):
    """T5 has no table of positions: it would encode everything in one step while all others wait."""
    tokenizer = bundles["translator"].tokenizer
    bundle = glassformer.Pipeline(
        model=glassformer.tiny("t5", vocab_size=tokenizer.vocab_size).eval(), tokenizer=tokenizer
    )
    task = Translator(bundle, max_new_tokens=2, split="never")
    service = GenerationService(bundle, slots=4)

    async def tokens(count: int) -> int:
        (texts,) = await service.generate_all(task.params, [[5] * count])
        return len(texts[0].ids)

    try:
        assert run_async(tokens(200)) == 2
        with pytest.raises(InputTooLongError):
            run_async(tokens(4097))
    finally:
        service.close()
    for given in ("the cat " * 9000, [5] * 9000):
        with pytest.raises(GlassformerError) as caught:
            _encode(given, bundle, NO_CALLBACKS)
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


def test_excessive_content_length_is_rejected_at_once(server):
    head = f"POST /translate HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Length: 99999999999\r\n\r\n"
    assert server.send(head.encode(), half=False).split(b" ", 2)[1] == b"413"


def test_paths_outside_the_page_are_not_served(server):
    for path in ("/../app.py", "/assets/../../page.py", "/%2e%2e/page.py", "/assets/%2e%2e%2fbuilt-from.txt"):
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n\r\n"
        assert server.send(head.encode(), half=False).split(b" ", 2)[1] == b"404", path
