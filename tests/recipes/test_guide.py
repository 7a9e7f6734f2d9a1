"""The guide to training: its tables name every setting with its default."""

import dataclasses
import re
from pathlib import Path

import yaml

from glassformer.training.recipe import JOBS, Tokenizer, Training

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")


def table(heading: str) -> dict[str, str]:
    """The settings under a heading with what is written for `if left out`."""
    part = PAGE.partition(f"\n#### {heading}\n")[2].partition("\n####")[0]
    return {
        name: told.strip().strip("`") for name, told in re.findall(r"^\| `(\w+)` \| (.+?) \| \S", part, re.M)
    }


def test_tables_have_every_setting():
    sections = {
        **{f"data of {job}": kind for job, kind in JOBS.items()},
        "tokenizer": Tokenizer,
        "training": Training,
    }
    for heading, kind in sections.items():
        told = table(heading)
        assert list(told) == [field.name for field in dataclasses.fields(kind)], heading
        for field in dataclasses.fields(kind):
            if field.default is dataclasses.MISSING:
                assert told[field.name] == "required"
                continue
            default = list(field.default) if isinstance(field.default, tuple) else field.default
            written = yaml.safe_load(told[field.name])
            assert (float(written) if isinstance(default, float) else written) == default, field.name
