"""The page and the models are in the wheel and in the sdist, and no Node or network is needed to use them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from glassformer import pretrained as models
from glassformer.cli.main import main
from glassformer.explorer import sources

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both, built from this checkout; the page stands, so nothing is fetched."""
    folder = tmp_path_factory.mktemp("dist")
    options = ["--no-isolation", "--skip-dependency-check", "--outdir", str(folder)]
    command = [sys.executable, "-m", "build", *options, str(ROOT)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


def test_wheel_and_sdist_contain_the_page_and_models(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = wheel.namelist()
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        packed = [name.split("/", 1)[-1] for name in sdist.getnames()]
    page = ("index.html", "single/page.js", "THIRD_PARTY_LICENSES.md")
    values = {f"glassformer/explorer/page/{name}" for name in page}
    for folder in map(models.folder_of, models.names()):
        values |= {path.relative_to(ROOT).as_posix() for path in folder.rglob("*") if path.is_file()}
    for found in (names, packed):
        assert values <= set(found)
        assert any(name.startswith("glassformer/explorer/page/assets/") for name in found)
    assert "web/src/main.ts" in packed and not any("node_modules" in name for name in packed + names)


def test_a_page_that_is_older_than_its_sources_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a checkout; an installation without web/ has nothing to compare."""

    def notes() -> int:
        with pytest.raises(SystemExit):
            main(["explore", "nothing"])
        return capsys.readouterr().err.count("make page")

    assert notes() == 0
    web = tmp_path / "web"
    shutil.copytree(ROOT / "web" / "src", web / "src")
    (web / "package.json").write_text("{}")
    (stamp := tmp_path / "built-from.txt").write_text("an earlier hash")
    monkeypatch.setattr(sources, "WEB", web)
    monkeypatch.setattr(sources, "STAMP", stamp)
    assert notes() == 1
    stamp.write_text(sources.source_hash())
    assert notes() == 0
    (web / "src" / "main.ts").write_text("")
    assert notes() == 1
    (web / "package.json").unlink()
    assert notes() == 0


def test_wheel_carries_its_readme_and_the_licenses_of_what_it_ships(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        files = {name.partition("/licenses/")[2]: name for name in wheel.namelist() if "/licenses/" in name}
        header, _, description = wheel.read(metadata).decode().partition("\n\n")
        apache = wheel.read(files["LICENSES/Apache-2.0.txt"]).decode()
        notices = wheel.read(files["THIRD_PARTY_NOTICES.md"]).decode()
    assert description.strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()
    assert {"LICENSE", "LICENSES/Unicode-3.0.txt"} <= files.keys()
    assert "Version 2.0, January 2004" in apache and "END OF TERMS AND CONDITIONS" in apache
    licenses = re.search(r"^License-Expression: (.+)$", header, re.MULTILINE)
    cards = {
        folder.name: (folder / "CARD.md").read_text("utf-8")
        for folder in map(models.folder_of, models.names())
    }
    for name, card in cards.items():  # what is not under our license is named
        (stated,) = re.findall(r"^license: (.+)$", card, re.MULTILINE)
        if "Apache-2.0" in stated:
            assert f"pretrained/{name}/" in notices and licenses and "Apache-2.0" in licenses[1]


def test_the_size_of_the_wheel_is_stated_by_part(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        sizes = wheel_sizes(wheel)
    page = (ROOT / "docs/get-started/installation.md").read_text(encoding="utf-8")
    stated = {
        part: float(size) for part, size in re.findall(r"^\| ([^|]+) \| ([\d.]+) MB \|$", page, re.MULTILINE)
    }
    assert stated.keys() == sizes.keys()
    for part, size in sizes.items():
        assert stated[part] == pytest.approx(size, rel=0.1, abs=0.1), (part, size)


def wheel_sizes(wheel: zipfile.ZipFile) -> dict[str, float]:
    """The compressed megabytes of each part, as the installation page lists them; largest first."""
    sizes: dict[str, float] = {}
    for file in wheel.infolist():
        _, second, third, *_ = [*file.filename.split("/"), "", ""]
        name = f"`{third}`" if second == "pretrained" and not third.endswith(".py") else "code and recipes"
        part = "the explorer's page" if second == "explorer" and third == "page" else name
        part = "the explorer's example training run" if "example_run" in file.filename else part
        sizes[part] = sizes.get(part, 0.0) + file.compress_size / 1e6
    return dict(sorted(sizes.items(), key=lambda item: -item[1])) | {"total": sum(sizes.values())}


def test_page_states_the_licenses_of_its_packages() -> None:
    text = (ROOT / "glassformer/explorer/page/THIRD_PARTY_LICENSES.md").read_text(encoding="utf-8")
    for package, notice in (("svelte", "Svelte"), ("d3-scale", "Mike Bostock"), ("katex", "Khan Academy")):
        assert f"## {package} - " in text and notice in text


def test_lock_has_the_tested_versions_with_hashes() -> None:
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    lock = (ROOT / "requirements.lock").read_text()
    locked = dict(re.findall(r"^([\w.-]+)(?:\[.*\])?==(\S+)", lock, re.MULTILINE))
    tested = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins.items()}
    assert not {name for name, version in locked.items() if tested.get(name, version) != version}
    assert {"torch", "numpy", "safetensors", "fastapi"} <= locked.keys()
    assert all("--hash=sha256:" in block for block in re.split(r"\n(?=\S)", lock.strip()))


GUARDED = """
import sys
def watch(event, args):
    if event in ('socket.connect', 'socket.getaddrinfo', 'subprocess.Popen', 'os.system'):
        raise SystemExit(f'{event} {args}')
sys.addaudithook(watch)

import glassformer
from glassformer import pretrained as models
for name in models.names():
    print(name, glassformer.load(name).folder)
from glassformer.cli.main import main
main(sys.argv[1:])
"""


def guarded(built: Path, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A command run from the wheel, unpacked where nothing else of the checkout is, once its models are read.

    Sockets may not be open_page, programs not be started.
    """
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        wheel.extractall(folder / "installed")
    (folder / "guarded.py").write_text(GUARDED)
    return subprocess.run(
        [sys.executable, str(folder / "guarded.py"), *command],
        cwd=folder,
        env={"PYTHONPATH": str(folder / "installed"), "PATH": "/nowhere", "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_wheel_exports_a_page_without_node_or_network(
    built: Path, folders: dict[str, Path], tmp_path: Path
) -> None:
    result = guarded(
        built, tmp_path, "explore", str(folders["translator"]), "--export", str(tmp_path / "t.html")
    )
    assert result.returncode == 0, result.stdout + result.stderr
    inside = tmp_path / "installed" / "glassformer" / "pretrained"
    expected = [f"{name} {inside / name}" for name in models.names()]
    assert result.stdout.splitlines()[: len(expected)] == expected
    assert (tmp_path / "t.html").stat().st_size > 500_000
