"""The pages of the documentation, and the blocks of code in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("README*.md"), *(ROOT / "docs").rglob("*.md")])
CARDS = sorted(ROOT.glob("glassformer/pretrained/*/CARD.md"))
LANGUAGES = {"python", "sh", "yaml", "json", "text"}
FENCE = re.compile(
    r"^(?:<!-- not run: (?P<why>.+?) -->\n)?(?P<mark>```+)(?P<language>[^\n]*)\n(?P<code>.*?)^(?P=mark)$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block.

    line: the number of its first line of code in the page, from 1
    why: the reason that the comment before it gives for not running it; "" where it runs
    """

    language: str
    code: str
    line: int
    why: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            language=found["language"],
            code=found["code"],
            line=text.count("\n", 0, found.start("code")) + 1,
            why=found["why"] or "",
        )
        for found in FENCE.finditer(text)
    ]


def prose(page: Path) -> str:
    """The page without its blocks, where a bracket or a # means what Markdown says."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))
