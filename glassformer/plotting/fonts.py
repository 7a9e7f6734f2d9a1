"""Fonts for text in any script, and fallbacks for characters that no installed font has."""

from __future__ import annotations

from functools import cache
from pathlib import Path

BASE = "DejaVu Sans"  # ships with matplotlib
# fonts with Korean letters (most of them with Chinese and Japanese too), in order of preference
CJK = (
    *("Noto Sans KR", "Noto Sans CJK KR", "Noto Sans CJK JP", "Noto Sans CJK SC", "Source Han Sans K"),
    *("Apple SD Gothic Neo", "Malgun Gothic", "NanumGothic", "NanumBarunGothic", "Nanum Gothic", "UnDotum"),
    *("Baekmuk Dotum", "WenQuanYi Zen Hei", "Arial Unicode MS"),
)
# Revised Romanization, letter by letter: the initial consonants, vowels and final consonants
INITIALS = "g kk n d tt r m b pp s ss - j jj ch k t p h".replace("-", "").split(" ")
VOWELS = "a ae ya yae eo e yeo ye o wa wae oe yo u wo we wi yu eu ui i".split(" ")
FINALS = "- k k k n n n t l k m l l l p l m p p t t ng t t k t p t".replace("-", "").split(" ")
FIRST_SYLLABLE, LAST_SYLLABLE = 0xAC00, 0xD7A3
CONTROLS = {"\n": "↵", "\t": "⇥", "\r": "␍", " ": "␣", "\u00a0": "␣"}


@cache
def font_families() -> tuple[str, ...]:
    """Return the font families, in the order in which they are tried for each character."""
    from matplotlib import font_manager

    manager = font_manager.fontManager
    if not any(entry.name in CJK for entry in manager.ttflist):  # the list may be older than the fonts
        files = {name.replace(" ", "") for name in CJK}
        for path in font_manager.findSystemFonts():
            if Path(path).stem.removesuffix("-Regular") in files:
                manager.addfont(path)
    installed = {entry.name for entry in manager.ttflist}
    return (BASE, *[name for name in CJK if name in installed][:1])


@cache
def _drawable() -> frozenset[int]:
    from matplotlib import font_manager

    paths = [font_manager.findfont(name) for name in font_families()]
    return frozenset(code for path in paths for code in _characters(path))


@cache
def _characters(path: str) -> frozenset[int]:
    from matplotlib import ft2font

    return frozenset(ft2font.FT2Font(path).get_charmap())


def find_font(text: str) -> tuple[str, str]:
    """Return the path of a font for a text, and the text without characters that no font has."""
    from matplotlib import font_manager

    paths = [font_manager.findfont(name) for name in font_families()]
    for path in paths:
        if all(ord(char) in _characters(path) for char in text):
            return path, text
    return paths[0], "".join(char if ord(char) in _characters(paths[0]) else _replace(char) for char in text)


def _replace(char: str) -> str:
    """Return a substitute for a character that the fonts lack: Korean is romanized, others become U+XXXX."""
    is_korean = FIRST_SYLLABLE <= ord(char) <= LAST_SYLLABLE
    return romanize(char) if is_korean else f"U+{ord(char):04X}"


def romanize(syllable: str) -> str:
    """Romanize a Korean syllable.

    >>> "".join(map(romanize, "안녕"))
    'annyeong'
    """
    rest, final = divmod(ord(syllable) - FIRST_SYLLABLE, len(FINALS))
    initial, vowel = divmod(rest, len(VOWELS))
    return INITIALS[initial] + VOWELS[vowel] + FINALS[final]


def visible(token: str, max_length: int = 12) -> str:
    """Format a token as a label: whitespace is made visible, and long tokens are truncated.

    >>> visible(" the"), visible("\\n"), visible("internationalization")
    ('␣the', '↵', 'internation…')
    """
    shown = "".join(CONTROLS.get(c, c if c.isprintable() else "�") for c in token)
    return shown if len(shown) <= max_length else shown[: max_length - 1] + "…"


def label(token: str, max_length: int = 12) -> str:
    """Format a token as `visible` does, using only characters that the fonts have."""
    return drawable(visible(token, max_length))


def drawable(text: str) -> str:
    """Replace characters that the fonts lack: Korean is romanized, others become U+XXXX."""
    available = _drawable()
    known = (char if ord(char) in available else _replace(char) for char in text)
    return "".join(known).replace("$", r"\$")  # a dollar sign would start math mode
