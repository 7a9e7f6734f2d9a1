"""Every recipe key has a description for the reference page, and names of other libraries suggest ours."""

import pytest

from docs.reference import describe_keys
from glassformer.errors import UnknownNameError
from glassformer.training.recipe import SYNONYMS, TrainingOptions, parse_section


def test_every_key_has_a_one_line_description():
    keys = list(describe_keys())
    assert {key.section for key in keys} == {"data", "tokenizer", "model", "training"}
    for key in keys:
        assert key.description and "\n" not in key.description, key.key


def test_names_of_other_libraries_suggest_our_keys():
    keys = {key.key for key in describe_keys()}
    assert all(name in keys for names in SYNONYMS.values() for name in names)
    assert not keys & SYNONYMS.keys()
    with pytest.raises(UnknownNameError) as caught:
        parse_section(TrainingOptions, {"learning_rate": 0.1})
    assert (caught.value.where, caught.value.hint) == ("training", "use lr")
