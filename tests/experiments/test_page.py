"""The page of results says what was measured: its tables are those that the figures noted make."""

from experiments.page import PAGE, filled
from experiments.tables import TABLES


def test_the_page_is_made_of_the_figures():
    """Where this fails, `python -m experiments.page` writes them anew."""
    written = PAGE.read_text(encoding="utf-8")
    assert all(f"<!-- table: {name} -->" in written for name in TABLES)
    assert filled(written) == written
