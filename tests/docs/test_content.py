"""Links of the documentation lead somewhere, and its lists are complete."""

import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

from docs import reference
from glassformer.families.registry import families
from tests.docs.pages import CARDS, DOCS, PAGES, ROOT, page_id, read_prose

LINK = re.compile(r"""(?:\]\(|(?:src|href)=")([^)"\s]+)""")
GENERATED = {DOCS / page for page in reference.paths()}


def anchors(page: Path) -> set[str]:
    """The anchors of a page, made from its headings as GitHub does."""
    headings = re.findall(r"^#+ (.+)$", read_prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md", *CARDS], ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    """Without the site: files, and pages that the site generates."""
    for link in LINK.findall(read_prose(page)):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if target in GENERATED:
            continue
        assert target.exists(), f"{page_id(page)} links to {link}"
        assert not anchor or anchor in anchors(target), f"{page_id(page)} links to {link}"


def test_every_picture_is_used() -> None:
    links = {Path(link).name for page in PAGES for link in LINK.findall(page.read_text(encoding="utf-8"))}
    assert {path.name for path in (DOCS / "pictures").glob("*.png")} <= links


def test_families_page_lists_every_family() -> None:
    """One row per family, in the order of the registry, with its architectures and presets."""
    text = (DOCS / "concepts" / "families.md").read_text(encoding="utf-8")
    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| `") and len(cells) == 4:
            rows[cells[0].strip("`")] = tuple(set(re.findall(r"`([^`]+)`", cell)) for cell in cells[1:3])
    assert list(rows) == list(families())
    for name, family in families().items():
        architectures = set() if name == "sentence" else set(family.architectures)
        assert rows[name] == (architectures, set(family.presets)), name


def test_readme_names_every_family() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in families():
        assert f"`{name}`" in text


def test_architecture_page_lists_every_package() -> None:
    text = (DOCS / "concepts" / "architecture.md").read_text(encoding="utf-8")
    table = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    assert table == {path.parent.name for path in (ROOT / "glassformer").glob("*/*.py")}


def test_functions_of_the_architecture_page_exist() -> None:
    text = (DOCS / "concepts" / "architecture.md").read_text(encoding="utf-8")
    traces = "\n".join(re.findall(r"```text\n(.*?)```", text, re.S))
    names = re.findall(r"^ *(\w+(?:\.\w+)+)(?=,? )", traces, re.M)
    assert len(names) > 50
    for name in names:
        assert resolve_name(f"glassformer.{name}") is not None, name
