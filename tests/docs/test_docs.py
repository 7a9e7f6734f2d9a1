"""What the documentation says is true: its code runs, its links lead somewhere, its tables are complete."""

import re
import runpy
import shlex
import shutil
from pathlib import Path

import pytest

from glassformer.cli.main import VERBS, main
from glassformer.families.registry import families
from tests.verbs.reversing import reverser, speaker

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"""(?:\]\(|src=")([^)"\s]+)""")


def named(page: Path) -> str:
    return page.name


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_code_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page.read_text(encoding="utf-8")
    lines = [""] * len(
        text.splitlines()
    )  # each block at its own line, so that a failure names the page's line
    for block in BLOCK.finditer(text):
        start = text.count("\n", 0, block.start(1))
        code = block.group(1).splitlines()
        lines[start : start + len(code)] = code
    script = tmp_path / f"{page.stem.replace('-', '_')}.py"
    script.write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    if "runs/mine/model" in script.read_text(encoding="utf-8"):
        trained(tmp_path)
    runpy.run_path(str(script))


def trained(place: Path) -> None:
    """The models that a reader is said to have: a translator and a language model."""
    shutil.copytree(reverser(), place / "runs/mine/model")
    speaker(place / "runs/text/model", max_len=64)


def test_decoding_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of the page, each with an answer, and the files that they name are there."""
    monkeypatch.chdir(tmp_path)
    trained(tmp_path)
    page = (ROOT / "docs" / "decoding.md").read_text(encoding="utf-8")
    commands = re.findall(r"^glassformer (.+)$", page, re.MULTILINE)
    assert len(commands) > 6
    for command in commands:
        with pytest.raises(SystemExit) as stop:
            main(shlex.split(command))
        heard = capsys.readouterr()
        assert stop.value.code in (0, None) and heard.out, f"glassformer {command}\n{heard.err}"
    for name in re.findall(r"--tree (\S+)$", page, re.MULTILINE):
        assert (tmp_path / name).stat().st_size > 1000


def anchors(page: Path) -> set[str]:
    """The places of a page that a link may name, as they are made from its headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if link.startswith("https://"):
            continue
        path, _, place = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not place or place in anchors(target), f"{page.name} links to {link}"


def test_pictures_are_all_shown() -> None:
    shown = {Path(link).name for page in PAGES for link in LINK.findall(page.read_text(encoding="utf-8"))}
    assert {p.name for p in (ROOT / "docs" / "pictures").glob("*.png")} <= shown


def test_families_page_lists_what_the_registry_reads() -> None:
    """One row a family, in the registry's order, with exactly its architectures and presets."""
    text = (ROOT / "docs" / "families.md").read_text(encoding="utf-8")
    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| `") and len(cells) == 4:
            rows[cells[0].strip("`")] = tuple(set(re.findall(r"`([^`]+)`", cell)) for cell in cells[1:3])
    assert list(rows) == list(families())
    for name, family in families().items():
        reads = set() if name == "sentence" else set(family.architectures)
        assert rows[name] == (reads, set(family.presets)), name


def test_readme_names_every_verb_and_family() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for verb in VERBS:
        assert f"glassformer {verb}" in text
    for name in families():
        assert f"`{name}`" in text


def test_readme_lists_every_folder() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    tree = set(re.findall(r"^\s*([\w./]+)/\s", text, re.MULTILINE))
    package = {p.parent.name for p in (ROOT / "glassformer").glob("*/*.py")}
    assert package <= tree, f"not in the tree: {package - tree}"
    assert tree - {"glassformer"} <= package | {p.name for p in ROOT.iterdir()}, "folders that are not there"
