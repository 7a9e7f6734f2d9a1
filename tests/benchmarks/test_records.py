"""The speed page shows the stored records, and no other figures."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.page import PAGE, RECORDS, fill_records

TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
AMOUNT = re.compile(r"\d[\d,.]* ?(?:ms|s|seconds|[kMG]B|GiB|GB/s|tokens/s|%|times)(?!\w)")
RECORD = {
    "command": ["python", "benchmarks/core.py", "--rounds", "3"],
    "date": "2026-11-19T04:00:00Z",
    "machine": {"cpu": "a CPU", "cores": 2, "threads": 1, "gpu": None, "load": [0.1, 0.2, 0.3]},
    "versions": {"python": "3.12", "torch": "2.13"},
    "output": ["", "forward  ", "glassformer  12.5"],
}


def unrecorded(page: str) -> list[str]:
    """The tables and the amounts with a unit that are not in a record."""
    text = re.sub(r"<!-- record: .*?<!-- end -->|`[^`]*`", "", page, flags=re.DOTALL)
    return TABLE.findall(text) + AMOUNT.findall(text)


def test_speed_page_shows_the_records() -> None:
    """If this fails, `python -m benchmarks.page` updates the page."""
    page = PAGE.read_text(encoding="utf-8")
    assert fill_records(page) == page
    shown = set(re.findall(r"<!-- record: ([\w-]+) -->", page))
    assert shown == {path.stem for path in RECORDS.glob("*.json")}


def test_every_table_and_amount_is_in_a_record() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert unrecorded(page) == []
    assert unrecorded(f"{page}\n|a|1|\n\nIt takes 12 ms.\n") == ["|a|1|\n", "12 ms"]


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
