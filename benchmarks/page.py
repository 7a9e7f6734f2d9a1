"""python -m benchmarks.page: show the output of recorded benchmarks in docs/speed.md.

Copy a record from runs/benchmarks to benchmarks/records/NAME.json. It is shown between the comments
`record: NAME` and `end`: the command, the machine, the versions, the date, and what the benchmark printed.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE, RECORDS = ROOT / "docs" / "speed.md", ROOT / "benchmarks" / "records"
_PLACE = re.compile(r"(<!-- record: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def describe(record: dict[str, Any]) -> str:
    """Return a record as Markdown."""
    machine, command = record["machine"], " ".join(record["command"])
    place = machine["gpu"] or f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads"
    place += f", load {machine['load'][0]:.1f} before" if machine["load"] else ""
    libraries = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    output = "\n".join(line.rstrip() for line in record["output"]).strip("\n")
    return f"`{command}`, {record['date'][:10]}, {place} ({libraries}):\n\n```text\n{output}\n```"


def fill_records(text: str, records: Path = RECORDS) -> str:
    """Return the page with the records in their places."""

    def shown(place: re.Match[str]) -> str:
        record = json.loads((records / f"{place['name']}.json").read_text(encoding="utf-8"))
        return f"{place[1]}{describe(record)}\n{place[3]}"

    return _PLACE.sub(shown, text)


if __name__ == "__main__":
    PAGE.write_text(fill_records(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
