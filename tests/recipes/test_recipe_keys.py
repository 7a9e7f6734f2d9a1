"""Every recipe key has a description, from which the reference page is written."""

from glassformer.training.recipe import describe_keys


def test_every_key_has_a_one_line_description():
    keys = list(describe_keys())
    assert {key.section for key in keys} == {"data", "tokenizer", "model", "training"}
    for key in keys:
        assert key.description and "\n" not in key.description, key.key
