"""BPE dropout keeps the text, and depends only on seed, epoch and row."""

import numpy as np

from glassformer.data.bpe_dropout import BpeDropout, split_table

LETTERS = "abcd"
PAIRS = [one + two for one in LETTERS for two in LETTERS]
FOURS = [one + two for one in PAIRS for two in PAIRS]
SPELLINGS = ["<s>", "</s>", *LETTERS, *PAIRS, *FOURS]
TABLE = split_table(SPELLINGS, special=(0, 1))
RNG = np.random.default_rng(0)
ROWS = np.arange(200) * 7
TEXTS = [np.array([0, *RNG.integers(2, len(SPELLINGS), RNG.integers(0, 30)), 1]) for _ in ROWS]
LENGTHS = np.array([len(text) for text in TEXTS])


def split(prob, *, epoch=0, max_length=500, some=slice(None), seed=1):
    dropout = BpeDropout(TABLE, prob, max_length=max_length, seed=seed)
    ids, lengths = dropout(np.concatenate(TEXTS[some]), LENGTHS[some], ROWS[some], epoch=epoch)
    return np.split(ids, lengths.cumsum()[:-1])


def spelled(ids):
    return "".join(SPELLINGS[number] for number in ids)


def test_dropout_keeps_the_spelling():
    for prob in (0.1, 0.6):
        tokens = split(prob)
        assert [spelled(row) for row in tokens] == [spelled(row) for row in TEXTS]
        assert sum(map(len, tokens)) > LENGTHS.sum() * (1 + prob / 2)
    assert all((one == two).all() for one, two in zip(split(0.0), TEXTS, strict=True))


def test_three_rounds_reach_single_letters():
    assert all(len(SPELLINGS[number]) == 1 or number < 2 for row in split(0.999999) for number in row)


def test_dropout_depends_only_on_seed_epoch_and_row():
    full, part = split(0.3), split(0.3, some=slice(50, 60))
    assert all((one == two).all() for one, two in zip(full[50:60], part, strict=True))
    other = [split(0.3, epoch=1), split(0.3, seed=9)]
    assert all(sum(len(a) != len(b) for a, b in zip(full, each, strict=True)) > 50 for each in other)


def test_truncation_keeps_the_end_token():
    for row, text in zip(split(0.5, max_length=20), TEXTS, strict=True):
        assert len(row) <= 20 and row[0] == 0 and row[-1] == 1
        assert spelled(text).startswith(spelled(row[:-1]))


def test_without_truncation_rows_stay_within_their_bound():
    for max_length in (31, 500):  # where there is hardly any room, and where there is
        dropout = BpeDropout(TABLE, 0.3, max_length=max_length, seed=1)
        ids, lengths = dropout.without_truncation(np.concatenate(TEXTS), LENGTHS, ROWS, epoch=0)
        tokens = np.split(ids, lengths.cumsum()[:-1])
        assert [spelled(row) for row in tokens] == [spelled(row) for row in TEXTS]
        assert (lengths <= dropout.bound(LENGTHS)).all() and dropout.bound(LENGTHS).max() <= max_length
        free = split(0.3, max_length=10**6)
        same = [one.tolist() == other.tolist() for one, other in zip(tokens, free, strict=True)]
        within = [len(row) <= most for row, most in zip(free, dropout.bound(LENGTHS), strict=True)]
        assert same == within and 0 < sum(within) < len(within)
