"""docs/serving.md is true: its server starts, its commands answer, its client runs."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import shutil
import subprocess
from pathlib import Path

from tests.serve.made import serving

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")


def test_the_page(folders, tmp_path, capsys):
    for run, kind in (("mine", "translator"), ("text", "writer")):
        shutil.copytree(folders[kind], tmp_path / f"runs/{run}/model")
        (tmp_path / f"runs/{run}/recipe.yaml").write_text("job: lm\n")
    (asked,) = re.findall(r"^glassformer serve (runs.*)$", PAGE, re.MULTILINE)
    with serving([tmp_path / folder for folder in asked.split()]) as server:
        for command in re.findall(r"^curl .*$", PAGE, re.MULTILINE):
            words = shlex.split(command.replace("http://127.0.0.1:8000", server.url))
            found = subprocess.run([*words, "-s", "--fail-with-body"], capture_output=True, text=True)
            assert found.returncode == 0 and found.stdout, f"{command}\n{found.stdout}"
        for block in re.findall(r"^```python client\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
            script = tmp_path / "client.py"
            script.write_text(block.replace("http://127.0.0.1:8000", server.url), encoding="utf-8")
            runpy.run_path(str(script))
            assert capsys.readouterr().out
        with server.client() as client:
            routes = client.get("/openapi.json").json()["paths"]
            wrong = client.post("/translate", json={"text": "a", "temprature": 1})
        for path in re.findall(r"`(?:GET|POST) (/[\w/]*)`", PAGE):
            assert path in routes or path == "/", path
        told = re.search(r'^\{"error": .*$', PAGE, re.MULTILINE)
        assert told is not None and wrong.json() == json.loads(told.group())
