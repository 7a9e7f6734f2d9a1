"""Numbers in words, times of day and dates, in everyday sentences, of which the pairs have few."""

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
HOURS = (
    ("one", "eins", "une heure", "한"),
    ("two", "zwei", "deux heures", "두"),
    ("three", "drei", "trois heures", "세"),
    ("four", "vier", "quatre heures", "네"),
    ("five", "fünf", "cinq heures", "다섯"),
    ("six", "sechs", "six heures", "여섯"),
    ("seven", "sieben", "sept heures", "일곱"),
    ("eight", "acht", "huit heures", "여덟"),
    ("nine", "neun", "neuf heures", "아홉"),
    ("ten", "zehn", "dix heures", "열"),
    ("eleven", "elf", "onze heures", "열한"),
    ("twelve", "zwölf", "midi", "열두"),
)
DAYS = (1, 2, 3, 5, 8, 10, 12, 15, 18, 21, 24, 27)
MONTHS = (
    "January February March April May June July August September October November December".split(),
    "Januar Februar März April Mai Juni Juli August September Oktober November Dezember".split(),
    "janvier février mars avril mai juin juillet août septembre octobre novembre décembre".split(),
)
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
        "Il y a {feminine} personnes ici.",
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
        "Nous avons attendu {feminine} minutes.",
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


def feminine(number: int) -> str:
    """
    >>> feminine(31), feminine(71), feminine(81), feminine(42)
    ('trente et une', 'soixante et onze', 'quatre-vingt-une', 'quarante-deux')
    """
    word = french(number)
    return f"{word}e" if word.endswith("un") else word


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


Line = tuple[str, str, str, str]  # in English, German, French and Korean


def sentences() -> Iterator[Line]:
    """All of them."""
    yield from counts()
    yield from times()
    yield from dates()


def counts() -> Iterator[Line]:
    """
    >>> next(counts())
    ('I am thirteen years old.', 'Ich bin dreizehn Jahre alt.', "J'ai treize ans.", '저는 열세 살이에요.')
    """
    for number in NUMBERS:
        for en, de, fr, ko in SENTENCES:
            yield (
                en.format(english(number)),
                de.format(german(number)),
                fr.format(french(number), feminine=feminine(number)),
                ko.format(korean(number), counted=counted(number)),
            )


def times() -> Iterator[Line]:
    """
    >>> for line in list(times())[:2]:
    ...     print(" | ".join(line))
    It is one o'clock. | Es ist ein Uhr. | Il est une heure. | 한 시예요.
    It is half past one. | Es ist halb zwei. | Il est une heure et demie. | 한 시 반이에요.
    """
    for now, then in zip(HOURS, (*HOURS[1:], HOURS[0]), strict=True):
        en, de, fr, ko = now
        after, german_after, french_after, korean_after = then
        full = "ein" if de == "eins" else de
        half = "et demi" if fr == "midi" else "et demie"
        yield f"It is {en} o'clock.", f"Es ist {full} Uhr.", f"Il est {fr}.", f"{ko} 시예요."
        yield (
            f"It is half past {en}.",
            f"Es ist halb {german_after}.",
            f"Il est {fr} {half}.",
            f"{ko} 시 반이에요.",
        )
        yield (
            f"It is a quarter past {en}.",
            f"Es ist Viertel nach {de}.",
            f"Il est {fr} et quart.",
            f"{ko} 시 십오 분이에요.",
        )
        yield (
            f"It is a quarter to {after}.",
            f"Es ist Viertel vor {german_after}.",
            f"Il est {french_after} moins le quart.",
            f"{korean_after} 시 십오 분 전이에요.",
        )


def dates() -> Iterator[Line]:
    """
    >>> for line in list(dates())[:1]:
    ...     print(" | ".join(line))
    Today is January 1. | Heute ist der 1. Januar. | Nous sommes le 1er janvier. | 오늘은 1월 1일이에요.
    """
    for number, (en, de, fr) in enumerate(zip(*MONTHS, strict=True), 1):
        for day in DAYS:
            ordinal = "1er" if day == 1 else str(day)
            yield (
                f"Today is {en} {day}.",
                f"Heute ist der {day}. {de}.",
                f"Nous sommes le {ordinal} {fr}.",
                f"오늘은 {number}월 {day}일이에요.",
            )
            yield (
                f"My birthday is on {en} {day}.",
                f"Mein Geburtstag ist am {day}. {de}.",
                f"Mon anniversaire est le {ordinal} {fr}.",
                f"제 생일은 {number}월 {day}일이에요.",
            )
