"""Every block of code in the documentation runs, page by page, in order, or says why it cannot."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from glassformer import recipes
from glassformer.training.recipe import parse_recipe, read_recipe_dict
from tests.docs.commands import Shell
from tests.docs.pages import LANGUAGES, PAGES, ROOT, Block, blocks, prose
from tests.docs.prepared import prepare

MOST_NOT_RUN = 5


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page as one script, each line of Python at its own place: a failure names the page's line."""
    text = page.read_text(encoding="utf-8")
    found = [block for block in blocks(page) if not block.why]
    if not any(block.language in ("python", "sh") for block in found):
        return
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    prepare(place, text)
    shell = Shell(monkeypatch, capsys)
    lines = [""] * len(text.splitlines())
    for n, block in enumerate(found):
        code = shell.led(block.code).splitlines()
        if block.language == "python":
            lines[block.line - 1 : block.line - 1 + len(code)] = code
        elif block.language == "sh":
            lines[block.line - 1] = f"_run({n})"
    script = tmp_path / f"{page.stem.replace('-', '_')}.py"
    script.write_text("\n".join(lines), encoding="utf-8")
    try:
        runpy.run_path(str(script), init_globals={"_run": lambda n: shell.run(found[n])})
    finally:
        shell.end()


def merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe with a fragment's words in place of its own."""
    return {
        **base,
        **{
            key: {**base.get(key, {}), **value} if isinstance(value, dict) else value
            for key, value in more.items()
        },
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_rest_is_what_it_says(page: Path) -> None:
    """YAML is a recipe, or a fragment that a ready recipe of its job takes; JSON is JSON."""
    assert "```" not in prose(page), f"{page.name} has a block that does not begin at the line's beginning"
    for block in blocks(page):
        where = f"{page.name}:{block.line}"
        assert block.language in LANGUAGES, f"{where}: a block is one of {', '.join(sorted(LANGUAGES))}"
        if block.language == "json":
            json.loads(block.code)
        elif block.language == "yaml":
            read = list(yaml.safe_load_all(block.code))
            if not block.why:
                (words,) = read
                parse_recipe(merged(ready(words.get("job", "translate")), words))
        elif block.language == "sh":
            subprocess.run(["bash", "-n"], input=block.code, text=True, check=True)


def ready(job: str) -> dict[str, Any]:
    """What the first ready recipe of a job holds."""
    folder = Path(recipes.__file__).parent
    return next(data for data in map(read_recipe_dict, sorted(folder.glob("*.yaml"))) if data["job"] == job)


def not_run() -> list[tuple[str, Block]]:
    return [(page.name, block) for page in PAGES for block in blocks(page) if block.why]


def test_few_blocks_are_not_run() -> None:
    told = [f"{name}:{block.line}: {block.why}" for name, block in not_run()]
    assert len(told) <= MOST_NOT_RUN, "\n".join(told)
    for path in re.findall(r"tests/[\w/.]+\.py", "\n".join(told)):
        assert (ROOT / path).is_file(), path
