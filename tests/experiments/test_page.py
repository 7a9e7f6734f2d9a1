"""The tables of docs/results.md match the recorded figures, and the experiments can be listed."""

import pytest

from experiments.__main__ import main
from experiments.page import PAGE, fill_tables
from experiments.paths import ROOT
from experiments.rows import ROWS
from experiments.statements import STATEMENTS, missing_statements, unrecorded_decimals
from experiments.tables import TABLES


def test_results_page_matches_the_recorded_figures():
    """If this fails, `python -m experiments.page` updates the page."""
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"<!-- table: {name} -->" in page for name in TABLES)
    assert fill_tables(page) == page


def test_experiments_are_listed(capsys):
    main([])
    assert len(capsys.readouterr().out.splitlines()) == len(ROWS)


def test_scores_in_the_text_match_the_recorded_figures():
    """If this fails, the page quotes other figures than the recorded ones, or its wording has changed."""
    assert missing_statements(ROOT) == []


PAGES = {*STATEMENTS, "docs/models.md", "docs/speed.md", "docs/concepts/design.md"}


@pytest.mark.parametrize("page", sorted(PAGES))
def test_every_decimal_of_a_page_is_recorded_or_a_setting(page: str) -> None:
    assert unrecorded_decimals(ROOT, page) == set()
