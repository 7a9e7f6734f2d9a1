"""Fonts for the characters of any script: an installed one, or a spelling in characters that it has."""

from __future__ import annotations

from functools import cache

BASE = "DejaVu Sans"  # ships with matplotlib
# fonts with Korean letters (most of them with Chinese and Japanese too), the best-looking first
CJK = (
    *("Noto Sans KR", "Noto Sans CJK KR", "Noto Sans CJK JP", "Noto Sans CJK SC", "Source Han Sans K"),
    *("Apple SD Gothic Neo", "Malgun Gothic", "NanumGothic", "NanumBarunGothic", "Nanum Gothic", "UnDotum"),
    *("Baekmuk Dotum", "WenQuanYi Zen Hei", "Arial Unicode MS"),
)
# Revised Romanisation, letter by letter: how a syllable begins, sounds and ends
INITIALS = "g kk n d tt r m b pp s ss - j jj ch k t p h".replace("-", "").split(" ")
VOWELS = "a ae ya yae eo e yeo ye o wa wae oe yo u wo we wi yu eu ui i".split(" ")
FINALS = "- k k k n n n t l k m l l l p l m p p t t ng t t k t p t".replace("-", "").split(" ")
FIRST_SYLLABLE, LAST_SYLLABLE = 0xAC00, 0xD7A3
CONTROLS = {"\n": "↵", "\t": "⇥", "\r": "␍", " ": "␣", "\u00a0": "␣"}


@cache
def font_families() -> tuple[str, ...]:
    """The fonts to draw with, in the order they are tried for each character."""
    from matplotlib import font_manager

    installed = {entry.name for entry in font_manager.fontManager.ttflist}
    return (BASE, *[name for name in CJK if name in installed][:1])


@cache
def _drawable() -> frozenset[int]:
    from matplotlib import font_manager, ft2font

    paths = [font_manager.findfont(name) for name in font_families()]
    return frozenset(code for path in paths for code in ft2font.FT2Font(path).get_charmap())


def romanise(syllable: str) -> str:
    """A Korean syllable in Latin letters.

    >>> "".join(map(romanise, "안녕"))
    'annyeong'
    """
    rest, final = divmod(ord(syllable) - FIRST_SYLLABLE, len(FINALS))
    initial, vowel = divmod(rest, len(VOWELS))
    return INITIALS[initial] + VOWELS[vowel] + FINALS[final]


def visible(token: str, longest: int = 12) -> str:
    """A token as a label: spaces and line ends shown, too long ones cut.

    >>> visible(" the"), visible("\\n"), visible("internationalisation")
    ('␣the', '↵', 'internation…')
    """
    shown = "".join(CONTROLS.get(c, c if c.isprintable() else "�") for c in token)
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def label(token: str, longest: int = 12) -> str:
    """`visible`, in characters that the fonts have."""
    return drawable(visible(token, longest))


def drawable(text: str) -> str:
    """A text in characters that the fonts have: Korean is romanised, others are written as U+XXXX."""
    have = _drawable()

    def spell(letter: str) -> str:
        if ord(letter) in have:
            return letter
        korean = FIRST_SYLLABLE <= ord(letter) <= LAST_SYLLABLE
        return romanise(letter) if korean else f"U+{ord(letter):04X}"

    return "".join(map(spell, text)).replace("$", r"\$")  # a dollar sign would start a formula
