"""What the documentation says is true: its links lead somewhere, its tables and lists are complete."""

import re
from pathlib import Path

import pytest

from glassformer.families.registry import families
from tests.docs.pages import CARDS, PAGES, ROOT, prose

LINK = re.compile(r"""(?:\]\(|(?:src|href)=")([^)"\s]+)""")
WRITTEN = [*PAGES, ROOT / "CHANGELOG.md", *CARDS]


def anchors(page: Path) -> set[str]:
    """The places of a page that a link may name, as they are made from its headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    """Read as files, without the site."""
    for link in LINK.findall(prose(page)):
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
    text = (ROOT / "docs" / "concepts" / "families.md").read_text(encoding="utf-8")
    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| `") and len(cells) == 4:
            rows[cells[0].strip("`")] = tuple(set(re.findall(r"`([^`]+)`", cell)) for cell in cells[1:3])
    assert list(rows) == list(families())
    for name, family in families().items():
        reads = set() if name == "sentence" else set(family.architectures)
        assert rows[name] == (reads, set(family.presets)), name


def test_readme_names_every_family() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in families():
        assert f"`{name}`" in text


def test_architecture_page_lists_every_package() -> None:
    text = (ROOT / "docs" / "concepts" / "architecture.md").read_text(encoding="utf-8")
    table = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    assert table == {p.parent.name for p in (ROOT / "glassformer").glob("*/*.py")}
