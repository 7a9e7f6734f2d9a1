"""The pages of the documentation and their code blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("README*.md"), *DOCS.rglob("*.md")])
CARDS = sorted(ROOT.glob("glassformer/pretrained/*/CARD.md"))
LANGUAGES = {"python", "sh", "yaml", "json", "text"}
FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>.+?) -->\n)?(?P<mark>```+)(?P<language>[^\n]*)\n(?P<code>.*?)^(?P=mark)$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, kw_only=True)
class CodeBlock:
    """A fenced code block.

    line: the number of its first line of code in the page, from 1
    not_run: why it is not run, from the comment before it; empty if it runs
    """

    language: str
    code: str
    line: int
    not_run: str


def read_blocks(page: Path) -> list[CodeBlock]:
    text = page.read_text(encoding="utf-8")
    return [
        CodeBlock(
            language=match["language"],
            code=match["code"],
            line=text.count("\n", 0, match.start("code")) + 1,
            not_run=match["reason"] or "",
        )
        for match in FENCE.finditer(text)
    ]


def read_prose(page: Path) -> str:
    """The page without its code blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()
