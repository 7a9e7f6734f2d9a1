"""The page is in the wheel and in the sdist, and no Node is needed where it is used."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both, built from this checkout; the page stands, so nothing is fetched."""
    place = tmp_path_factory.mktemp("dist")
    words = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--skip-dependency-check",
        "--outdir",
        str(place),
        str(ROOT),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return place


def test_both_hold_the_page(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = wheel.namelist()
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        packed = [name.split("/", 1)[-1] for name in sdist.getnames()]
    for found in (names, packed):
        assert "glassformer/explorer/page/index.html" in found
        assert "glassformer/explorer/page/single/page.js" in found
        assert any(name.startswith("glassformer/explorer/page/assets/") for name in found)
    assert "web/src/main.ts" in packed and not any("node_modules" in name for name in packed + names)


def test_the_wheel_alone_writes_a_page_with_no_node_and_no_network(
    built: Path, folders: dict[str, Path], tmp_path: Path
) -> None:
    """Unpacked where nothing else of the checkout is; sockets may not be opened, programs not be started."""
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "installed")
    (tmp_path / "guarded.py").write_text(
        "import sys\n"
        "def watch(event, args):\n"
        "    if event in ('socket.connect', 'socket.getaddrinfo', 'subprocess.Popen', 'os.system'):\n"
        "        raise SystemExit(f'{event} {args}')\n"
        "sys.addaudithook(watch)\n"
        "from glassformer.cli.main import main\n"
        "main()\n"
    )
    words = ["explore", str(folders["translator"]), "--export", str(tmp_path / "t.html")]
    done = subprocess.run(
        [sys.executable, str(tmp_path / "guarded.py"), *words],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "installed"), "PATH": "/nowhere", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "t.html").stat().st_size > 500_000
