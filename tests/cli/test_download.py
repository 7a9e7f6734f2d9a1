"""`download` against a local stand-in of the Hugging Face Hub."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import glassformer

pytest.importorskip("huggingface_hub")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """Serves the folder `repo` as org/model; a pickle is listed too. requests: paths of the files sent."""

    repo: Path
    requests: list[str]

    def names(self) -> list[str]:
        return sorted(path.name for path in self.repo.iterdir())

    def send(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/org/model"):
            files = [{"rfilename": name} for name in self.names()]
            tree = [
                {"type": "file", "path": name, "size": (self.repo / name).stat().st_size, "oid": "0" * 40}
                for name in self.names()
            ]
            info = {"id": "org/model", "sha": COMMIT, "siblings": files, "private": False, "gated": False}
            return self.send(200, json.dumps(tree if "/tree/" in path else info).encode())
        name = path.rpartition("/")[2]
        if path.startswith("/org/model/resolve/") and name in self.names():
            content = (self.repo / name).read_bytes()
            if self.command == "GET":
                self.requests.append(name)
            digest = hashlib.sha1(content).hexdigest()
            return self.send(200, content, ETag=f'"{digest}"', X_Repo_Commit=COMMIT)
        return self.send(404, b"{}", X_Error_Code="RepoNotFound")

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[str]:
    """The address of a hub with one model."""
    Hub.repo = glassformer.save(glassformer.load("pocket-lm"), tmp_path / "repo")
    (Hub.repo / "pytorch_model.bin").write_bytes(b"pickle")
    Hub.requests = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


# the Hub's client may use any HTTP library: no other one is imported
PROGRAM = "import sys; sys.modules['httpx'] = None; from glassformer.cli.main import main; main(sys.argv[1:])"


def download(hub: str, *args: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-c", PROGRAM, "download", *args]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_download_fetches_a_model_that_loads(hub: str, tmp_path: Path) -> None:
    result = download(hub, "org/model", "--out", str(tmp_path / "model"))
    assert result.returncode == 0, result.stderr
    loaded, original = glassformer.load(tmp_path / "model"), glassformer.load("pocket-lm")
    prompt = "Once upon a time"
    assert loaded.generate(prompt, max_new_tokens=8, do_sample=False) == original.generate(
        prompt, max_new_tokens=8, do_sample=False
    )
    assert "model.safetensors" in Hub.requests and "pytorch_model.bin" not in Hub.requests


def test_download_errors_exit_with_2(hub: str, tmp_path: Path) -> None:
    missing = download(hub, "org/other", "--out", str(tmp_path / "other"))
    (Hub.repo / "model.safetensors").unlink()
    pickled = download(hub, "org/model", "--out", str(tmp_path / "model"))
    unnamed = download(hub, "bert-base-uncased")
    for result, named in ((missing, "org/other"), (pickled, "pytorch_model.bin"), (unnamed, "ORG/NAME")):
        assert result.returncode == 2 and named in result.stderr and "Traceback" not in result.stderr
    assert not Hub.requests


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "http://[no"])
def test_download_without_a_network_ends_in_one_sentence(endpoint: str, tmp_path: Path) -> None:
    result = download(endpoint, "org/model", "--out", str(tmp_path / "model"))
    assert result.returncode == 2
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1, result.stderr


def test_download_keeps_files_that_it_did_not_write(hub: str, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    (folder / ".cache/huggingface").mkdir(parents=True)  # as in a home folder
    (folder / "config.json").write_text("mine")
    for option in ((), ("--overwrite",)):
        result = download(hub, "org/model", "--out", str(folder), *option)
        assert result.returncode == 2 and "config.json" in result.stderr
    assert [path.name for path in folder.iterdir() if path.is_file()] == ["config.json"]
    assert (folder / "config.json").read_text() == "mine"
    (folder / "config.json").unlink()
    assert download(hub, "org/model", "--out", str(folder)).returncode == 0
    assert download(hub, "org/model", "--out", str(folder), "--overwrite").returncode == 0
