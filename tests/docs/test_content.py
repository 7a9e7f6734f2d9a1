"""Links of the documentation lead somewhere, and its lists are complete."""

import re
from inspect import isclass
from pathlib import Path
from pkgutil import resolve_name

import pytest

from docs import drawings, reference
from glassformer.core import spec
from glassformer.families.registry import families
from glassformer.schema import Spec
from tests.architecture.test_architecture import ORDER
from tests.docs.pages import CARDS, DOCS, PAGES, ROOT, page_id, read_prose

LINK = re.compile(r"""(?:\]\(|(?:src|href)=")([^)"\s]+)""")
PACKAGE = ROOT / "glassformer"
FOLDERS = "|".join(path.name for path in (*ROOT.iterdir(), *PACKAGE.iterdir()) if path.name.isidentifier())
NAMED_FILE = re.compile(rf"(?<![\w/.:-])(?:{FOLDERS})/[\w./-]*\w")
NAMED_MODULE = re.compile(r"(?<![\w/.-])glassformer(?:\.\w+)+")
NO_FILES = {  # a family that the page adds, a version of Kubernetes, a placeholder
    *("glassformer/families/opt.py", "batch/v1", "benchmarks/records/NAME.json"),
}
GENERATED = {DOCS / page for page in reference.paths()}


def anchors(page: Path) -> set[str]:
    """The anchors of a page, made from its headings as GitHub does."""
    headings = re.findall(r"^#+ (.+)$", read_prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "CHANGELOG.md", ROOT / "THIRD_PARTY_NOTICES.md", *CARDS], ids=page_id
)
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


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=page_id)
def test_named_files_and_modules_exist(page: Path) -> None:
    """Also in code and in call traces; a path may start at the root or in the package."""
    text = page.read_text(encoding="utf-8")
    files = set(NAMED_FILE.findall(text)) - NO_FILES
    assert [name for name in files if not ((ROOT / name).exists() or (PACKAGE / name).exists())] == []
    for name in set(NAMED_MODULE.findall(text)):
        assert resolve_name(name) is not None


@pytest.mark.parametrize("page", ["concepts/parts.md", "ko/concepts.md"])
def test_parts_pages_follow_the_order_of_the_classes(page: str) -> None:
    """As on the reference page: the sections, and the table before them."""
    names = list(reference.PYTHON["modules"][2][0].names)
    text = read_prose(DOCS / page)
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert ", ".join(headings).split(", ")[: len(names)] == names
    rows = re.findall(r"^\| \[(.+?)\]\(#", text, re.MULTILINE)
    assert [name.strip("`") for name in ", ".join(rows).split(", ")] == names


def test_the_reference_names_what_exists() -> None:
    """Every directive leads to a class or function, and every spec has one."""
    names = [name for page in reference.pages().values() for name in re.findall(r"^::: (\S+)$", page, re.M)]
    for name in names:
        assert resolve_name(name) is not None
    specs = {name for name, one in vars(spec).items() if isclass(one) and issubclass(one, Spec)}
    assert {f"glassformer.core.spec.{name}" for name in specs - {"Spec"}} <= set(names)


def test_every_picture_is_used() -> None:
    links = {Path(link).name for page in PAGES for link in LINK.findall(page.read_text(encoding="utf-8"))}
    assert {path.name for path in (DOCS / "pictures").rglob("*.png")} <= links


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


def test_the_picture_of_packages_has_the_order_of_the_imports() -> None:
    drawn = " ".join(names for _, _, names in drawings.PACKAGES).split()
    assert [*drawn, "__main__"] == ORDER


def test_functions_of_the_architecture_page_exist() -> None:
    text = (DOCS / "concepts" / "architecture.md").read_text(encoding="utf-8")
    traces = "\n".join(re.findall(r"```text\n(.*?)```", text, re.S))
    names = re.findall(r"^ *(\w+(?:\.\w+)+)(?=,? )", traces, re.M)
    assert len(names) > 50
    for name in names:
        assert resolve_name(f"glassformer.{name}") is not None, name
