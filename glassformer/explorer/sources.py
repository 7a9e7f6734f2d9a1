"""The sources of the explorer's page in a checkout. The build imports this file alone, before the package."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
WEB, PAGE = ROOT / "web", Path(__file__).parent / "page"
STAMP = PAGE / "built-from.txt"


def source_hash() -> str:
    """Return a hash of everything in web/."""
    paths: list[Path] = []
    for folder, folders, files in os.walk(WEB):
        folders[:] = [name for name in folders if name != "node_modules"]
        paths += [Path(folder, name) for name in files]
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.relative_to(WEB).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def is_current() -> bool:
    """Return whether the page exists and is up to date with the sources, if they are present."""
    return STAMP.is_file() and (
        not (WEB / "package.json").is_file() or STAMP.read_text().strip() == source_hash()
    )
