"""The tables of docs/guides/train.md list every setting with its default."""

import dataclasses
import re
from pathlib import Path

import pytest
import yaml

from glassformer.training.recipe import DATA_SECTIONS, TokenizerOptions, TrainingOptions

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "train.md").read_text(encoding="utf-8")
SECTIONS = {
    **{f"data of {job}": kind for job, kind in DATA_SECTIONS.items()},
    "tokenizer": TokenizerOptions,
    "training": TrainingOptions,
}


@pytest.mark.parametrize("heading", SECTIONS)
def test_table_lists_every_setting_with_its_default(heading):
    part = PAGE.partition(f"\n#### {heading}\n")[2].partition("\n####")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|.*\| (\S.*) \|$", part, re.M)
    documented = {name: default.strip("`") for name, default, _ in rows}
    fields = dataclasses.fields(SECTIONS[heading])
    assert list(documented) == [field.name for field in fields]
    for field in fields:
        if field.default is dataclasses.MISSING:
            assert documented[field.name] == "required"
            continue
        default = list(field.default) if isinstance(field.default, tuple) else field.default
        written = yaml.safe_load(documented[field.name])
        assert (float(written) if isinstance(default, float) else written) == default, field.name
