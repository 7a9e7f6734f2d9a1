"""Who may ask: Host, Origin and Sec-Fetch-Site, the token, and the headers on every answer."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

from glassformer.server.guard import CSP
from tests.server.made import Server, serving

TOKEN = "sesame-sesame-sesame"
BODY = b'{"model":"encoder","input":"a"}'


def asked(
    server: Server, headers: list[str], *, path: str = "/health", body: bytes = b""
) -> tuple[int, bytes]:
    """One raw request with these headers -> status and answer."""
    method = "POST" if body else "GET"
    own = [f"Content-Length: {len(body)}", "Content-Type: application/json"] if body else []
    lines = [f"{method} {path} HTTP/1.1", *headers, *own, "Connection: close", "", ""]
    found = server.send("\r\n".join(lines).encode("latin-1") + body, half=False)
    return int(found.split(b" ", 2)[1]), found


def hosts(port: int) -> list[tuple[str, bool]]:
    own = [f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}", f"LOCALHOST:{port}"]
    other = [
        "127.0.0.1",
        "localhost",
        f"127.0.0.1:{port + 1}",
        f"evil.example:{port}",
        "evil.example",
        f"localhost.evil.example:{port}",
        f"127.0.0.1.nip.io:{port}",
        f"user@127.0.0.1:{port}",
        f"0.0.0.0:{port}",
        f"192.168.0.7:{port}",
        f"localhost:{port}@evil.example",
        f"localhost:0{port}x",
    ]
    return [*((one, True) for one in own), *((one, False) for one in other)]


def origins(port: int) -> list[tuple[str | None, bool]]:
    bad = [
        "null",
        "http://evil.example",
        f"http://evil.example:{port}",
        f"https://127.0.0.1:{port}",
        "http://127.0.0.1",
        f"http://127.0.0.1:{port}.evil.example",
        f"http://127.0.0.1:{port}/",
        f"http://localhost:{port}",
        "file://",
        "",
    ]
    return [(None, True), (f"http://127.0.0.1:{port}", True), *((one, False) for one in bad)]


def test_sixty_hosts_and_origins(server, report):
    port, failures, tried = server.port, [], 0
    for host, good in hosts(port):
        for body in (b"", BODY):
            tried += 1
            path = "/v1/embeddings" if body else "/models"
            status, _ = asked(server, [f"Host: {host}"], path=path, body=body)
            if status != (200 if good else 403):
                failures.append(f"Host {host} {path}: {status}")
    own = f"Host: 127.0.0.1:{port}"
    for origin, good in origins(port):
        for site in (None, "same-origin", "none", "same-site", "cross-site"):
            tried += 1
            headers = [own] + ([f"Origin: {origin}"] if origin is not None else [])
            headers += [f"Sec-Fetch-Site: {site}"] if site is not None else []
            wanted = 200 if good and site not in ("same-site", "cross-site") else 403
            status, heard = asked(server, headers, path="/v1/embeddings", body=BODY)
            if status != wanted or b"access-control-allow" in heard.lower():
                failures.append(f"Origin {origin} Sec-Fetch-Site {site}: {status}")
    report("Host and Origin", tried, failures)
    assert tried >= 60


def test_two_hosts_and_none_are_refused(server):
    own = f"Host: 127.0.0.1:{server.port}"
    assert asked(server, [own, own])[0] in (400, 403)
    assert asked(server, [own, "Origin: null", f"Origin: http://127.0.0.1:{server.port}"])[0] == 403
    assert asked(server, [])[0] in (400, 403)
    assert server.send(b"GET /health HTTP/1.0\r\n\r\n", half=False).split(b" ", 2)[1] == b"403"


def test_a_simple_form_does_nothing(server):
    """What any page can send without asking first: a POST of text/plain."""
    with server.client() as client:
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
            answer = client.post("/v1/embeddings", content=BODY, headers={"Content-Type": kind})
            assert answer.status_code == 415


def test_every_answer_is_strict(server):
    with server.client() as client:
        answers = [
            client.get("/"),
            client.get("/docs"),
            client.get("/health"),
            client.get("/nothing"),
            client.get("/health", headers={"Origin": "null"}),
            client.post("/translate", json={"text": 3}),
            client.request("DELETE", "/health"),
        ]
    assert [one.status_code for one in answers] == [200, 200, 200, 404, 403, 422, 405]
    for one in answers:
        assert one.headers["content-security-policy"] == CSP
        assert one.headers["x-content-type-options"] == "nosniff"
        assert one.headers["referrer-policy"] == "no-referrer"
        assert one.headers["cross-origin-resource-policy"] == "same-origin"
        assert "server" not in one.headers
        if one.status_code >= 400:
            assert set(one.json()["error"]) == {"message", "type", "param", "code"}
    policy = dict(part.partition(" ")[::2] for part in CSP.split("; "))
    assert policy["default-src"] == "'none'" and policy["script-src"] == "'self'"
    assert "http" not in CSP and "unsafe-eval" not in CSP


def test_the_token_stands_before_everything(folders):
    with (
        serving(
            [folders["encoder"]], "--host", "0.0.0.0", "--queue", "2", env={"GLASSFORMER_TOKEN": TOKEN}
        ) as server,
        server.client() as client,
    ):
        paths = ["/", "/health", "/metrics", "/docs", "/openapi.json", "/models", "/v1/models"]
        paths += ["/trace/x", "/runs/x", "/assets/x.js", "/nothing"]
        for path in paths:
            assert client.get(path).status_code == 401, path
            for shown in (
                "",
                "Bearer",
                "Bearer wrong",
                f"Basic {TOKEN}",
                f"Bearer {TOKEN}x",
                f"Bearer {TOKEN[:-1]}",
            ):
                assert client.get(path, headers={"Authorization": shown}).status_code == 401, (path, shown)
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        assert client.get("/health", headers=bearer).status_code == 200
        assert client.get("/health", headers={**bearer, "Origin": "http://evil.example"}).status_code == 403
        assert (
            client.get("/health", headers={**bearer, "Host": f"evil.example:{server.port}"}).status_code
            == 403
        )
        # who has no token takes neither places nor memory
        half = f"POST /login HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Length: 90\r\n\r\n{{"
        with ExitStack() as held:
            for _ in range(4):
                sock = socket.create_connection(("127.0.0.1", server.port))
                held.enter_context(sock).sendall(half.encode())
            time.sleep(0.2)
            answer = client.post("/v1/embeddings", json={"input": "a"}, headers=bearer)
            assert answer.status_code == 200, answer.text
        assert client.post("/login", json={"token": "x" * 5000}).status_code == 413
        # a browser's way in
        opened = client.get("/", headers={"Accept": "text/html,*/*"})
        assert opened.status_code == 303 and opened.headers["location"] == "/login"
        assert "login.js" in client.get("/login").text
        assert client.post("/login", json={"token": "wrong-wrong-wrong-wrong"}).status_code == 401
        entered = client.post("/login", json={"token": TOKEN})
        cookie = entered.headers["set-cookie"]
        assert cookie.startswith(f"glassformer-{server.port}=")  # cookies know no ports by themselves
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie and TOKEN not in cookie
        assert client.get("/health").status_code == 200  # by the cookie alone
        assert client.get("/health", headers={"Origin": "null"}).status_code == 403
        server.stop()
        assert TOKEN not in server.process.stdout.read() + server.process.stderr.read()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", "0.0.0.0"], "a token is needed"),
        (["--host", "0.0.0.0", "--token", "short"], "at least 16 letters"),
        (["--token", "sesame sesame sesame"], "no spaces"),
        (["--host", "no such host", "--token", TOKEN], "no address"),
        (["--host", "198.51.100.7", "--token", TOKEN], "cannot be listened on"),
        (["--port", "99999"], "--port"),
    ],
)
def test_a_bad_start_is_one_sentence(folders, words, said):
    asked = [sys.executable, "-m", "glassformer", "serve", str(folders["encoder"]), *words]
    found = subprocess.run(asked, capture_output=True, text=True, timeout=60)
    assert found.returncode == 2
    assert said in found.stderr and "Traceback" not in found.stderr


def test_a_port_in_use_is_one_sentence(folders, server):
    asked = [
        sys.executable,
        "-m",
        "glassformer",
        "serve",
        str(folders["encoder"]),
        "--port",
        str(server.port),
    ]
    found = subprocess.run(asked, capture_output=True, text=True, timeout=60)
    assert found.returncode == 2
    assert found.stderr.count("\n") == 1 and "in use" in found.stderr
