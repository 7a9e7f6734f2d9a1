"""Tokens cut anew: the text stays what it is, and each row is cut by itself."""

import numpy as np

from glassformer.data.recut import Recut, halves

LETTERS = "abcd"
PAIRS = [one + two for one in LETTERS for two in LETTERS]
FOURS = [one + two for one in PAIRS for two in PAIRS]
SPELLINGS = ["<s>", "</s>", *LETTERS, *PAIRS, *FOURS]
TABLE = halves(SPELLINGS, kept=(0, 1))
RNG = np.random.default_rng(0)
ROWS = np.arange(200) * 7
TEXTS = [np.array([0, *RNG.integers(2, len(SPELLINGS), RNG.integers(0, 30)), 1]) for _ in ROWS]
LENGTHS = np.array([len(text) for text in TEXTS])


def cut(chance, *, epoch=0, longest=500, some=slice(None), seed=1):
    recut = Recut(TABLE, chance, longest=longest, seed=seed)
    ids, lengths = recut(np.concatenate(TEXTS[some]), LENGTHS[some], ROWS[some], epoch=epoch)
    return np.split(ids, lengths.cumsum()[:-1])


def spelled(ids):
    return "".join(SPELLINGS[number] for number in ids)


def test_every_text_spells_the_same_and_some_tokens_are_shorter():
    for chance in (0.1, 0.6):
        made = cut(chance)
        assert [spelled(row) for row in made] == [spelled(row) for row in TEXTS]
        assert sum(map(len, made)) > LENGTHS.sum() * (1 + chance / 2)
    assert all((one == two).all() for one, two in zip(cut(0.0), TEXTS, strict=True))


def test_three_halvings_leave_single_letters_and_marks():
    assert all(len(SPELLINGS[number]) == 1 or number < 2 for row in cut(0.999999) for number in row)


def test_a_row_is_cut_alike_whatever_stands_beside_it_and_otherwise_in_another_epoch():
    whole, part = cut(0.3), cut(0.3, some=slice(50, 60))
    assert all((one == two).all() for one, two in zip(whole[50:60], part, strict=True))
    other = [cut(0.3, epoch=1), cut(0.3, seed=9)]
    assert all(sum(len(a) != len(b) for a, b in zip(whole, each, strict=True)) > 50 for each in other)


def test_a_long_row_is_cut_off_but_for_the_mark_at_its_end():
    for row, text in zip(cut(0.5, longest=20), TEXTS, strict=True):
        assert len(row) <= 20 and row[0] == 0 and row[-1] == 1
        assert spelled(text).startswith(spelled(row[:-1]))


def test_a_row_that_may_not_be_cut_off_keeps_within_its_bound():
    for longest in (31, 500):  # where there is hardly any room, and where there is
        recut = Recut(TABLE, 0.3, longest=longest, seed=1)
        ids, lengths = recut.whole(np.concatenate(TEXTS), LENGTHS, ROWS, epoch=0)
        made = np.split(ids, lengths.cumsum()[:-1])
        assert [spelled(row) for row in made] == [spelled(row) for row in TEXTS]
        assert (lengths <= recut.bound(LENGTHS)).all() and recut.bound(LENGTHS).max() <= longest
        free = cut(0.3, longest=10**6)
        same = [one.tolist() == other.tolist() for one, other in zip(made, free, strict=True)]
        within = [len(row) <= most for row, most in zip(free, recut.bound(LENGTHS), strict=True)]
        assert same == within and 0 < sum(within) < len(within)
