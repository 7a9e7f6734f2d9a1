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


def test_three_rounds_reach_single_letters():
    assert all(len(SPELLINGS[number]) == 1 or number < 2 for row in split(0.999999) for number in row)


def test_truncation_keeps_the_end_token():
    for row, text in zip(split(0.5, max_length=20), TEXTS, strict=True):
        assert len(row) <= 20 and row[0] == 0 and row[-1] == 1
        assert spelled(text).startswith(spelled(row[:-1]))
