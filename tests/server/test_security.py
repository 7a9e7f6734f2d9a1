"""Host, Origin and token checks, security headers, and settings that are refused at startup."""

from __future__ import annotations

import base64
import subprocess
import sys

import pytest

from glassformer.errors import GlassformerError
from glassformer.server.api_keys import KeyStore
from glassformer.server.security import CSP, Address
from tests.server.harness import serving

TOKEN = "sesame-sesame-sesame"
BODY = {"model": "encoder", "input": "a"}


def test_only_local_host_names_are_accepted_without_a_token(server):
    port = server.port
    with server.client() as client:
        for host in ("127.0.0.1", "localhost", "[::1]", "LOCALHOST"):
            assert client.get("/models", headers={"Host": f"{host}:{port}"}).status_code == 200
        for host in (
            "evil.example",
            f"evil.example:{port}",
            f"localhost.evil.example:{port}",
            f"127.0.0.1.nip.io:{port}",
            f"user@127.0.0.1:{port}",
            f"0.0.0.0:{port}",
            f"192.168.0.7:{port}",
        ):
            assert client.get("/models", headers={"Host": host}).status_code == 400, host
            assert client.post("/v1/embeddings", json=BODY, headers={"Host": host}).status_code == 400, host
    assert server.send(b"GET /models HTTP/1.0\r\n\r\n", half=False).split(b" ", 2)[1] == b"400"


def test_pages_of_other_origins_are_rejected(server):
    own = f"http://127.0.0.1:{server.port}"
    with server.client() as client:
        for origin, status in (
            (own, 200),
            ("null", 403),
            ("http://evil.example", 403),
            (f"http://evil.example:{server.port}", 403),
            ("http://127.0.0.1", 403),
            (f"{own}.evil.example", 403),
            (f"http://localhost:{server.port}", 403),
            ("file://", 403),
            ("", 403),
        ):
            response = client.post("/v1/embeddings", json=BODY, headers={"Origin": origin})
            assert response.status_code == status, origin
            assert not [name for name in response.headers if name.startswith("access-control")]


def test_requests_without_preflight_have_no_effect(server):
    with server.client() as client:
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
            content = b'{"model":"encoder","input":"a"}'
            response = client.post("/v1/embeddings", content=content, headers={"Content-Type": kind})
            assert response.status_code == 422


def test_every_response_has_security_headers_and_every_error_one_shape(server):
    with server.client() as client:
        responses = [
            client.get("/"),
            client.get("/docs"),
            client.get("/nothing"),
            client.get("/health", headers={"Origin": "null"}),
            client.post("/translate", json={"text": 3}),
            client.request("DELETE", "/health"),
        ]
    assert [one.status_code for one in responses] == [200, 200, 404, 403, 422, 405]
    for one in responses:
        assert one.headers["content-security-policy"] == CSP
        assert one.headers["x-content-type-options"] == "nosniff"
        assert one.headers["cross-origin-resource-policy"] == "same-origin"
        assert "server" not in one.headers
        if one.status_code >= 400:
            assert set(one.json()["error"]) == {"message", "type", "code", "param", "fields"}
    policy = dict(part.partition(" ")[::2] for part in CSP.split("; "))
    assert policy["default-src"] == "'none'" and policy["script-src"] == "'self'"
    assert "http" not in CSP and "unsafe-eval" not in CSP


def test_the_token_protects_every_path(folders):
    with (
        serving([folders["encoder"]], "--host", "0.0.0.0", env={"GLASSFORMER_API_KEY": TOKEN}) as server,
        server.client() as client,
    ):
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        basic = {"Authorization": f"Basic {base64.b64encode(f'me:{TOKEN}'.encode()).decode()}"}
        assert client.get("/docs", headers=bearer).status_code == 200
        wrong = ["", "Bearer", "Bearer wrong", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}"]
        for path in ("/", "/metrics", "/docs", "/openapi.json", "/v1/models", "/trace/x", "/no"):
            response = client.get(path)
            assert response.status_code == 401 and response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"].startswith("Basic ")  # a browser asks for it
            for header in wrong:
                refused = client.get(path, headers={"Authorization": header})
                assert refused.status_code in (401, 429), header  # 429 after many wrong keys
        for right in (bearer, basic):
            assert client.get("/docs", headers=right).status_code == 200
            evil = {**right, "Origin": "http://evil.example"}
            assert client.get("/docs", headers=evil).status_code == 403
        server.stop()
        assert TOKEN not in server.process.stdout.read() + server.log()


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ({"host": "0.0.0.0"}, "api_key"),
        ({"allowed_hosts": ("https://example.com",)}, "allowed_host"),
        ({"allowed_hosts": ("example.com:80",)}, "allowed_host"),
        ({"cors_origins": ("example.com",)}, "cors_origin"),
        ({"cors_origins": ("https://example.com/",)}, "cors_origin"),
    ],
)
def test_unsafe_addresses_are_rejected(address, name):
    with pytest.raises(GlassformerError) as caught:
        Address(**address)
    assert caught.value.fields["name"] == name


@pytest.mark.parametrize("key", ["short", "sesame sesame sesame", "sésame-sésame-sésame"])
def test_weak_keys_are_rejected(key):
    with pytest.raises(GlassformerError) as caught:
        KeyStore(key)
    assert caught.value.fields["name"] == "api_key" and key not in str(caught.value)


def test_a_port_in_use_is_reported_in_one_line(folders, server):
    command = [sys.executable, "-m", "glassformer", "serve", str(folders["encoder"])]
    found = subprocess.run([*command, "--port", str(server.port)], capture_output=True, text=True, timeout=60)
    assert found.returncode == 2
    assert found.stderr.count("\n") == 1 and "in use" in found.stderr
