"""The container images, compose file and Kubernetes manifests: consistent with the package, and runnable."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import yaml

from glassformer.server.limits import Limits

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILES = [DEPLOY / "Dockerfile", DEPLOY / "Dockerfile.cuda"]
KEY = "sesame-sesame-sesame"


def _instructions(path: Path) -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", "", path.read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]


def _one(path: Path, name: str) -> list[str]:
    (value,) = [value for kind, value in _instructions(path) if kind == name]
    return json.loads(value)


def _manifests() -> dict[str, dict]:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / "glassformer.yaml").read_text())
    return {document["kind"]: document for document in documents}


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_images_install_what_the_makefile_installs(path):
    instructions = _instructions(path)
    assert sum(kind == "FROM" for kind, _ in instructions) == 2  # the compiler and the sources stay behind
    installs = [value for kind, value in instructions if kind == "RUN" and value.startswith("pip install")]
    rule = (ROOT / "Makefile").read_text().split(".lean-$(KEY): $(PY)")[1]
    lean = re.search(r"\$\(PIP\) -e ('\.\[\w+\]')", rule)
    assert lean is not None and installs[-1] == f"pip install -c constraints.txt {lean[1]}"
    assert all(" -c constraints.txt " in install for install in installs)
    copied = {
        name
        for kind, value in instructions
        if kind == "COPY" and "--from" not in value
        for name in value.split()[:-1]
    }
    included = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    }
    assert copied == included and all((ROOT / name).exists() for name in copied)
    assert {"web", "hatch_build.py"} <= copied  # the page is built in the image
    users = [value for kind, value in instructions if kind == "USER"]
    assert users == ["10001"]


def test_the_entry_point_serves_and_its_probes_answer(tmp_path):
    """The image's command with other ports, and the probes of the image and of the manifests."""
    command = _one(DOCKERFILES[0], "ENTRYPOINT")
    assert command == _one(DOCKERFILES[1], "ENTRYPOINT") and command[0] == "glassformer"
    container = _manifests()["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps([{"name": "team", "key": KEY}]))
    args = [arg.replace("/keys/keys.json", str(keys)) for arg in container["args"]]
    ports = {"9090": "19090"}
    command = [ports.get(arg, arg) for arg in command[1:]]
    process = subprocess.Popen(
        [sys.executable, "-m", "glassformer", *command, *args, "--port", "18000"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stdout is not None and any("/docs" in line for line in process.stdout)
        with httpx.Client(base_url="http://127.0.0.1:18000", timeout=30) as client:
            for name in ("startupProbe", "livenessProbe", "readinessProbe"):
                path = container[name]["httpGet"]["path"]
                assert client.get(path, headers={"Host": "10.0.0.7:8000"}).status_code == 200
            assert client.get("/v1/models").status_code == 401
            right = {"Authorization": f"Bearer {KEY}"}
            assert client.get("/v1/models", headers=right).status_code == 200
            assert "glassformer_queue_length" in client.get("http://127.0.0.1:19090/metrics").text
        health = next(value for kind, value in _instructions(DOCKERFILES[0]) if kind == "HEALTHCHECK")
        check = json.loads(health.split("CMD ", 1)[1])
        check = [sys.executable, *(part.replace(":8000", ":18000") for part in check[1:])]
        assert subprocess.run(check, timeout=60).returncode == 0
    finally:
        process.kill()
        process.communicate()


def test_manifests_are_consistent():
    found = _manifests()
    deployment, service = found["Deployment"]["spec"], found["Service"]["spec"]
    pod = deployment["template"]["spec"]
    container = pod["containers"][0]
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == labels == service["selector"]
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    target = found["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", found["Deployment"]["metadata"]["name"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert service["ports"][0]["targetPort"] in ports and ports == {"http": 8000, "metrics": 9090}
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
    assert container["securityContext"]["readOnlyRootFilesystem"]
    # the server takes up to 30 seconds to finish open requests, after the pause
    assert pod["terminationGracePeriodSeconds"] > 30 + int(
        container["lifecycle"]["preStop"]["exec"]["command"][1]
    )


def test_the_compose_file_runs_the_image_read_only():
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["glassformer"]
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    assert "GLASSFORMER_API_KEY" in service["environment"]


@pytest.mark.slow
def test_the_image_builds_and_becomes_healthy():
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode:
        pytest.skip("docker is not installed, or its daemon is not running")
    build = ["docker", "build", "-q", "-f", str(DEPLOY / "Dockerfile"), "-t", "glassformer-test", str(ROOT)]
    subprocess.run(build, check=True, timeout=3600)
    options = ["--rm", "-d", "--read-only", "--tmpfs", "/tmp", "-e", f"GLASSFORMER_API_KEY={KEY}"]
    run = subprocess.run(
        ["docker", "run", *options, "glassformer-test"], check=True, capture_output=True, text=True
    )
    container = run.stdout.strip()
    try:
        state = ""
        for _ in range(120):
            inspect = ["docker", "inspect", "-f", "{{.State.Health.Status}}", container]
            state = subprocess.run(inspect, capture_output=True, text=True).stdout.strip()
            if state == "healthy":
                break
            time.sleep(1)
        assert state == "healthy"
    finally:
        subprocess.run(["docker", "stop", container], check=True)


def test_the_proxy_allows_what_the_server_allows():
    text = re.sub(r"#.*", "", (DEPLOY / "nginx.conf").read_text())
    values = dict(re.findall(r"^ *(\w+) ([^;{}]+);", text, re.MULTILINE))
    assert int(values["client_max_body_size"].rstrip("m")) << 20 == Limits().max_body_bytes
    assert int(values["proxy_read_timeout"].rstrip("s")) > Limits().timeout
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert "ports" not in services["glassformer"]  # only the proxy is reachable
    assert services["proxy"]["ports"][0].endswith(f":{values['listen']}")
    assert "X-Forwarded-For $remote_addr;" in text and "$proxy_add" not in text
