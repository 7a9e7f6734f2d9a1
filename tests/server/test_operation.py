"""What an operator relies on: proxies, probes, keys, limits, deadlines, TLS and bounded memory."""

from __future__ import annotations

import base64
import hashlib
import json
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
import torch

from glassformer.errors import GlassformerError, InputTooLongError, InvalidValueError
from glassformer.generation import GenerationParams, engine
from glassformer.generation.continuous.runner import SlotRunner
from glassformer.inference import memory
from glassformer.server import api_keys
from glassformer.server.api_keys import MAX_FAILURES, KeyStore, RateLimit
from glassformer.server.app import create_app
from glassformer.server.errors import (
    InvalidApiKeyError,
    RateLimitExceededError,
    TooManyFailuresError,
    UnavailableError,
)
from glassformer.server.limits import MIN_MEMORY
from glassformer.server.models import MIN_CACHED, ModelRegistry, cache_tokens
from glassformer.server.security import Address
from tests.server.harness import serving

KEY = "sesame-sesame-sesame"
OTHER = "another-key-of-someone"
LONG = {"model": "writer", "prompt": "the cat sat", "max_tokens": 120, "temperature": 0}


@pytest.fixture(scope="module")
def proxied(folders, tmp_path_factory):
    """A server as it runs behind a TLS proxy, with two keys."""
    keys = tmp_path_factory.mktemp("keys") / "keys.json"
    digest = hashlib.sha256(OTHER.encode()).hexdigest()
    keys.write_text(json.dumps([{"name": "team", "sha256": digest, "requests_per_minute": 3}]))
    with socket.create_server(("127.0.0.1", 0)) as free:
        metrics_port = free.getsockname()[1]
    options = ["--allowed-host", "models.example.com", "--cors-origin", "https://app.example.com"]
    options += ["--api-keys-file", str(keys), "--log-format", "json", "--metrics-port", str(metrics_port)]
    options += ["--forwarded-allow-ips", "127.0.0.1"]
    env = {"GLASSFORMER_API_KEY": KEY}
    with serving([folders["writer"]], "--host", "0.0.0.0", *options, env=env) as running:
        yield running, keys, metrics_port


def test_a_browser_logs_in_behind_a_tls_proxy(proxied):
    server, _, _ = proxied
    basic = {"Authorization": f"Basic {base64.b64encode(f'me:{KEY}'.encode()).decode()}"}
    page = {**basic, "Origin": "https://models.example.com", "X-Forwarded-Proto": "https"}
    with server.client() as client:
        for host in ("models.example.com", "models.example.com:443", f"127.0.0.1:{server.port}"):
            assert client.get("/", headers={"Host": host}).status_code == 401
            response = client.post("/v1/completions", json=LONG, headers={**page, "Host": host})
            assert response.status_code == 200, host
        assert client.get("/", headers={**basic, "Host": "evil.example"}).status_code == 400
        evil = {**page, "Origin": "https://evil.example"}
        assert client.post("/v1/completions", json=LONG, headers=evil).status_code == 403


def test_cors_allows_listed_pages_only(proxied):
    server, _, _ = proxied
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    with server.client() as client:
        allowed = client.options("/v1/models", headers={**asks, "Origin": "https://app.example.com"})
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == "https://app.example.com"
        refused = client.options("/v1/models", headers={**asks, "Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in refused.headers
        missing = client.get("/v1/models", headers={"Origin": "https://app.example.com"})
        assert missing.status_code == 401  # and the page can read it
        assert missing.headers["access-control-allow-origin"] == "https://app.example.com"


def test_probes_are_open_and_metrics_are_not(proxied):
    server, _, metrics_port = proxied
    with server.client() as client:
        for path in ("/health", "/ready"):  # as kubelet asks: no key, the address of the pod as the host
            for method in ("GET", "HEAD"):
                assert client.request(method, path, headers={"Host": "10.0.0.7:8000"}).status_code == 200
        assert client.get("/metrics").status_code == 401
        assert client.head("/", headers={"Authorization": f"Bearer {KEY}"}).status_code == 200
        own = client.get(f"http://127.0.0.1:{metrics_port}/metrics")
        assert own.status_code == 200 and "glassformer_requests_active" in own.text
    assert server.send(b"GET /health HTTP/1.0\r\n\r\n", half=False).split(b" ", 2)[1] == b"200"


def test_readiness_ends_when_the_server_drains_or_is_full(bundles, monkeypatch):
    app = create_app({"series": bundles["series"]})
    state = app.state.server
    state.check_ready()
    state.draining = True
    with pytest.raises(GlassformerError) as caught:
        state.check_ready()
    assert caught.value.status == 503
    state.draining, state.active = False, state.limits.max_requests
    with pytest.raises(GlassformerError) as caught:
        state.check_ready()
    assert caught.value.code == "queue_full"
    state.active = 0
    monkeypatch.setattr("glassformer.server.limits.available_memory", lambda: MIN_MEMORY - 1)
    with pytest.raises(GlassformerError) as caught:
        state.check()  # requests are refused before memory runs out
    assert caught.value.status == 503


def test_keys_have_limits_and_are_read_again(proxied):
    server, keys, _ = proxied
    headers = {"Authorization": f"Bearer {OTHER}"}
    body = {**LONG, "max_tokens": 1}
    with server.client(headers=headers) as client:
        codes = [client.post("/v1/completions", json=body).status_code for _ in range(4)]
        assert codes == [200, 200, 200, 429]
        refused = client.post("/v1/completions", json=body)
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert client.get("/v1/models").status_code == 200  # only work counts
        before = keys.read_text()
        keys.write_text("[")  # a broken file changes nothing
        server.process.send_signal(signal.SIGHUP)
        time.sleep(1.2)
        assert client.get("/v1/models").status_code == 200
        entries = json.loads(before)
        entries[0] = {"name": "new-team", "key": "a-new-key-for-the-team"}
        keys.write_text(json.dumps(entries))
        time.sleep(1.2)
        assert client.get("/v1/models").status_code == 401
        new = {"Authorization": "Bearer a-new-key-for-the-team"}
        assert client.post("/v1/completions", json=body, headers=new).status_code == 200
    assert "API keys were not updated" in server.log()


def test_wrong_keys_are_throttled_without_locking_out_known_clients():
    store = KeyStore(KEY)
    store.authenticate(KEY, "10.0.0.1")
    for _ in range(MAX_FAILURES):
        with pytest.raises(InvalidApiKeyError):
            store.authenticate("wrong", "10.0.0.1")
    with pytest.raises(TooManyFailuresError) as caught:
        store.authenticate("wrong", "10.0.0.1")
    assert 0 < caught.value.retry_after <= 60
    assert store.authenticate(KEY, "10.0.0.1").key.name == "default"  # it has used this key before
    assert store.authenticate(KEY, "10.0.0.2").key.name == "default"


@pytest.fixture(autouse=True)
def outside_of_a_request():
    """`KeyUsage.start` counts for the current context, which all later tests of this process share."""
    before = api_keys._admission.set(None)
    yield
    api_keys._admission.reset(before)


def test_concurrency_and_token_limits_of_a_key(tmp_path):
    path = tmp_path / "keys.json"
    limits = {"max_concurrent_requests": 2, "tokens_per_minute": 100}
    path.write_text(json.dumps([{"name": "a", "key": KEY, **limits}]))
    usage = KeyStore(path=path).authenticate(KEY, "")
    first = usage.start()
    usage.start()
    with pytest.raises(RateLimitExceededError) as caught:
        usage.start()
    assert caught.value.unit == "concurrent requests"
    first.end(tokens=150)
    with pytest.raises(RateLimitExceededError) as caught:
        usage.start()
    assert caught.value.unit == "tokens per minute" and 25 < caught.value.retry_after < 35


def test_tokens_are_reserved_when_a_request_starts_and_settled_at_its_end(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr("glassformer.server.api_keys.time.monotonic", lambda: now)
    path = tmp_path / "keys.json"
    path.write_text(json.dumps([{"name": "a", "key": KEY, "tokens_per_minute": 100}]))
    usage = KeyStore(path=path).authenticate(KEY, "")
    first, second = usage.start(), usage.start()
    with pytest.raises(RateLimitExceededError):
        first.reserve(101)  # more than the key ever has
    first.reserve(80)
    with pytest.raises(RateLimitExceededError):
        second.reserve(21)  # what the first may still need
    second.reserve(20)
    first.end(tokens=30)
    with pytest.raises(RateLimitExceededError):
        second.reserve(51)
    second.reserve(50)
    second.end(tokens=0)  # the client left: what was generated is not known
    with pytest.raises(RateLimitExceededError):
        usage.start()


def test_limits_refill_evenly_over_a_minute(monkeypatch):
    now = 100.0
    monkeypatch.setattr("glassformer.server.api_keys.time.monotonic", lambda: now)
    bucket = RateLimit(60)
    bucket.take(60)
    assert bucket.wait_seconds(1) == pytest.approx(1)
    now += 0.25
    assert bucket.wait_seconds(1) == pytest.approx(0.75)
    now += 29.75
    assert bucket.wait_seconds(30) == 0 < bucket.wait_seconds(31)
    now += 3600
    assert bucket.wait_seconds(60) == 0 < bucket.wait_seconds(61)  # it holds no more than one minute's worth


def test_a_key_cannot_read_or_generate_more_than_its_tokens(folders, tmp_path):
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps([{"name": "a", "key": KEY, "tokens_per_minute": 100}]))
    headers = {"Authorization": f"Bearer {KEY}"}
    with (
        serving([folders["writer"]], "--api-keys-file", str(keys)) as server,
        server.client(headers=headers) as client,
    ):
        body = {**LONG, "max_tokens": 2}
        for large in ({"max_tokens": 110}, {"max_tokens": 60, "n": 2}, {"prompt": ["a"] * 40}):
            refused = client.post("/v1/completions", json={**body, **large})
            assert refused.status_code == 429, large
            assert refused.json()["error"]["fields"]["unit"] == "tokens per minute"
        assert client.post("/v1/embeddings", json={"input": ["the cat sat"] * 40}).status_code == 429
        assert client.post("/v1/completions", json=body).status_code == 200  # nothing was charged
        forged = [
            client.get("/v1/models", headers={"Authorization": "Bearer no", "X-Forwarded-For": f"10.1.2.{n}"})
            for n in range(MAX_FAILURES + 1)
        ]
        assert {response.status_code for response in forged[:-1]} == {401}
        assert forged[-1].status_code == 429  # without --forwarded-allow-ips, the header is not trusted


def test_a_model_that_does_not_answer_is_not_ready(bundles, monkeypatch):
    for name in ("series", "writer"):  # a task that hangs, and a step of the generation
        models = ModelRegistry({name: bundles[name]})
        model, release = models[name], threading.Event()
        try:
            models.check_ready()
            if model.generation is None:
                model.thread.submit(release.wait, 60)
            else:
                monkeypatch.setattr(SlotRunner, "turn", lambda *_, end=release: end.wait(60))
                model.generation._scheduler.submit([1], GenerationParams(max_new_tokens=2))
            time.sleep(0.3)
            models.check_ready()  # it may still answer
            monkeypatch.setattr("glassformer.server.models.MAX_STEP_SECONDS", 0.1)
            with pytest.raises(UnavailableError):
                models.check_ready()
        finally:
            monkeypatch.undo()
            release.set()
            model.thread.shutdown()
            if model.generation is not None:
                model.generation._scheduler.close(drain=False)


@pytest.mark.parametrize(
    "entries",
    [
        "[",
        "[]",
        '[{"name": "a"}]',
        '[{"name": "a", "key": "short"}]',
        '[{"name": "a", "sha256": "12"}]',
        '[{"name": "a", "key": "sesame-sesame-sesame", "limit": 3}]',
        '[{"name": "a", "key": "sesame-sesame-sesame", "requests_per_minute": 0}]',
        '[{"name": "a", "key": "sesame-sesame-sesame"}, {"name": "b", "key": "sesame-sesame-sesame"}]',
    ],
)
def test_invalid_keys_files_are_rejected(tmp_path, entries):
    path = tmp_path / "keys.json"
    path.write_text(entries)
    with pytest.raises(GlassformerError) as caught:
        KeyStore(path=path)
    assert caught.value.fields["path"] == str(path) and "sesame" not in str(caught.value)


@pytest.fixture(scope="module")
def limited(folders):
    """A server with one slot and few requests at a time."""
    with serving([folders["writer"]], "--slots", "1", "--max-requests", "16") as running:
        yield running


def test_a_request_can_set_its_own_deadline(limited):
    server = limited
    with server.client() as client:
        slow = {**LONG, "prompt": [LONG["prompt"]] * 128}
        start = time.monotonic()
        response = client.post("/v1/completions", json=slow, headers={"X-Request-Timeout": "1"})
        assert response.status_code == 504 and time.monotonic() - start < 5
        assert response.json()["error"]["fields"] == {"seconds": 1.0}
        deadline = time.monotonic() + 5
        while server.gauge("slots_used") + server.gauge("queue_length") and time.monotonic() < deadline:
            time.sleep(0.05)
        assert server.gauge("slots_used") == server.gauge("queue_length") == 0  # canceled in the scheduler
        invalid = client.post("/v1/completions", json=LONG, headers={"X-Request-Timeout": "soon"})
        assert invalid.status_code == 422


def test_slow_bodies_do_not_keep_others_out(limited):
    server = limited
    with ExitStack() as stack, server.client() as client:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
        head += "Content-Length: 100000\r\n\r\n"
        slow = []
        for _ in range(256):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            sock.sendall(head.encode() + b"{")
            slow.append(sock)
        time.sleep(0.5)
        for _ in range(5):
            assert client.post("/v1/completions", json={**LONG, "max_tokens": 2}).status_code == 200
        assert server.gauge("requests_active") == 0
        late = f"X-Request-Timeout: 1\r\n{head.partition(chr(10))[2]}{{"
        received = server.send(f"POST /v1/completions HTTP/1.1\r\n{late}".encode(), half=False)
        assert received.split(b" ", 2)[1] == b"504"  # a body has to arrive before the deadline


def test_ambiguous_requests_end_the_connection(server):
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
    both = "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    second = f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n"
    received = server.send((head + both + second).encode(), half=False)
    assert received.split(b" ", 2)[1] == b"400" and received.count(b"HTTP/1.1") == 1


def test_long_numbers_and_texts_have_short_errors(server):
    with server.client() as client:
        number = client.post(
            "/v1/embeddings",
            content=b'{"input": "a", "dimensions": ' + b"9" * 5000 + b"}",
            headers={"Content-Type": "application/json"},
        )
        assert number.status_code == 422 and "nested" not in number.text and "number" in number.text
        for body in ({"model": "x" * 150, "input": "a"}, {"input": "a", "encoding_format": "x" * 5000}):
            assert len(client.post("/v1/embeddings", json=body).text) < 2500


def test_unix_socket(folders, tmp_path):
    path = tmp_path / "server.sock"
    with socket.socket(socket.AF_UNIX) as left:  # of a server that was killed
        left.bind(str(path))
    command = [sys.executable, "-m", "glassformer", "serve", str(folders["encoder"]), "--uds", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None and "serving encoder" in process.stdout.readline()
        with httpx.Client(
            transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost"
        ) as client:
            assert client.get("/ready").status_code == 200
            assert client.post("/v1/embeddings", json={"input": "a"}).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0 and not path.exists()
    finally:
        process.kill()
        process.communicate()


def test_tls(folders, tmp_path):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    options = ["--ssl-certfile", str(certificate), "--ssl-keyfile", str(key)]
    command = [sys.executable, "-m", "glassformer", "serve", str(folders["encoder"]), "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        url = next(line.split()[1] for line in process.stdout if "/v1" in line)
        with httpx.Client(verify=ssl.create_default_context(cafile=str(certificate))) as client:
            assert client.get(url.replace("127.0.0.1", "localhost") + "/models").status_code == 200
    finally:
        process.kill()
        process.communicate()
    wrong = subprocess.run([*command[:-1], str(certificate)], capture_output=True, text=True, timeout=60)
    assert wrong.returncode == 2 and wrong.stderr.count("\n") == 1


def test_six_large_requests_take_little_memory(folders):
    """128 prompts of 100,000 characters, or as many as a body may have, six at a time."""
    with serving([folders["writer"], folders["encoder"], folders["translator"]]) as server:

        def resident(kind: str) -> int:
            lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
            return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(kind))

        if not sys.platform.startswith("linux"):
            pytest.skip("needs /proc")
        text = "the cat " * 12_500
        bodies = [
            ("/v1/completions", {"prompt": [text] * 128, "max_tokens": 2}),
            ("/v1/completions", {"prompt": [text] * 80, "max_tokens": 2}),
            ("/v1/completions", {"prompt": [text[:4000]] * 128, "max_tokens": 2}),
            ("/v1/embeddings", {"model": "encoder", "input": [text] * 80}),
            ("/v1/embeddings", {"model": "encoder", "input": [text[:4000]] * 256}),
            ("/translate", {"model": "translator", "texts": [text] * 80, "max_new_tokens": 2}),
        ]
        with server.client() as client:
            client.post("/v1/completions", json={**LONG, "max_tokens": 2})
        before = resident("VmRSS")

        def ask(path: str, body: dict[str, object]) -> int:
            with httpx.Client(base_url=server.url, timeout=120) as client, suppress(httpx.WriteError):
                return client.post(path, json=body).status_code
            return 413  # closed while the body was being sent

        with ThreadPoolExecutor(6) as pool:
            for path, body in bodies:
                codes = list(pool.map(ask, [path] * 6, [body] * 6))
                assert set(codes) <= {400, 413, 422}, path
        assert resident("VmHWM") - before < 1 << 30
        assert server.gauge("requests_active") == 0


def test_texts_that_cannot_fit_are_not_encoded(bundles, monkeypatch):
    encoder, writer = bundles["encoder"], bundles["writer"]
    text = "a" * 1_000_000
    for bundle, task in ((encoder, encoder.embed), (writer, writer.generate)):
        monkeypatch.setattr(bundle.tokenizer, "_encode", lambda texts, *_, **__: pytest.fail("encoded"))
        with pytest.raises(InputTooLongError) as caught:
            task(text)
        assert caught.value.unit == "characters"
        monkeypatch.undo()


def test_beams_that_do_not_fit_into_memory_are_rejected(bundles, monkeypatch):
    translator = bundles["translator"]
    translator.translate("the cat", num_beams=70, max_new_tokens=2)
    monkeypatch.setattr(engine, "available_memory", lambda device: 50 << 20)
    for beams in (5000, 10**9):
        with pytest.raises(InvalidValueError) as caught:
            translator.translate("the cat", max_new_tokens=20, num_beams=beams)
        assert caught.value.name == "num_beams" and caught.value.value == beams


def test_the_kv_cache_fits_into_the_free_memory(bundles, monkeypatch):
    model = bundles["writer"].inference_model()
    per_token = memory.cache_bytes_per_token(model.decoder.attentions, model.dtype)
    heads = model.decoder.attentions[0]
    layers = len(model.decoder.attentions)
    assert per_token == layers * heads.num_kv_heads * 2 * heads.head_dim * torch.float32.itemsize
    monkeypatch.setattr("glassformer.server.models.available_memory", lambda device: 2 * 5000 * per_token)
    assert cache_tokens(bundles["writer"], 1) == 5000 / 1.25  # the prefix cache takes a quarter in addition
    assert cache_tokens(bundles["writer"], 2) == 2500 / 1.25
    monkeypatch.setattr("glassformer.server.models.available_memory", lambda device: 0)
    assert cache_tokens(bundles["writer"], 1) == MIN_CACHED


def test_available_memory_respects_the_container(tmp_path, monkeypatch):
    files = {"max": "2000000", "current": "1500000", "stat": "anon 1\ninactive_file 100000\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(memory, "_CGROUPS", [[str(tmp_path / name) for name in files]])
    assert memory.available_memory() == 600_000
    (tmp_path / "max").write_text("max\n")
    free = memory.available_memory()
    assert free is None or free > 600_000


def test_a_key_on_the_command_line_is_reported(folders):
    with serving([folders["encoder"]], "--api-key", KEY) as server:
        assert "GLASSFORMER_API_KEY" in server.log() and KEY not in server.log()


def test_url_and_names_of_an_address():
    assert Address(host="::1", port=1, tls=True).url == "https://[::1]:1"
    address = Address(allowed_hosts=("example.com",))
    assert address.answers_to("EXAMPLE.com:8080") and address.answers_to("localhost:9")
    assert not address.answers_to("example.com.evil.org") and not address.answers_to("")
    assert address.accepts_origin("https://example.com:8443", "127.0.0.1:8000")
    assert not address.accepts_origin("https://notexample.com", "127.0.0.1:8000")
