"""Corruption changes every sentence as its kind says, reproducibly."""

import pytest

from experiments.restoration import GAP, KINDS, damaged

SENTENCE = "Nobody knows where the old man went after that night."


@pytest.mark.parametrize("seed", range(20))
def test_corruption_matches_its_kind(seed):
    result = {kind: damaged(SENTENCE, kind, seed=seed) for kind in KINDS}
    assert all(one.read != SENTENCE and GAP not in one.left for one in result.values())
    assert result["trim"].read in SENTENCE
    assert GAP in result["gap"].read and GAP not in result["shuffle"].read
    assert sorted(result["shuffle"].read.split()) == sorted(SENTENCE.split())
    assert result == {kind: damaged(SENTENCE, kind, seed=seed) for kind in KINDS}
