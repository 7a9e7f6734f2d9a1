"""Extract plain English prose from tokenized or marked-up corpora."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

ENDS = (".", "!", "?", '."', '!"', '?"', ".'", ".)")


# ---- WikiText: tokens with spaces between them, rare words replaced -----------------------------------


def wikitext_articles(text: str) -> Iterator[str]:
    """The articles, one paragraph per line, without headings and without sentences with <unk>."""
    paragraph: list[str] = []
    for line in text.split("\n"):
        line = line.strip()
        if re.fullmatch(r"= [^=].* =", line):  # a title; those of sections have more signs
            yield from _joined(paragraph)
            paragraph = []
        elif line and not line.startswith("="):
            paragraph.append(paragraph_of(line))
    yield from _joined(paragraph)


def paragraph_of(line: str) -> str:
    """The complete sentences of a line of tokens, detokenized.

    >>> paragraph_of('He was 3 @.@ 5 m tall , " big " . The <unk> left . It was n\\'t new ( 1 @,@ 990 ) .')
    'He was 3.5 m tall, "big". It wasn\\'t new (1,990).'
    """
    sentences = (one for one in re.findall(r".*?(?: [.!?](?: \")?(?: |$)|$)", line) if one.strip())
    sentences_without_unknowns = [one.strip() for one in sentences if "<unk>" not in one]
    return " ".join(written(one) for one in sentences_without_unknowns if one.count('"') % 2 == 0)


def written(tokens: str) -> str:
    """Detokenize: remove the spaces that tokenization added."""
    text = re.sub(r" @([-,.])@ ", r"\1", tokens)
    text = re.sub(r'"\s*([^"]*?)\s*"', r'"\1"', text)
    text = re.sub(r" ([,.;:!?%)\]]|'(?:s|re|ve|ll|d|m)?\b|n't\b)", r"\1", text)
    return re.sub(r"([(\[$£]) ", r"\1", text).replace(" – ", " – ")


# ---- Wikipedia's own markup ---------------------------------------------------------------------------


def wikipedia_articles(xml: str) -> Iterator[str]:
    """The prose of a Wikipedia dump: paragraphs of complete sentences, without lists, tables and notes."""
    for title, page in re.findall(r"<title>(.*?)</title>.*?<text[^>]*>(.*?)</text>", xml, re.DOTALL):
        if ":" in title or page.startswith("#") or "{{disambig" in page.lower():
            continue
        lines = without_markup(html.unescape(html.unescape(page))).split("\n")
        yield from _joined([line.strip() for line in lines if _is_prose(line.strip())])


def without_markup(page: str) -> str:
    """
    >>> without_markup("'''Ada''' is a [[town|small town]] in [[Ohio]]<ref>x</ref>{{stub}}.[http://a.b c]")
    'Ada is a small town in Ohio.'
    """
    page = re.sub(r"<!--.*?-->|<(ref|math|gallery|table|pre|timeline)\b.*?</\1>", "", page, flags=re.S | re.I)
    page = re.sub(r"<[^<>]*>", "", page)
    for _ in range(4):  # templates, tables and pictures' texts have others inside
        page = re.sub(r"\{\{[^{}]*\}\}|\{\|[^{}]*?\|\}", "", page)
        page = re.sub(r"\[\[[a-zA-Z-]+:[^\[\]]*\]\]", "", page)
        page = re.sub(r"\[\[(?![a-zA-Z-]+:)(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]", r"\1", page)
    page = re.sub(r"\[(?:https?|ftp)://[^\]]*\]|https?://\S+", "", page)
    page = re.sub(r"'{2,}", "", page).replace("\u00a0", " ")
    page = re.sub(r"\(\s*[;,]?\s*\)", "", page)
    return re.sub(r" +([,.;])", r"\1", re.sub(r"[ \t]+", " ", page))


def _is_prose(line: str) -> bool:
    """Whether a paragraph is prose: no list, table, heading or left-over markup."""
    if len(line) < 120 or not line.endswith(ENDS) or not line[0].isalpha() or not line[0].isupper():
        return False
    if (
        any(sign in line for sign in "{}[]|=<>_\\#*")
        or line.count('"') % 2
        or line.count("(") != line.count(")")
    ):
        return False
    letters = sum(sign.isascii() and (sign.isalpha() or sign in " ,.'\"-") for sign in line)
    return letters > 0.95 * len(line)


def _joined(paragraphs: list[str]) -> Iterator[str]:
    """The paragraphs as one document; None if there are none."""
    worth = [one for one in paragraphs if len(one) >= 120]
    if worth:
        yield "\n".join(worth)
