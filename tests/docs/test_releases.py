"""The version, the changelog and the citation agree."""

import re

from glassformer import __version__
from tests.docs.pages import ROOT

SECTION = re.compile(r"^## \[(?P<version>[^\]]+)\](?: - (?P<date>\d{4}-\d\d-\d\d))?$", re.MULTILINE)


def test_the_version_is_a_released_one_only_if_nothing_is_unreleased() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first, newest = list(SECTION.finditer(text))[:2]
    assert first["version"] == "Unreleased" and newest["date"]
    released = tuple(map(int, newest["version"].split(".")))
    if re.search(r"^- ", text[first.end() : newest.start()], re.MULTILINE):
        version = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)\.dev0", __version__)
        assert version is not None and tuple(map(int, version.groups())) > released
    else:
        assert __version__ == newest["version"]


def test_the_citation_is_of_the_newest_release() -> None:
    newest = list(SECTION.finditer((ROOT / "CHANGELOG.md").read_text(encoding="utf-8")))[1]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {newest['version']}\n" in citation
    assert f'\ndate-released: "{newest["date"]}"\n' in citation
