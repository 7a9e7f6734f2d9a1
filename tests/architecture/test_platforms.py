"""Nothing needs a Unix to be imported."""

import subprocess
import sys
from pathlib import Path

import pytest

from conftest import TRITON_FILES
from tests.architecture import platforms

ROOT = Path(__file__).parents[2]


def test_every_module_imports_without_what_only_a_unix_has() -> None:
    command = [sys.executable, platforms.__file__, "--simulate"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    left_out = result.stdout.rpartition("left out: ")[2].strip().split(", ")
    needing_triton = tuple(path.removesuffix(".py").replace("/", ".") for path in TRITON_FILES)
    assert all(name.startswith(needing_triton) for name in left_out), left_out


@pytest.mark.parametrize("line", ["import signal; signal.SIGHUP", "from os import fork", "import resource"])
def test_the_simulation_hides_unix_names_from_our_modules_only(line: str) -> None:
    lines = (
        "from tests.architecture.platforms import hide_unix; hide_unix()",
        line,
        "__name__ = 'tests.x'",
        line,
    )
    code = "\n".join(lines)
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert result.returncode == 1 and "line 4" in result.stderr
