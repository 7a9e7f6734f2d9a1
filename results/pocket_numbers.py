"""Numbers in words, 13 to 99, in sentences that anyone says: there are few of them among the pairs."""

from __future__ import annotations

from collections.abc import Iterator

NUMBERS = range(13, 100)
UNITS = {
    "en": "one two three four five six seven eight nine".split(),
    "de": "ein zwei drei vier fünf sechs sieben acht neun".split(),
    "fr": "un deux trois quatre cinq six sept huit neuf".split(),
    "ko": "일 이 삼 사 오 육 칠 팔 구".split(),
}
TENS = {
    "en": "twenty thirty forty fifty sixty seventy eighty ninety".split(),
    "de": "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split(),
    "fr": "vingt trente quarante cinquante soixante soixante quatre-vingt quatre-vingt".split(),
}
TEENS = {
    "en": "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split(),
    "de": "zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn".split(),
    "fr": "dix onze douze treize quatorze quinze seize dix-sept dix-huit dix-neuf".split(),
}
# Korean counts people and years of age with words of its own, short before what is counted
COUNTED = ("한", "두", "세", "네", "다섯", "여섯", "일곱", "여덟", "아홉")
COUNTED_TENS = ("열", "스물", "서른", "마흔", "쉰", "예순", "일흔", "여든", "아흔")
SENTENCES = (
    (
        "I am {} years old.",
        "Ich bin {} Jahre alt.",
        "J'ai {} ans.",
        "저는 {counted} 살이에요.",
    ),
    (
        "There are {} people here.",
        "Hier sind {} Leute.",
        "Il y a {} personnes ici.",
        "여기 {counted} 명이 있어요.",
    ),
    (
        "It costs {} euros.",
        "Es kostet {} Euro.",
        "Ça coûte {} euros.",
        "{} 유로예요.",
    ),
    (
        "We waited for {} minutes.",
        "Wir haben {} Minuten gewartet.",
        "Nous avons attendu {} minutes.",
        "우리는 {} 분 동안 기다렸어요.",
    ),
)


def english(number: int) -> str:
    """
    >>> english(14), english(20), english(23)
    ('fourteen', 'twenty', 'twenty-three')
    """
    tens, units = divmod(number, 10)
    if tens == 1:
        return TEENS["en"][units]
    ten = TENS["en"][tens - 2]
    return f"{ten}-{UNITS['en'][units - 1]}" if units else ten


def german(number: int) -> str:
    """
    >>> german(17), german(30), german(21), german(56)
    ('siebzehn', 'dreißig', 'einundzwanzig', 'sechsundfünfzig')
    """
    tens, units = divmod(number, 10)
    if tens == 1:
        return TEENS["de"][units]
    return f"{UNITS['de'][units - 1]}und{TENS['de'][tens - 2]}" if units else TENS["de"][tens - 2]


def french(number: int) -> str:
    """
    >>> french(21), french(37), french(60), french(71)
    ('vingt et un', 'trente-sept', 'soixante', 'soixante et onze')
    >>> french(80), french(81), french(96)
    ('quatre-vingts', 'quatre-vingt-un', 'quatre-vingt-seize')
    """
    tens, units = divmod(number, 10)
    if tens == 1:
        return TEENS["fr"][units]
    ten = TENS["fr"][tens - 2]
    rest = TEENS["fr"][units] if tens in (7, 9) else UNITS["fr"][units - 1] if units else ""
    if not rest:
        return ten + ("s" if tens == 8 else "")
    return f"{ten} et {rest}" if units == 1 and tens < 8 else f"{ten}-{rest}"


def korean(number: int) -> str:
    """
    >>> korean(13), korean(20), korean(45)
    ('십삼', '이십', '사십오')
    """
    tens, units = divmod(number, 10)
    return (UNITS["ko"][tens - 1] if tens > 1 else "") + "십" + (UNITS["ko"][units - 1] if units else "")


def counted(number: int) -> str:
    """Before what is counted.

    >>> counted(13), counted(20), counted(23), counted(99)
    ('열세', '스무', '스물세', '아흔아홉')
    """
    tens, units = divmod(number, 10)
    return "스무" if number == 20 else COUNTED_TENS[tens - 1] + (COUNTED[units - 1] if units else "")


def sentences() -> Iterator[tuple[str, str, str, str]]:
    """In English, German, French and Korean.

    >>> next(sentences())
    ('I am thirteen years old.', 'Ich bin dreizehn Jahre alt.', "J'ai treize ans.", '저는 열세 살이에요.')
    """
    for number in NUMBERS:
        for en, de, fr, ko in SENTENCES:
            yield (
                en.format(english(number)),
                de.format(german(number)),
                fr.format(french(number)),
                ko.format(korean(number), counted=counted(number)),
            )
