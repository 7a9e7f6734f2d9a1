"""The speed page shows the stored records, and says which of its figures have none."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.page import PAGE, RECORDS, fill_records

TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
NO_RECORD = "without a stored record"
RECORD = {
    "command": ["python", "benchmarks/core.py", "--rounds", "3"],
    "date": "2026-11-19T04:00:00Z",
    "machine": {"cpu": "a CPU", "cores": 2, "threads": 1, "gpu": None, "load": [0.1, 0.2, 0.3]},
    "versions": {"python": "3.12", "torch": "2.13"},
    "output": ["", "forward  ", "glassformer  12.5"],
}


def unrecorded(page: str) -> list[str]:
    """The tables that are neither a record nor under a heading that says that there is none."""
    text = re.sub(r"<!-- record: .*?<!-- end -->", "", page, flags=re.DOTALL)
    sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    return [
        table
        for section in sections
        if NO_RECORD not in section.partition("\n")[0]
        for table in TABLE.findall(section)
    ]


def test_speed_page_shows_the_records() -> None:
    """If this fails, `python -m benchmarks.page` updates the page."""
    page = PAGE.read_text(encoding="utf-8")
    assert fill_records(page) == page
    shown = set(re.findall(r"<!-- record: ([\w-]+) -->", page))
    assert shown == {path.stem for path in RECORDS.glob("*.json")}


def test_every_table_has_a_record_or_says_that_it_has_none() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert unrecorded(page) == []
    assert unrecorded(page.replace(NO_RECORD, "")) != []


def test_a_page_with_other_figures_than_the_record_is_rewritten(tmp_path: Path) -> None:
    (tmp_path / "core-cpu.json").write_text(json.dumps(RECORD))
    page = "# Speed\n\n<!-- record: core-cpu -->\nglassformer  99.9\n<!-- end -->\n\nText.\n"
    filled = fill_records(page, tmp_path)
    assert "```text\nforward\nglassformer  12.5\n```" in filled and "99.9" not in filled
    parts = ("core.py --rounds 3", "2026-11-19", "2 cores", "load 0.1", "torch 2.13")
    assert all(part in filled for part in parts)
    assert fill_records(filled, tmp_path) == filled
    with pytest.raises(FileNotFoundError):
        fill_records(page.replace("core-cpu", "other"), tmp_path)
