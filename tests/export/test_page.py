"""The commands of docs/exporting.md do what the page says."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import run  # noqa: F401 (a fixture)
from tests.verbs.reversing import reverser, speaker

pytest.importorskip("ctranslate2")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytest.importorskip("transformers")

PAGE = Path(__file__).parents[2] / "docs" / "exporting.md"


def test_the_commands_run(tmp_path, monkeypatch, run):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    shutil.copytree(reverser(), tmp_path / "runs/mine/model")
    speaker(tmp_path / "runs/text/model", max_len=64)
    commands = re.findall(r"^glassformer (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert {command.split()[0] for command in commands} == {"export", "verify"}
    for command in commands:
        done = run(*shlex.split(command))
        assert done.code == 0 and done.out, f"glassformer {command}\n{done.err}"
        assert "--exported" not in command or "exported = native" in done.out
