"""The page of results holds what was measured: its tables are those that the noted figures make."""

from results.noted import runs_of
from results.page import PAGE, filled
from results.place import FIGURES
from results.rows import ROWS
from results.tables import TABLES


def test_the_tables_of_the_page_are_made_from_the_figures():
    text = PAGE.read_text(encoding="utf-8")
    assert filled(text) == text, "python -m results.page writes them anew"
    for name in TABLES:
        assert f"<!-- table: {name} -->" in text


def test_what_was_noted_belongs_to_a_run_of_a_row():
    for folder in FIGURES.iterdir():
        for one in runs_of(folder.name, FIGURES):
            assert one.name in ROWS[folder.name].runs
            assert one.figures and one.hardware
