"""The server on Ray Serve: replicas answer like the plain application, also after one was killed."""

from __future__ import annotations

import socket
import time
from contextlib import suppress

import httpx
import psutil
import pytest
from pydantic import ValidationError

from glassformer.errors import GlassformerError
from tests.server.harness import run_async

pytest.importorskip("ray")
pytest.importorskip("ray.serve")

from glassformer.server.ray_serve import RayServeOptions, app_builder, build_replica

PROMPTS = [{"model": "writer", "prompt": f"the cat {n}", "max_tokens": 8, "temperature": 0} for n in range(6)]
KEY = {"Authorization": "Bearer a-secret-of-the-test"}


def replica_pids():
    found = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it just ended
            if "ServeReplica" in " ".join(process.cmdline()):
                found.add(process.pid)
    return found


def texts(client):
    answers = [client.post("/v1/completions", json=prompt, headers=KEY) for prompt in PROMPTS]
    return [answer.raise_for_status().json()["choices"][0]["text"] for answer in answers]


@pytest.mark.slow
def test_replicas_answer_like_the_plain_app_and_survive_a_kill(folders, monkeypatch):
    import ray
    from ray import serve

    monkeypatch.setenv("GLASSFORMER_API_KEY", "a-secret-of-the-test")
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    options = RayServeOptions.model_validate(
        {"model": f"{folders['writer']},{folders['classifier']}", "min_replicas": "2", "max_replicas": "2"}
        | {"num_cpus": "0.5"}
    )
    plain = build_replica(options, "a-secret-of-the-test")

    async def plain_texts():
        transport = httpx.ASGITransport(app=plain)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answers = [await client.post("/v1/completions", json=prompt, headers=KEY) for prompt in PROMPTS]
            return [answer.raise_for_status().json()["choices"][0]["text"] for answer in answers]

    expected = run_async(plain_texts())
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(app_builder(options), route_prefix="/lm")
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/lm", timeout=30) as client:
            assert client.get("/health").status_code == 200
            assert client.get("/v1/models").status_code == 401
            models = client.get("/v1/models", headers=KEY).json()["data"]
            assert [model["id"] for model in models] == ["writer", "classifier"]
            assert texts(client) == expected
            before = replica_pids()
            assert len(before) == 2
            psutil.Process(min(before)).kill()
            deadline = time.monotonic() + 60
            while len(replica_pids() - {min(before)}) < 2 and time.monotonic() < deadline:
                time.sleep(0.2)
            assert len(replica_pids() - before) == 1  # it was replaced
            assert texts(client) == expected
    finally:
        serve.shutdown()
        ray.shutdown()


def test_without_a_key_only_local_clients_are_served(folders, monkeypatch):
    app = build_replica(RayServeOptions(model=[str(folders["classifier"])]))

    async def status(client):
        transport = httpx.ASGITransport(app=app, client=(client, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return (await http.get("/v1/models")).status_code

    assert run_async(status("127.0.0.1")) == 200
    assert run_async(status("10.0.0.7")) == 403


def test_bad_options_are_rejected(tmp_path):
    with pytest.raises(ValidationError):
        RayServeOptions.model_validate({"model": "pocket", "replicas": 2})
    with pytest.raises(ValidationError):
        RayServeOptions.model_validate({"model": ""})
    with pytest.raises(GlassformerError):
        build_replica(RayServeOptions(model=[str(tmp_path / "missing")]))
