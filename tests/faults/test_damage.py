"""A checkpoint damaged on the disk is never taken for a whole one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from glassformer.training import load_checkpoint
from glassformer.training.checkpoint import NoIntactCheckpointError
from glassformer.weights import checksums
from tests.faults.saving import loaded, save
from tests.faults.scale import Report, trials

pytestmark = pytest.mark.slow


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only checkpoint of its folder, so that to accept it is the loader's only way not to fail."""
    monkeypatch.setattr(checksums, "THREADS", 1)
    monkeypatch.setattr(checksums, "BUFFER_BYTES", 1 << 12)
    save(tmp_path, (7, 0), width=48)
    return tmp_path / "step-00000007"


def accepted(checkpoint: Path) -> bool:
    try:
        load_checkpoint(checkpoint.parent)
    except NoIntactCheckpointError as error:
        assert checkpoint.name in error.reason
        return False
    return True


def files_of(checkpoint: Path) -> list[Path]:
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


@contextmanager
def edited(path: Path, edit: Callable[[bytes], bytes]) -> Iterator[None]:
    whole = path.read_bytes()
    path.write_bytes(edit(whole))
    yield
    path.write_bytes(whole)


def test_every_flipped_bit_is_found_out(checkpoint: Path, report: Report) -> None:
    """Drawn from all bits of all files, none twice: weights, headers, state, and the checksums themselves."""
    sizes = {path: path.stat().st_size for path in files_of(checkpoint)}
    bits = [(path, bit) for path, size in sizes.items() for bit in range(8 * size)]
    chosen = random.Random(0).sample(bits, trials(10_000))
    failures = []
    for path, bit in chosen:
        with path.open("r+b", buffering=0) as file:
            file.seek(bit // 8)
            byte = file.read(1)[0]
            file.seek(bit // 8)
            file.write(bytes([byte ^ 1 << bit % 8]))
            if accepted(checkpoint):
                failures.append(f"bit {bit} of {path.name} flipped, and the checkpoint was accepted")
            file.seek(bit // 8)
            file.write(bytes([byte]))
    assert loaded(checkpoint.parent) == (7, 0)
    report("one bit of a checkpoint flipped", len(chosen), failures)


def test_every_truncation_is_found_out(checkpoint: Path, report: Report) -> None:
    """Each file cut to each shorter length: every header, and the JSON beside, at every byte."""
    cuts = [(path, length) for path in files_of(checkpoint) for length in range(path.stat().st_size)]
    chosen = random.Random(1).sample(cuts, trials(len(cuts)))
    failures = []
    for path, length in chosen:
        with edited(path, lambda whole, length=length: whole[:length]):
            if accepted(checkpoint):
                failures.append(f"{path.name} cut to {length} bytes, and the checkpoint was accepted")
    assert loaded(checkpoint.parent) == (7, 0)
    report("a checkpoint's file cut short", len(chosen), failures)


def test_coarser_damage_is_found_out(checkpoint: Path, report: Report) -> None:
    """Zeros, doubled content, a missing file, and files of another checkpoint or of one another."""
    save(checkpoint.parent.parent / "other", (8, 0), width=48)
    other = checkpoint.parent.parent / "other" / "step-00000008"
    failures, tried = [], 0
    for path in files_of(checkpoint):
        name = path.relative_to(checkpoint)
        damage: dict[str, Callable[[bytes], bytes]] = {
            "zeros": lambda whole: bytes(len(whole)),
            "doubled": lambda whole: whole * 2,
            "another's": lambda whole, name=name: (other / name).read_bytes(),
            **{p.name: lambda whole, p=p: p.read_bytes() for p in files_of(checkpoint) if p != path},
        }
        for what, edit in damage.items():
            tried += 1
            with edited(path, edit):
                if accepted(checkpoint):
                    failures.append(f"{name} with the content of {what} was accepted")
        tried += 1
        with edited(path, bytes):
            path.unlink()
            if accepted(checkpoint):
                failures.append(f"{name} is missing, and the checkpoint was accepted")
    assert loaded(checkpoint.parent) == (7, 0)
    report("a checkpoint's file emptied, missing or swapped", tried, failures)
