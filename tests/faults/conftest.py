"""The table of faults tried, at the end of the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.faults.scale import WHOLE, Report

PROPERTY = "faults"


@pytest.fixture
def report(record_property: Callable[[str, Any], None]) -> Report:
    def note(what: str, tried: int, failures: Sequence[str]) -> None:
        record_property(PROPERTY, [what, tried, len(failures)])
        shown = "\n".join(failures[:20])
        assert not failures, f"{len(failures)} of {tried} failed:\n{shown}"

    return note


def pytest_terminal_summary(terminalreporter: Any) -> None:
    rows = [
        value
        for outcome in ("passed", "failed")
        for done in terminalreporter.stats.get(outcome, [])
        for name, value in done.user_properties
        if name == PROPERTY and done.when == "call"
    ]
    if not rows or not WHOLE:
        return
    terminalreporter.section("faults tried")
    width = max(len(what) for what, _, _ in rows)
    terminalreporter.line(f"{'fault':<{width}}  {'tried':>7}  {'failures':>8}")
    for what, tried, failed in rows:
        terminalreporter.line(f"{what:<{width}}  {tried:>7,}  {failed:>8,}")
