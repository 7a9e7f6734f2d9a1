"""Messages that depend on the installation, and the fields of errors."""

from __future__ import annotations

import shlex
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from glassformer.data.readers import open_table
from glassformer.data.tables import TableWriter
from glassformer.errors import MissingDependencyError, UnknownNameError, install_command

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_known_names_are_a_list_whatever_they_come_from() -> None:
    for known in ({"ddim": object}, iter(["ddim"])):
        error = UnknownNameError("sampler", "dpm", known)
        assert error.fields["known"] == ["ddim"] and "choose from ddim" in str(error)


def test_a_missing_package_of_a_checkout_is_installed_with_its_extra() -> None:
    error = MissingDependencyError("fastapi", "serve")
    assert f"pip install -e '{ROOT}[serve]'" in str(error)
    assert error.fields == {"package": "fastapi", "extra": "serve"}


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_missing_package_of_a_wheel_is_installed_by_names_that_an_index_has(
    extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, names = [], []  # as in the METADATA of a wheel, where hatchling replaces glassformer[serve]
    for name, requirements in EXTRAS.items():
        for requirement in map(Requirement, requirements):
            if requirement.name == "glassformer":
                continue
            marker = f"({requirement.marker}) and " if requirement.marker else ""
            requirement.marker = None
            lines.append(f"{requirement}; {marker}extra == '{name}'")
            names += [requirement.name] if name == extra else []
    monkeypatch.setattr(metadata, "requires", lambda _: ["torch>=2.11", *lines])
    command, *words = install_command("x", extra, tmp_path).split(" install ")
    assert command == "pip" and [Requirement(word).name for word in shlex.split(words[0])] == names


def test_a_package_without_an_extra_is_named_itself() -> None:
    assert install_command("transformers", "") == "pip install transformers"


def test_parquet_without_pyarrow_is_an_error_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1")
    for act in (lambda: open_table(path), lambda: TableWriter(tmp_path / "b.parquet", {"label": str})):
        with pytest.raises(MissingDependencyError) as caught:
            act()
        assert caught.value.fields == {"package": "pyarrow", "extra": "parquet"}
    assert [file.name for file in tmp_path.iterdir()] == ["a.parquet"]
