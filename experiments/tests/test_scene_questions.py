"""Questions about scenes: their answers are true and balanced, and no training scene has a held-out pair."""

from collections import Counter

import numpy as np
import pytest

from experiments.caption_scenes import COLORS, FIRST_TEST, KINDS, NO_COLOR, SHAPES, THINGS
from experiments.paths import data_folder
from experiments.scene_questions import (
    LANGUAGES,
    QUESTION_KINDS,
    YES_NO,
    QuestionComposer,
    every_question,
    held_out,
    write_table,
)
from glassformer.data.image_files import load_image

EMOJI = data_folder() / "emoji-captions"
pytestmark = pytest.mark.skipif(not EMOJI.is_dir(), reason="the emoji are not there")
ROWS = np.arange(6000)
ENGLISH = np.zeros(len(ROWS), int)


@pytest.fixture(scope="module")
def composer():
    return QuestionComposer(EMOJI, seed=1)


def test_answers_are_true(composer):
    """English questions are read word by word, and compared with what the layout shows."""
    layout, scenes = composer.layout(ROWS[:800]), composer.described(ROWS[:800])
    nouns = {word: n for n, kind in enumerate(KINDS) for word in _nouns(kind)}
    for n, question in enumerate(composer.questions(ROWS[:800], ENGLISH[:800])):
        words = question.text.rstrip("?").split()
        named = [nouns[word] for word in words if word in nouns]
        colors = [[*COLORS].index(word) for word in words if word in COLORS]
        shown = layout.cutout[n] >= 0
        kinds, center, color = (part[n][shown] for part in (layout.cutout, layout.center, layout.color))
        match = (kinds == named[0]) & (np.isin(color, colors) if colors else True)
        if question.kind == "count":
            assert question.answer == str(match.sum())
        elif question.kind == "exists":
            assert question.answer == YES_NO["en"][int(match.any())]
        elif question.kind == "color":
            assert {question.answer} == {[*COLORS][one] for one in color[match]}
        else:
            axis, sign = _direction(question.text)
            other = nouns[question.answer] if question.kind == "what" else named[1]
            a, b = (sign * center[kinds == kind, axis] for kind in (named[0], other))
            if question.kind == "what":
                assert b.max() < a.min()
            else:
                assert question.answer == YES_NO["en"][int(a.max() < b.min())]
                assert a.max() < b.min() or b.max() < a.min()
        assert len(scenes[n][0]) == len(set(kinds.tolist()))


def _nouns(kind):
    return (THINGS | SHAPES)[kind].split()[:2]


def _direction(text):
    """Return the axis and its sign, so that what the question names first is smaller."""
    places = {"left of": (0, 1), "right of": (0, -1), "above": (1, 1), "below": (1, -1)}
    return next(found for words, found in places.items() if words in text)


def test_questions_do_not_give_their_answer_away(composer):
    questions = composer.questions(ROWS + FIRST_TEST, ENGLISH)
    answers = {kind: Counter(q.answer for q in questions if q.kind == kind) for kind in QUESTION_KINDS}
    assert {*answers["count"]} == set("01234") and {*answers["color"]} == {*COLORS}
    for kind, share in (
        ("count", 0.24),
        ("exists", 0.54),
        ("color", 0.21),
        ("what", 0.14),
        ("relation", 0.54),
    ):
        assert max(answers[kind].values()) < share * answers[kind].total()
    # knowing whether a color is named does not help
    named = Counter(
        (any(color in q.text for color in COLORS), q.answer) for q in questions if q.kind == "exists"
    )
    assert all(abs(named[color, "yes"] - named[color, "no"]) < 0.1 * len(questions) / 5 for color in (0, 1))


def test_test_scenes_have_pairs_that_training_never_has(composer):
    for start, expected in ((0, False), (FIRST_TEST, True)):
        groups, vertical = composer.groups(ROWS + start)
        both = groups[:, 1, 2] > 0
        first, second = groups[both, 0, 0], groups[both, 1, 0]
        assert (held_out(first, second, vertical[both]) == expected).all() and (first != second).all()
        assert (held_out(second, first, vertical[both]) == expected).all()
        assert groups[..., 2].max() == 4 and ((groups[..., 1] == NO_COLOR) == (groups[..., 0] < 30)).all()


def test_korean_and_english_ask_the_same(composer):
    english, korean = (composer.questions(ROWS[:400], np.full(400, n)) for n in range(len(LANGUAGES)))
    for a, b in zip(english, korean, strict=True):
        assert a.kind == b.kind and (a.answer == b.answer) == (a.kind == "count")
    words, answers = set(), set()
    for question in every_question():
        words.update(question.text.split())
        answers.add(question.answer)
    for question in (*english, *korean):
        assert words.issuperset(question.text.split()) and question.answer in answers


def test_a_table_of_questions_is_written(composer, tmp_path):
    write_table(composer, 3, 2, tmp_path)
    for name, count in (("questions", 3), ("valid", 2)):
        header, *lines = (tmp_path / f"{name}.tsv").read_text("utf-8").splitlines()
        assert header == "image\tquestion\tanswer" and len(lines) == count * len(LANGUAGES)
        assert load_image(tmp_path / lines[0].split("\t")[0]).size == (96, 96)
