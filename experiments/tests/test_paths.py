"""The commands of rows find this checkout from anywhere and pass failures on."""

import pytest

from experiments.paths import glassformer
from glassformer import __version__


def test_commands_run_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert __version__ in glassformer("--version")
    with pytest.raises(SystemExit) as stop:
        glassformer("evaluate", tmp_path / "nothing")
    assert stop.value.code == 2
