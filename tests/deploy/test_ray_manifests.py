"""The Ray manifests: valid for Ray, and consistent with the options of the package."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from glassformer.batch import BatchProgress
from glassformer.cli.main import main
from glassformer.server.ray_serve import RayServeOptions

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def read(name):
    return yaml.safe_load((DEPLOY / name).read_text())


@pytest.mark.parametrize(
    "config",
    [read("ray/serve.yaml"), yaml.safe_load(read("kubernetes/rayservice.yaml")["spec"]["serveConfigV2"])],
    ids=["serve.yaml", "rayservice.yaml"],
)
def test_serve_config_is_valid(config):
    schema = pytest.importorskip("ray.serve.schema")
    deployed = schema.ServeDeploySchema.model_validate(config)
    for application in deployed.applications:
        assert application.import_path == "glassformer.server.ray_serve:app_builder"
        options = RayServeOptions.model_validate(application.args)
        assert options.min_replicas < options.max_replicas


def test_job_is_a_valid_command(monkeypatch):
    seen = {}

    def record(*args, **kwargs):
        seen.update(kwargs)
        return BatchProgress(rows=1, total=1)

    monkeypatch.setattr("glassformer.batch.run", record)
    program, *args = shlex.split(read("kubernetes/rayjob.yaml")["spec"]["entrypoint"])
    with pytest.raises(SystemExit) as stop:
        main(args)
    assert program == "glassformer" and stop.value.code == 0
    assert seen["workers"] > 1 and seen["options"] == {"to": "de"}


def test_image_and_manifests_have_the_pinned_version():
    version = re.search(r"^ray==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]
    assert f"rayproject/ray:{version}-" in (DEPLOY / "Dockerfile.ray").read_text()
    assert read("kubernetes/rayservice.yaml")["spec"]["rayClusterConfig"]["rayVersion"] == version
    assert read("kubernetes/rayjob.yaml")["spec"]["rayClusterSpec"]["rayVersion"] == version
