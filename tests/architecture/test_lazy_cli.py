"""`glassformer --help` answers at once: nothing heavy is imported before a verb runs."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("heavy", ["torch", "numpy", "matplotlib", "tokenizers", "transformers"])
def test_command_line_imports_nothing_heavy(heavy):
    program = f"import sys, glassformer.cli.main; print({heavy!r} in sys.modules)"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    assert child.stdout == "False\n"
