"""Sentences about scenes: they are true, and no training scene has a held-out pair."""

import numpy as np
import pytest

from experiments.caption_scenes import (
    ARRAYS,
    FIRST_TEST,
    KINDS,
    NO_COLOR,
    THINGS,
    Group,
    SentenceComposer,
    SentenceExamples,
    held_out,
    make_tokenizer,
    phrase,
)
from experiments.paths import data_folder
from experiments.scenes import LANGUAGES, NO_LABEL
from glassformer.data.examples import IGNORE_INDEX

EMOJI = data_folder() / "emoji-captions"
pytestmark = pytest.mark.skipif(not EMOJI.is_dir(), reason="the emoji are not there")


@pytest.fixture(scope="module")
def composer():
    return SentenceComposer(EMOJI, seed=1)


def test_groups_are_where_the_sentence_says(composer):
    rows = np.arange(200)
    layout = composer.layout(rows)
    for n, (groups, vertical) in enumerate(composer.described(rows)):
        shown = layout.cutout[n] != NO_LABEL
        kinds, center = layout.cutout[n][shown], layout.center[n][shown][:, int(vertical)]
        assert sorted(kinds) == sorted(group.kind for group in groups for _ in range(group.count))
        assert (np.abs(center - 0.5) <= 0.5).all()
        if len(groups) == 2:
            first = kinds == groups[0].kind
            assert center[first].max() < 0.5 < center[~first].min()


def test_test_scenes_have_pairs_that_training_never_has(composer):
    rows = np.arange(500)
    for start, expected in ((0, False), (FIRST_TEST, True)):
        groups, vertical = composer.groups(rows + start)
        both = groups[:, 1, 2] > 0
        found = held_out(groups[both, 0, 0], groups[both, 1, 0], vertical[both])
        assert (found == expected).all() and (groups[:, 0, 0] != groups[:, 1, 0]).all()


def test_labels_restore_the_sentence_of_the_given_language(composer):
    tokenizer = make_tokenizer()
    examples = SentenceExamples(composer, tokenizer)
    batch = examples.batch(np.arange(16), epoch=0)
    assert {*ARRAYS, "tgt", "labels"} == {*batch}
    for scene, tgt, labels in zip(
        composer.described(np.arange(16)), batch["tgt"], batch["labels"], strict=True
    ):
        language = LANGUAGES[examples.tags.index(tgt[1])]
        text = tokenizer.decode(labels[labels != IGNORE_INDEX].tolist())
        assert all(phrase(group, language).lower() in text.lower() for group in scene[0])
        assert labels[0] == IGNORE_INDEX and tokenizer.unknown_ids.isdisjoint(labels.tolist())


def test_articles_and_endings_agree():
    owl, star = Group([*THINGS].index("owl"), NO_COLOR, 1), KINDS.index("star")
    assert phrase(owl, "en") == "an owl"
    assert phrase(Group(star, 1, 1), "de") == "ein grüner Stern"
    assert phrase(Group(KINDS.index("heart"), 1, 1), "de") == "ein grünes Herz"
    assert phrase(Group(star, 5, 3), "fr") == "trois étoiles blanches"
