"""Every damaged sentence is another, of the kind it says, and always the same one."""

import pytest

from experiments.restoration import GAP, KINDS, damaged

SENTENCE = "Nobody knows where the old man went after that night."


@pytest.mark.parametrize("seed", range(20))
def test_damage_is_of_its_kind(seed):
    found = {kind: damaged(SENTENCE, kind, seed=seed) for kind in KINDS}
    assert all(one.read != SENTENCE and GAP not in one.left for one in found.values())
    assert found["trim"].read in SENTENCE
    assert GAP in found["gap"].read and GAP not in found["shuffle"].read
    assert sorted(found["shuffle"].read.split()) == sorted(SENTENCE.split())
    assert found == {kind: damaged(SENTENCE, kind, seed=seed) for kind in KINDS}
