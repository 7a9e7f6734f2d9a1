"""What no client should send: broken bodies, bombs, strange paths, and bytes that are no HTTP."""

from __future__ import annotations

import asyncio
import json
import random
import string
from urllib.parse import quote

import pytest

import glassformer
from glassformer.generation.continuous import Cancelled, Closed, Failed, Unsound
from glassformer.server.answers import Refused, send_bytes
from glassformer.server.limits import Limits
from glassformer.server.metrics import Metrics
from glassformer.server.openai import _vectors
from glassformer.server.passage import Client, Left, Passage
from glassformer.server.writing import Job, Writing
from glassformer.tasks.writing.rewriting import translating
from tests.server.made import awaited, part

DEEP = b"[" * 100_000 + b"]" * 100_000
BODIES = {
    b"{": 400,
    b"nonsense": 400,
    b"\xff\xfe{}": 400,
    b'{"text": "\xed\xa0\x80"}': 400,
    b'{"text": "\\ud800"}': 400,
    b'{"\\udfff": 1}': 400,
    b'{"text": "a", "temperature": NaN}': 400,
    b'{"text": "a", "temperature": Infinity}': 400,
    b'{"text": "a", "temperature": 1e999}': 400,
    b'{"text": "a", "seed": ' + b"9" * 5000 + b"}": 400,
    b'{"text": "a", "seed": ' + b"9" * 300 + b"}": 422,
    b'{"text": "a", "temperature": ' + b"9" * 400 + b"}": 422,
    DEEP: 400,
    b'{"text": ' + DEEP + b"}": 400,
    b'{"text": ' + b"[" * 100 + b"]" * 100 + b"}": 400,
    b"[" + b"1," * 600_000 + b"1]": 413,
    b'{"texts": [' + b'"a",' * 300 + b'"a"]}': 422,
    b'{"text": "' + b"a" * 200_000 + b'"}': 422,
    b'{"text": "a", "num_beams": 1000000000}': 422,
    b'{"text": "a", "num_beams": -1}': 422,
    b'{"text": "a", "num_beams": 2.5}': 422,
    b'{"text": "a", "num_beams": true}': 422,
    b'{"text": "a", "max_new_tokens": 1000000}': 422,
    b'{"text": null}': 422,
    b'{"text": "a", "texts": ["b"]}': 422,
    b'{"text": "a", "temperature": 2}': 422,
    b'{"txt": "a"}': 422,
    b'{"text": "a", "to": "xx"}': 422,
    b'{"text": "a", "model": "' + b"m" * 10_000 + b'"}': 422,
    b'"text"': 422,
    b"[]": 422,
    b"null": 422,
    b"": 422,
}


@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:40]))
def test_a_bad_body_is_a_sentence(server, body):
    with server.client() as client:
        answer = client.post("/translate", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == BODIES[body], answer.text
    assert answer.json()["error"]["message"]


def test_settings_that_leave_no_numbers_are_refused(server):
    words = {"model": "writer", "prompt": "a", "max_tokens": 100, "temperature": 0}
    with server.client() as client:
        assert client.post("/v1/completions", json={**words, "repetition_penalty": 1e-9}).status_code == 422
        assert client.post("/v1/completions", json={**words, "temperature": 1e-9}).status_code == 422


@pytest.mark.parametrize(
    ("came", "status"),
    [
        (Unsound("no numbers"), 422),
        (Failed("broken"), 503),
        (Closed("ending"), 503),
        (Cancelled("left"), None),
    ],
)
def test_what_came_of_a_text_is_told_by_whose_fault_it_is(came, status):
    async def told() -> None:
        job = Job()
        job.end(came)
        await job.done

    with pytest.raises(Refused if status else Left) as caught:
        awaited(told())
    assert getattr(caught.value, "status", None) == status


def test_a_source_that_would_keep_everybody_waiting_is_refused(bundles):
    """A model without a table of positions would read it all, at once: to write from it or to embed it."""
    tokenizer = bundles["translator"].tokenizer
    bundle = glassformer.Pipeline(
        model=glassformer.tiny("t5", vocab_size=tokenizer.vocab_size).eval(), tokenizer=tokenizer
    )
    plan = translating(bundle, {"max_new_tokens": 2}, split="never")
    writing = Writing(bundle, slots=4)

    async def tokens(count: int) -> int:
        (texts,) = await writing.all(plan, [[5] * count], Client(60))
        return len(texts[0].ids)

    try:
        assert awaited(tokens(200)) == 2
        with pytest.raises(Refused, match="4,097 tokens"):
            awaited(tokens(4097))
    finally:
        writing.close()
    for given in ("the cat " * 9000, [5] * 9000):
        with pytest.raises(Refused, match="8,192"):
            _vectors(bundle, given)


def test_a_body_without_a_length_is_bounded_while_it_comes(server):
    def endless():
        for _ in range(60):
            yield b" " * (1 << 20)

    before = server.gauge("memory_bytes")
    with server.client() as client:
        answer = client.post("/translate", content=endless(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert server.gauge("memory_bytes") - before < 200 << 20


def test_bodies_are_bounded_together_too():
    async def told() -> list[int]:
        gate, statuses = asyncio.Event(), []

        async def app(scope, receive, send):
            await gate.wait()
            await send_bytes(send, 200, b"", "text/plain")

        async def ask(passage: Passage, count: int) -> None:
            said = iter([{"type": "http.request", "body": b" " * count + b"1"}])

            async def receive():
                return next(said, None) or await asyncio.Event().wait()

            async def send(message):
                if "status" in message:
                    statuses.append(message["status"])

            headers = [(b"content-type", b"application/json")]
            scope = {"type": "http", "method": "POST", "path": "/translate", "headers": headers}
            await passage(scope, receive, send)

        passage = Passage(app, Limits(bodies=100), Metrics())
        first = asyncio.create_task(ask(passage, 60))
        await asyncio.sleep(0.05)
        await ask(passage, 60)
        gate.set()
        await first
        await ask(passage, 60)
        return statuses

    assert awaited(told()) == [429, 200, 200]


def test_a_length_that_is_too_large_is_refused_at_once(server):
    head = f"POST /translate HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Length: 99999999999\r\n\r\n"
    assert server.send(head.encode(), half=False).split(b" ", 2)[1] == b"413"


@pytest.mark.slow
def test_paths_lead_nowhere_but_to_the_page(server, report):
    """Only the table's files are ever given out, whatever way a path is spelt."""
    draw = random.Random(11)
    ways = [
        "..",
        "%2e%2e",
        "%252e%252e",
        "..%2f",
        "..%5c",
        "%c0%ae%c0%ae",
        ".",
        "",
        "...",
        "....//",
        "\\..",
        "%00",
    ]
    ends = [
        "etc/passwd",
        "etc%2fpasswd",
        "proc/self/environ",
        "glassformer/server/app.py",
        "pyproject.toml",
        "app.py",
        "C:/windows/win.ini",
        "%5c%5chost%5cshare",
        "index.html%00.js",
        "__init__.py",
        "spec.json",
        "model.safetensors",
    ]
    failures = []
    tried = part(2000)
    for _ in range(tried):
        start = draw.choice(["/", "/assets/", "//", "/v1/", "/trace/", "/assets/../", "/docs/", "/%2f"])
        path = (
            start + "/".join(draw.choice(ways) for _ in range(draw.randint(1, 8))) + "/" + draw.choice(ends)
        )
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n\r\n"
        heard = server.send(head.encode("latin-1"), half=False)
        status = int(heard.split(b" ", 2)[1]) if heard.startswith(b"HTTP/1.1 ") else 0
        if status not in (400, 403, 404, 422) or b"root:" in heard or b"import" in heard:
            failures.append(f"{path}: {status}")
    report("paths that lead elsewhere", tried, failures)
    assert server.alive()


def _request(draw: random.Random, port: int) -> bytes:
    """Something like HTTP, broken in one way or more."""
    good = {"model": "translator", "text": "a cat", "max_new_tokens": 3}
    body = json.dumps(good).encode()
    method = draw.choice(["GET", "POST", "PUT", "OPTIONS", "TRACE", "get", "G\x00T", "", "PRI", "CONNECT"])
    path = draw.choice(
        ["/translate", "/health", "/trace", "/v1/completions", "*", "", "http://x/", "/" + "a" * 9000]
    )
    version = draw.choice(["HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/9", "", "HTTP/1.1 "])
    headers = [f"Host: 127.0.0.1:{port}", "Content-Type: application/json"]
    headers += draw.sample(
        [
            f"Content-Length: {len(body)}",
            "Content-Length: 3",
            "Content-Length: -1",
            "Content-Length: 1e3",
            "Transfer-Encoding: chunked",
            "Transfer-Encoding: gzip, chunked",
            "Expect: 100-continue",
            "Connection: close",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "X: " + "y" * draw.choice([1, 70_000]),
            "Bad Header: z",
            ": empty",
            "X: a\r\n folded",
            "X: a\nY: b",
            "Content-Type: text/plain",
            "Content-Encoding: gzip",
        ],
        draw.randint(0, 5),
    )
    raw = "\r\n".join([f"{method} {path} {version}", *headers, "", ""]).encode("latin-1")
    raw += draw.choice(
        [body, b"", b'5\r\n{"a":\r\n0\r\n\r\n', b"ffffffffffffffff\r\n", body * 2, b"\x00" * 64]
    )
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
def test_raw_bytes_never_break_it(server, report):
    """2,000 requests that are HTTP only in part: no 5xx, and the same process afterwards."""
    draw = random.Random(5)
    failures = []
    tried = part(2000)
    for _ in range(tried):
        raw = _request(draw, server.port)
        heard = server.send(raw)
        if heard.startswith(b"HTTP/1.1 5") or b"\r\nHTTP/1.1 5" in heard:
            failures.append(f"{raw[:200]!r} -> {heard[:200]!r}")
    with server.client() as client:
        if client.get("/health").status_code != 200:
            failures.append("the server answers no more")
    report("raw bytes", tried, failures)
    assert server.alive()


@pytest.mark.slow
def test_values_of_any_kind_never_break_it(server, report):
    """Bodies with the right keys and any values: 2xx or 4xx, with a sentence."""
    draw = random.Random(7)
    letters = string.printable + "안녕🙂\u202e\u0000\ufffd"

    def value(depth: int = 0) -> object:
        kinds = 9 if depth < 3 else 7
        match draw.randrange(kinds):
            case 0:
                return draw.choice([0, 1, -1, 2, 7, 2**31, 2**63, 10**30, -(2**63)])
            case 1:
                return draw.choice([0.0, 0.5, 1.0, -0.1, 1e-300, 1e300, 1.5])
            case 2:
                return draw.choice([True, False, None])
            case 3 | 4:
                return "".join(draw.choice(letters) for _ in range(draw.randint(0, 40)))
            case 5:
                return draw.choice(
                    ["translator", "writer", "series", "pictures", "classifier", "never", "hf"]
                )
            case 6:
                return draw.choice(["data:image/png;base64,AAAA", "iVBORw0KGgo=", "AAAA", quote("안")])
            case 7:
                return [value(depth + 1) for _ in range(draw.randint(0, 4))]
        return {draw.choice(["columns", "ds", "a", ""]): value(depth + 1) for _ in range(draw.randint(0, 3))}

    with server.client() as client:
        schema = client.get("/openapi.json").json()
        operations = []
        for path, methods in schema["paths"].items():
            if "post" in methods:
                name = methods["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
                operations.append(
                    (path, list(schema["components"]["schemas"][name.rpartition("/")[2]]["properties"]))
                )
        failures = []
        tried = part(4000)
        for _ in range(tried):
            path, names = draw.choice(operations)
            body = {name: value() for name in draw.sample(names, draw.randint(1, min(6, len(names))))}
            if draw.random() < 0.5:
                body["model"] = draw.choice(
                    ["translator", "writer", "series", "classifier", "encoder", "pictures"]
                )
            body.pop("seconds", None)
            answer = client.post(path, json=body)
            if answer.status_code >= 500 or (
                answer.status_code >= 400 and not answer.json()["error"]["message"]
            ):
                failures.append(
                    f"{path} {json.dumps(body)[:300]} -> {answer.status_code} {answer.text[:200]}"
                )
    report("bodies with any values", tried, failures)
    assert server.alive()
