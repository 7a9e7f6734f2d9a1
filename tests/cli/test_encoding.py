"""Output in an encoding that lacks letters: they are escaped, which is said once."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pytest

from glassformer.cli.encoding import escape_unknown

TEXT = "é안녕 😀"


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "cp1252"])
def test_letters_are_escaped_as_in_json(encoding, capsys):
    """The document reads the same as one in UTF-8."""
    held = io.BytesIO()
    stream = io.TextIOWrapper(held, encoding=encoding)
    escape_unknown(stream)
    for _ in range(2):
        print(json.dumps({"text": TEXT}, ensure_ascii=False), file=stream, flush=True)
    assert [json.loads(line)["text"] for line in held.getvalue().decode(encoding).splitlines()] == [TEXT] * 2
    (line,) = capsys.readouterr().err.splitlines()
    assert encoding in line and "PYTHONIOENCODING=utf-8" in line


def test_utf_8_is_left_as_it_is(capsys):
    held = io.BytesIO()
    stream = io.TextIOWrapper(held, encoding="UTF8", errors="surrogateescape")
    escape_unknown(stream)
    print(TEXT, file=stream, flush=True)
    assert held.getvalue().decode() == f"{TEXT}\n" and stream.errors == "surrogateescape"
    assert not capsys.readouterr().err


def test_a_drawing_in_the_plainest_locale():
    plain = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "glassformer", "inspect", "pocket-digits"],
        env={**os.environ, **plain},
        capture_output=True,
    )
    assert done.returncode == 0 and b"Traceback" not in done.stderr and rb"\u2192" in done.stdout
    assert done.stderr.count(b"note: ") == 1
