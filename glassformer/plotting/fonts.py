"""Letters that really appear: an installed font that has them, or a spelling in letters there are."""

from __future__ import annotations

from contextlib import suppress
from functools import cache

BASE = "DejaVu Sans"  # comes with matplotlib
# fonts with Korean letters (most of them with Chinese and Japanese too), the best-looking first
CJK = (
    "Noto Sans KR",
    "Noto Sans CJK KR",
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "Source Han Sans K",
    "Apple SD Gothic Neo",
    "Malgun Gothic",
    "NanumGothic",
    "NanumBarunGothic",
    "Nanum Gothic",
    "UnDotum",
    "Baekmuk Dotum",
    "WenQuanYi Zen Hei",
    "Arial Unicode MS",
)
# Revised Romanisation, letter by letter: how a syllable begins, sounds and ends
INITIALS = "g kk n d tt r m b pp s ss - j jj ch k t p h".replace("-", "").split(" ")
VOWELS = "a ae ya yae eo e yeo ye o wa wae oe yo u wo we wi yu eu ui i".split(" ")
FINALS = "- k k k n n n t l k m l l l p l m p p t t ng t t k t p t".replace("-", "").split(" ")
FIRST_SYLLABLE, LAST_SYLLABLE = 0xAC00, 0xD7A3
CONTROLS = {"\n": "↵", "\t": "⇥", "\r": "␍", " ": "␣", "\u00a0": "␣"}


@cache
def font_families() -> tuple[str, ...]:
    """The fonts to draw with, in the order they are tried for each letter."""
    found = _korean()
    if not found:
        _look_again()
        found = _korean()
    return (BASE, *found[:1])


def _korean() -> list[str]:
    """Which of the fonts with Korean letters are known, the best-looking first."""
    from matplotlib import font_manager

    installed = {entry.name for entry in font_manager.fontManager.ttflist}
    return [name for name in CJK if name in installed]


def _look_again() -> None:
    """Learn of fonts installed since matplotlib last wrote its list of them."""
    from matplotlib import font_manager

    manager = font_manager.fontManager
    listed = {entry.fname for entry in manager.ttflist}
    for path in font_manager.findSystemFonts():
        if path not in listed:
            with suppress(OSError, RuntimeError):  # a file that is no font
                manager.addfont(path)


@cache
def _drawable() -> frozenset[int]:
    from matplotlib import font_manager, ft2font

    paths = [font_manager.findfont(name) for name in font_families()]
    return frozenset(code for path in paths for code in ft2font.FT2Font(path).get_charmap())


def romanised(syllable: str) -> str:
    """A Korean syllable in Latin letters.

    >>> "".join(map(romanised, "안녕"))
    'annyeong'
    """
    code = ord(syllable) - FIRST_SYLLABLE
    initial, rest = divmod(code, len(VOWELS) * len(FINALS))
    vowel, final = divmod(rest, len(FINALS))
    return INITIALS[initial] + VOWELS[vowel] + FINALS[final]


def visible(token: str, longest: int = 12) -> str:
    """A token as a label: spaces and line ends shown, too long ones cut.

    >>> visible(" the"), visible("\\n"), visible("internationalisation")
    ('␣the', '↵', 'internation…')
    """
    shown = "".join(CONTROLS.get(c, c if c.isprintable() else "�") for c in token)
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def label(token: str, longest: int = 12) -> str:
    """`visible`, in letters the fonts here can draw: Korean is romanised and the rest named by number."""
    return drawable(visible(token, longest))


def drawable(text: str) -> str:
    """A text in letters the fonts here can draw; spaces stay spaces."""
    have = _drawable()
    shown = []
    for letter in text:
        if ord(letter) in have:
            shown.append(letter)
        elif FIRST_SYLLABLE <= ord(letter) <= LAST_SYLLABLE:
            shown.append(romanised(letter))
        else:
            shown.append(f"U+{ord(letter):04X}")
    # a dollar sign would start a formula
    return "".join(shown).replace("$", r"\$")
