"""Questions about composed scenes with their answers, in English and Korean.

python -m experiments.scene_questions --out scenes --count 20000     a table for the recipe vqa-scenes

The scenes are those of `experiments.caption_scenes`: one or two groups of equal things, here one to four, and
more often plain shapes. A question has one right answer, which its words do not give away: each number, each
color, yes and no are equally frequent. A tenth of all pairs of kinds, next to or above each other, is held
out: no training scene has them in any order, and test scenes have no others.
"""

from __future__ import annotations

import argparse
from bisect import bisect
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from experiments.caption_scenes import (
    COLORS,
    FIRST_TEST,
    KINDS,
    NO_COLOR,
    SHAPES,
    THINGS,
    Group,
    SentenceComposer,
)
from experiments.paths import data_folder
from glassformer.data.randomness import uniform

LANGUAGES = ("en", "ko")
QUESTION_KINDS = ("count", "exists", "color", "what", "relation")
PRACTICE = (1.0, 0.6, 0.4, 1.2, 2.0)  # weights of the kinds in training: more of the harder ones
SHAPE_SHARE = 0.5  # of the groups, so that many questions are about colors
ALONE, ABSENT = 0.15, 0.2  # share of the scenes with one group, and of the counts that are zero
_BATCH = 250
_WORDS = {kind: line.split() for kind, line in (THINGS | SHAPES).items()}
_WEIGHTS = np.array(
    [(1 - SHAPE_SHARE) / len(THINGS)] * len(THINGS) + [SHAPE_SHARE / len(SHAPES)] * len(SHAPES)
)
_PLACES = {  # left, right, above, below
    "en": ("to the left of", "to the right of", "above", "below"),
    "ko": ("왼쪽", "오른쪽", "위쪽", "아래쪽"),
}
YES_NO = {"en": ("no", "yes"), "ko": ("아니요", "네")}


class Question(NamedTuple):
    """A question about a scene and its answer. kind: one of `QUESTION_KINDS`."""

    kind: str
    text: str
    answer: str


class QuestionComposer(SentenceComposer):
    """Compose scenes of one or two groups, and ask about them. Letters: B scenes."""

    max_count = 4

    def groups(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return kind, color and count (B, 2, 3), whose count is 0 without a second group, and the axis."""
        draws, test = uniform(self.seed, 2, rows, 9), rows >= FIRST_TEST
        first, second = _draw_kinds(draws[:, 0]), _draw_kinds(draws[:, 1])
        vertical = draws[:, 2] < 0.5
        alone = (draws[:, 3] < ALONE) & ~test
        for _ in range(4 * len(KINDS)):  # to the next pair that belongs to this part
            wrong = (held_out(first, second, vertical) != test) | (second == first)
            second = np.where(wrong, (second + 1) % len(KINDS), second)
        swap = draws[:, 8] < 0.5
        both = np.stack((np.where(swap, second, first), np.where(swap, first, second)), 1)
        counts = 1 + np.floor(draws[:, 4:6] * self.max_count).astype(np.int64)
        counts[:, 1] *= ~alone
        colors = np.floor(draws[:, 6:8] * len(COLORS)).astype(np.int64)
        colors = np.where(both < len(THINGS), NO_COLOR, colors)
        return np.stack((both, colors, counts), -1), vertical

    def questions(self, rows: NDArray[np.int64], languages: NDArray[np.int64]) -> list[Question]:
        """Return a question about each scene, in the languages with these numbers (B,)."""
        draws = uniform(self.seed, 5, rows, 6).tolist()
        scenes, test = self.described(rows), rows >= FIRST_TEST
        return [
            ask(*scene, LANGUAGES[language], line, (1.0,) * len(PRACTICE) if fair else PRACTICE)
            for scene, language, line, fair in zip(scenes, languages, draws, test, strict=True)
        ]


def held_out(
    first: NDArray[np.int64], second: NDArray[np.int64], vertical: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return which pairs of kinds only test scenes have, side by side or above each other: every tenth."""
    low, high = np.minimum(first, second), np.maximum(first, second)
    return (low * 7 + high * 3 + vertical * 5) % 10 == 0


def _draw_kinds(draws: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.minimum(np.searchsorted(np.cumsum(_WEIGHTS), draws, side="right"), len(KINDS) - 1)


def ask(
    groups: Sequence[Group],
    vertical: bool,
    language: str,
    draws: Sequence[float],
    weights: Sequence[float] = (1.0,) * len(PRACTICE),
) -> Question:
    """Return a question about a scene. draws: six numbers from 0 to 1, which choose it. weights: of its kind.

    >>> goat, stars = Group(KINDS.index("goat"), NO_COLOR, 1), Group(KINDS.index("star"), 0, 2)
    >>> for language in LANGUAGES:
    ...     for kind in (0.1, 0.3, 0.5, 0.7, 0.9):
    ...         print(*ask([goat, stars], False, language, (kind, 0.9, 0.9, 0.1, 0.5, 0.5))[1:])
    How many red stars are there? 2
    Is there a red star in the picture? yes
    What color are the stars? red
    What is to the left of the stars? goat
    Are the stars to the right of the goat? yes
    빨간 별은 몇 개 있나요? 2
    그림에 빨간 별이 있나요? 네
    별은 무슨 색인가요? 빨간색
    별의 왼쪽에 무엇이 있나요? 염소
    별이 염소의 오른쪽에 있나요? 네
    """
    colored = [group for group in groups if group.color != NO_COLOR]
    possible = (True, True, bool(colored), len(groups) > 1, len(groups) > 1)
    ends = [*accumulate(weight * can for weight, can in zip(weights, possible, strict=True))]
    kind = QUESTION_KINDS[bisect(ends, draws[0] * ends[-1])]
    number = int(draws[1] * len(groups))
    group = groups[number]
    if kind in ("count", "exists"):
        present = draws[2] >= (ABSENT if kind == "count" else 0.5)
        asked = group if draws[3] < 0.5 else group._replace(color=NO_COLOR)
        asked = asked if present else _absent(groups, asked, draws[4:])
        if kind == "count":
            return Question(kind, _count(asked, language), str(group.count * present))
        return Question(kind, _exists(asked, language), YES_NO[language][present])
    if kind == "color":
        group = colored[int(draws[1] * len(colored))]
        return Question(kind, _color(group, language), _color_name(group, language))
    other, side = groups[1 - number], 2 * vertical + number  # the side of this group, seen from the other
    if kind == "what":  # about the other group, from here
        return Question(kind, _what(group, 2 * vertical + 1 - number, language), _noun(other, language))
    true = draws[2] >= 0.5
    place = side if true else side ^ 1
    return Question(kind, _relation(group, place, other, language), YES_NO[language][true])


def _absent(groups: Sequence[Group], asked: Group, draws: Sequence[float]) -> Group:
    """Return things that the scene lacks: if colored, every second time only the color differs."""
    if asked.color != NO_COLOR and draws[0] < 0.5:
        color = (asked.color + 1 + int(draws[1] * (len(COLORS) - 1))) % len(COLORS)
        return asked._replace(color=color)
    emoji, shapes = range(len(THINGS)), range(len(THINGS), len(KINDS))
    kinds = [
        kind
        for kind in (emoji if asked.kind in emoji else shapes)
        if all(kind != group.kind for group in groups)
    ]
    return asked._replace(kind=kinds[int(draws[1] * len(kinds))])


def _noun(group: Group, language: str, *, plural: bool = False) -> str:
    return _WORDS[KINDS[group.kind]][8 if language == "ko" else int(plural)]


def _color_name(group: Group, language: str) -> str:
    name, forms = [*COLORS.items()][group.color]
    return name if language == "en" else f"{forms.split()[-1]}색"


def _described(group: Group, language: str, *, plural: bool = False) -> str:
    """Return the noun with the color of the group, if it has one."""
    noun = _noun(group, language, plural=plural)
    if group.color == NO_COLOR:
        return noun
    color = _color_name(group, language)
    return f"{color if language == 'en' else color.removesuffix('색')} {noun}"


def _particle(word: str, after_consonant: str, after_vowel: str) -> str:
    """Return a Korean word with its particle, which depends on the last sound."""
    return word + (after_consonant if (ord(word[-1]) - 0xAC00) % 28 else after_vowel)


def _count(group: Group, language: str) -> str:
    if language == "en":
        return f"How many {_described(group, 'en', plural=True)} are there?"
    counter = _WORDS[KINDS[group.kind]][9]
    return f"{_particle(_described(group, 'ko'), '은', '는')} 몇 {counter} 있나요?"


def _exists(group: Group, language: str) -> str:
    noun = _described(group, language)
    if language == "en":
        return f"Is there {'an' if noun[0] in 'aeiou' else 'a'} {noun} in the picture?"
    return f"그림에 {_particle(noun, '이', '가')} 있나요?"


def _color(group: Group, language: str) -> str:
    several = group.count > 1
    noun = _noun(group, language, plural=several)
    if language == "en":
        return f"What color {'are' if several else 'is'} the {noun}?"
    return f"{_particle(noun, '은', '는')} 무슨 색인가요?"


def _what(group: Group, place: int, language: str) -> str:
    noun, where = _noun(group, language, plural=group.count > 1), _PLACES[language][place]
    return f"What is {where} the {noun}?" if language == "en" else f"{noun}의 {where}에 무엇이 있나요?"


def _relation(group: Group, place: int, other: Group, language: str) -> str:
    a, b = (_noun(one, language, plural=one.count > 1) for one in (group, other))
    where = _PLACES[language][place]
    if language == "en":
        return f"{'Are' if group.count > 1 else 'Is'} the {a} {where} the {b}?"
    return f"{_particle(a, '이', '가')} {b}의 {where}에 있나요?"


def every_question() -> Iterator[Question]:
    """Yield questions that together have all words and all answers."""
    for language in LANGUAGES:
        for kind in range(len(KINDS)):
            for color in range(len(COLORS)) if kind >= len(THINGS) else (NO_COLOR,):
                for count in (1, 2):
                    group, plain = Group(kind, color, count), Group(kind, NO_COLOR, count)
                    for one in (group, plain):
                        for number in range(QuestionComposer.max_count + 1):
                            yield Question("count", _count(one, language), str(number))
                        for answer in YES_NO[language]:
                            yield Question("exists", _exists(one, language), answer)
                    if color != NO_COLOR:
                        yield Question("color", _color(group, language), _color_name(group, language))
                    for place in range(len(_PLACES[language])):
                        answer = _noun(group, language)
                        yield Question("what", _what(plain, place, language), answer)
                        for answer in YES_NO[language]:
                            yield Question("relation", _relation(plain, place, plain, language), answer)


def write_table(composer: QuestionComposer, count: int, test: int, folder: Path) -> None:
    """Write images, and questions.tsv and valid.tsv, with a question in each language about every scene."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for name, rows in (("questions", np.arange(count)), ("valid", np.arange(test) + FIRST_TEST)):
        with (folder / f"{name}.tsv").open("w", encoding="utf-8") as file:
            file.write("image\tquestion\tanswer\n")
            for start in range(0, len(rows), _BATCH):
                part = rows[start : start + _BATCH]
                pixels = (composer.batch(part).images * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
                asked = [composer.questions(part, np.full(len(part), n)) for n in range(len(LANGUAGES))]
                for row, image, *questions in zip(part.tolist(), pixels, *asked, strict=True):
                    path = f"images/{name}-{row % FIRST_TEST}.png"
                    Image.fromarray(image).save(folder / path)
                    for question in questions:
                        file.write(f"{path}\t{question.text}\t{question.answer}\n")


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.scene_questions", description=__doc__)
    parser.add_argument("--emoji", type=Path, default=data_folder() / "emoji-captions", help="emoji folder")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--count", type=int, default=20_000, help="number of training scenes")
    parser.add_argument("--test", type=int, default=500, help="number of scenes with held-out pairs")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(args)
    write_table(QuestionComposer(options.emoji, seed=options.seed), options.count, options.test, options.out)


if __name__ == "__main__":
    main()
