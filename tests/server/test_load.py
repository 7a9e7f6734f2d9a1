"""Many clients at once: same results as alone, nothing left of those that disconnect, 429 for too many."""

from __future__ import annotations

import base64
import io
import json
import math
import random
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import psutil
import pytest
from PIL import Image

from tests.faults.scale import trials
from tests.server.harness import LINES, Server, serving

LONG = {"model": "writer", "prompt": "the cat sat", "max_tokens": 120, "temperature": 0}


def _picture(n: int) -> str:
    buffer = io.BytesIO()
    Image.new("RGB", (20 + n, 16), (40 * n % 256, 200 - n, n)).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def _requests() -> list[tuple[str, dict[str, Any]]]:
    """Requests of every kind and of many lengths."""
    draw = random.Random(1)
    found: list[tuple[str, dict[str, Any]]] = []
    for n in range(8):
        text = " ".join(draw.choice(LINES).split()[: draw.randint(1, 9)])
        body_options = {"prompt": text, "max_tokens": draw.randint(1, 60), "model": "writer"}
        found.append(("/v1/completions", {**body_options, "temperature": 0}))
        found.append(("/v1/completions", {**body_options, "temperature": 1.0, "seed": n, "n": 2}))
        found.append(("/v1/completions", {**body_options, "temperature": 0, "stream": True}))
        found.append(
            ("/translate", {"model": "translator", "text": text, "max_new_tokens": draw.randint(2, 30)})
        )
        found.append(
            ("/translate", {"texts": [text, "", "a cat"], "num_beams": 1 + n % 3, "max_new_tokens": 12})
        )
        found.append(("/v1/embeddings", {"model": "encoder", "input": [text, "a"][: 1 + n % 2]}))
        found.append(("/classify", {"model": "classifier", "texts": [text]}))
        found.append(("/classify", {"model": "pictures", "images": [_picture(n)]}))
        series = {name: [math.sin(n + k * t) for t in range(30)] for k, name in enumerate("ab", 1)}
        found.append(("/forecast", {"series": {"columns": series}}))
        found.append(("/trace", {"model": "translator", "text": text}))
    return found


def _answer(client: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    """What matters of a response; numbers that depend on the rest of the batch are rounded."""
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    if body.get("stream"):
        events = [json.loads(line[6:]) for line in answer.text.split("\n\n")[:-2]]
        assert answer.text.endswith("data: [DONE]\n\n")
        return "".join(one["text"] for event in events for one in event["choices"])
    found = answer.json()
    match path:
        case "/v1/completions":
            return found["choices"], found["usage"]
        case "/translate":
            return [(one["text"], one["num_tokens"], round(one["score"], 3)) for one in found["translations"]]
        case "/trace":
            return found["id"], found["outcome"], found["sequences"]
    return found


@pytest.mark.slow
def test_results_under_load_match_those_of_a_single_client(server, report):
    requests = _requests()
    with server.client() as client:
        expected = [_answer(client, *one) for one in requests]
    order = list(range(trials(64 * 20)))
    random.Random(2).shuffle(order)
    failures: list[str] = []

    def one_client(n: int) -> None:
        with server.client() as client:
            for number in order[n::64]:
                path, body = requests[number % len(requests)]
                found = _answer(client, path, body)
                if found != expected[number % len(requests)]:
                    failures.append(f"{path} {body}: {found} and expected {expected[number % len(requests)]}")

    with ThreadPoolExecutor(64) as pool:
        list(pool.map(one_client, range(64)))
    report("answers under load", len(order), failures)


def _becomes_true(test: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if test():
            return True
        time.sleep(0.05)
    return test()


def _idle(server: Server) -> bool:
    return all(server.gauge(name) == 0 for name in ("slots_used", "queue_length", "requests_active"))


@pytest.mark.slow
def test_disconnected_clients_free_their_resources(server, report):
    """Before, during or after the body, or in mid-response: slots, threads, files and memory come back."""
    draw = random.Random(3)
    process = psutil.Process(server.process.pid)

    def disconnect() -> None:
        body_options = {**LONG, "stream": draw.random() < 0.5, "n": draw.choice([1, 4])}
        path = "/v1/completions"
        if draw.random() < 0.3:
            body_options = {"model": "translator", "texts": LINES[:20], "num_beams": 4, "max_new_tokens": 30}
            path = "/translate"
        body = json.dumps(body_options).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: application/json\r\n"
        raw = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            sock.settimeout(2)
            match draw.randrange(4):
                case 0:
                    sock.sendall(raw[: draw.randrange(len(raw))])
                case 1:
                    sock.sendall(raw)
                case 2:
                    sock.sendall(raw)
                    time.sleep(draw.random() * 0.05)
                case 3:
                    sock.sendall(raw)
                    with suppress(TimeoutError):  # a busy machine responds later
                        sock.recv(10)
            if draw.random() < 0.5:  # reset the connection
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")

    for _ in range(10):  # let caches fill before counting
        disconnect()
    assert _becomes_true(lambda: _idle(server), 10)
    threads, files, memory = process.num_threads(), process.num_fds(), process.memory_info().rss
    tried = trials(300)
    for _ in range(tried):
        disconnect()
    failures = []
    if not _becomes_true(lambda: _idle(server), 5):
        failures.append("slots or requests are still in use after 5 s")
    if not _becomes_true(lambda: process.num_fds() <= files + 2, 20):
        failures.append(f"{process.num_fds()} open files, {files} before")
    if process.num_threads() > threads + 2:
        failures.append(f"{process.num_threads()} threads, {threads} before")
    if process.memory_info().rss > memory + (64 << 20):
        failures.append(f"memory grew from {memory >> 20} to {process.memory_info().rss >> 20} MiB")
    if server.gauge("disconnects_total") < tried / 4:
        failures.append("almost no client disconnected")
    report("clients that leave", tried, failures)


@pytest.fixture(scope="module")
def small(folders):
    """A server with a short queue and a short time limit."""
    with serving([folders["writer"]], "--max-requests", "4", "--slots", "1", "--timeout", "4") as running:
        yield running


def test_request_limit_and_timeout(small):
    server = small
    responses: list[httpx.Response] = []

    def ask(_: int) -> None:
        with server.client() as client:
            responses.append(client.post("/v1/completions", json={**LONG, "max_tokens": 30}))

    with ThreadPoolExecutor(40) as pool, server.client() as client:
        asking = pool.map(ask, range(40))
        began = time.monotonic()
        assert client.get("/health").status_code == 200
        assert time.monotonic() - began < 3
        list(asking)
    codes = [one.status_code for one in responses]
    assert set(codes) == {200, 429}
    refused = next(one for one in responses if one.status_code == 429)
    assert refused.headers["retry-after"] == "1" and refused.json()["error"]["code"] == "queue_full"
    with server.client() as client:
        short = {**LONG, "max_tokens": 5}
        assert _becomes_true(lambda: client.post("/v1/completions", json=short).status_code == 200, 5)
        # a response that takes longer than the limit, which the client cannot raise
        slow = {**LONG, "prompt": [LONG["prompt"]] * 128, "max_tokens": 120}
        answer = client.post("/v1/completions", json=slow, headers={"X-Request-Timeout": "900"})
        assert answer.status_code == 504 and answer.json()["error"]["fields"] == {"seconds": 4.0}
        assert _becomes_true(lambda: _idle(server), 5)
        with client.stream("POST", "/v1/completions", json={**slow, "stream": True}) as streamed:
            last = streamed.read().decode().strip().split("\n\n")[-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "request_timeout"
        assert _becomes_true(lambda: _idle(server), 5)
    # a client that disconnects frees its slots long before the end
    with pytest.raises(httpx.ReadTimeout), server.client() as client:
        client.post("/v1/completions", json=slow, timeout=0.5)
    assert _becomes_true(lambda: _idle(server), 2.5)


def test_shutdown_finishes_requests_in_progress(folders, bundles):
    (whole,) = bundles["writer"].generate([LONG["prompt"]], max_new_tokens=120)
    with serving([folders["writer"]], "--slots", "4") as server:
        body, found = {**LONG, "n": 2}, []

        def all_accepted() -> bool:
            done = server.gauge("requests_total", "/v1/completions")
            return done + server.gauge("requests_active") >= 9

        def ask(streamed: bool) -> None:
            with (
                server.client() as client,
                client.stream("POST", "/v1/completions", json={**body, "stream": streamed}) as answer,
            ):
                found.append(answer.read().decode())

        threads = [threading.Thread(target=ask, args=(n < 6,)) for n in range(9)]
        for thread in threads:
            thread.start()
        assert _becomes_true(all_accepted, 20)
        server.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(60)
        assert server.process.wait(30) == 0
        assert "SIGTERM: finishing" in server.log()
        assert len(found) == 9
        for answer in found:
            if answer.startswith("data: "):
                assert answer.endswith("data: [DONE]\n\n")
                events = [json.loads(line[6:]) for line in answer.split("\n\n")[:-2]]
                texts = [""] * 2
                for event in events:
                    for one in event["choices"]:
                        texts[one["index"]] += one["text"]
            else:
                texts = [one["text"] for one in json.loads(answer)["choices"]]
            assert texts == [whole] * 2
