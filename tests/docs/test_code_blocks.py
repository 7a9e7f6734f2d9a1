"""Every code block of the documentation runs, page by page and in order, or states why it does not."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from glassformer import recipes
from glassformer.tasks import registry
from glassformer.training.recipe import parse_recipe, read_recipe_dict
from tests.docs.pages import LANGUAGES, PAGES, ROOT, page_id, read_blocks, read_prose
from tests.docs.shell import Shell
from tests.docs.workspace import create_workspace

MAX_NOT_RUN = 5


@pytest.fixture(autouse=True)
def declared_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the tasks that a page registers."""
    monkeypatch.setattr(registry, "REGISTERED", dict(registry.REGISTERED))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


README, TRANSLATED = ROOT / "README.md", ROOT / "README.ko.md"


def test_translated_readme_has_the_code_of_the_readme() -> None:
    """Except for comments; so it need not run again."""
    code = [
        [re.sub(r" *#.*", "", block.code) for block in read_blocks(page)] for page in (README, TRANSLATED)
    ]
    assert set(code[1]) <= set(code[0])


@pytest.mark.parametrize("page", [page for page in PAGES if page != TRANSLATED], ids=page_id)
def test_code_of_the_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run the page as one script with its own line numbers, so that a failure names the line of the page."""
    text = page.read_text(encoding="utf-8")
    blocks = [block for block in read_blocks(page) if not block.not_run]
    if not any(block.language in ("python", "sh") for block in blocks):
        return
    workspace = tmp_path / "workspace"
    create_workspace(workspace, text)
    monkeypatch.chdir(workspace)
    shell = Shell(monkeypatch, capsys)
    lines = [""] * len(text.splitlines())
    for n, block in enumerate(blocks):
        code = shell.with_port(block.code).splitlines()
        if block.language == "python":
            lines[block.line - 1 : block.line - 1 + len(code)] = code
        elif block.language == "sh":
            lines[block.line - 1] = f"_run({n})"
    script = tmp_path / f"{page.stem.replace('-', '_')}.py"
    script.write_text("\n".join(lines), encoding="utf-8")
    try:
        runpy.run_path(str(script), init_globals={"_run": lambda n: shell.run(blocks[n])})
    finally:
        shell.stop_server()


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_blocks_are_valid(page: Path) -> None:
    """YAML is a recipe or a part of one, JSON is JSON, shell code parses."""
    assert "```" not in read_prose(page), f"{page_id(page)} has an indented or unclosed code block"
    for block in read_blocks(page):
        where = f"{page_id(page)}:{block.line}"
        assert block.language in LANGUAGES, f"{where}: the language is not one of {sorted(LANGUAGES)}"
        if block.language == "json":
            json.loads(block.code)
        elif block.language == "yaml" and not block.not_run:
            recipe = yaml.safe_load(block.code)
            parse_recipe(merge(shipped_recipe(recipe.get("job", "translate")), recipe))
        elif block.language == "sh":
            subprocess.run(["bash", "-n"], input=block.code, text=True, check=True)


def merge(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe with a part of it replaced."""
    sections = {
        key: {**base.get(key, {}), **value} if isinstance(value, dict) else value
        for key, value in overrides.items()
    }
    return {**base, **sections}


def shipped_recipe(job: str) -> dict[str, Any]:
    """The first shipped recipe of a job."""
    files = sorted(Path(recipes.__file__).parent.glob("*.yaml"))
    return next(recipe for recipe in map(read_recipe_dict, files) if recipe["job"] == job)


def test_few_blocks_are_not_run() -> None:
    reasons = [
        f"{page_id(page)}:{block.line}: {block.not_run}"
        for page in PAGES
        for block in read_blocks(page)
        if block.not_run
    ]
    assert len(reasons) <= MAX_NOT_RUN, "\n".join(reasons)
    for path in re.findall(r"tests/[\w/.]+\.py", "\n".join(reasons)):
        assert (ROOT / path).is_file(), path
