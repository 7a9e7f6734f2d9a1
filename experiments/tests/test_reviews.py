"""The overlap of training and test reviews that the results page states."""

import re
from pathlib import Path

import pytest

from experiments.page import PAGE
from experiments.paths import data_folder
from experiments.reviews import rows_of, unseen


@pytest.mark.skipif(not (data_folder() / "nsmc").is_dir(), reason="needs nsmc in GLASSFORMER_DATA")
def test_the_page_states_how_many_test_reviews_are_repeated(tmp_path: Path) -> None:
    data = data_folder() / "nsmc"
    tested = len(rows_of(data / "test.tsv.gz")) - 1
    kept = len(unseen(data, tmp_path).read_text(encoding="utf-8").splitlines()) - 1
    stated = re.search(r"Of our ([\d,]+) test reviews, ([\d,]+) short ones", PAGE.read_text(encoding="utf-8"))
    assert stated is not None
    assert [int(number.replace(",", "")) for number in stated.groups()] == [tested, tested - kept]
