"""Answers kept in a file, one a line, so that a run that was stopped can be gone on with.

Beside the file stands FILE.progress until the last line is written: what made the lines (the model, the
settings), a digest of the texts they answer, which were refused, and where to begin anew. A later run goes on
only with the same. Where lines were refused it stays, so that a later run says so too; a file without such
lines keeps it as an attribute (`progress`).
It begins where batches began, so it fills them as the stopped run would have, and the file ends the same to
the byte; lines that are there already are made again and left out.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from glassformer.cli.given import Given
from glassformer.cli.made import brief
from glassformer.cli.progress import Progress, tell_beside, tell_with, told_beside, told_with
from glassformer.cli.taken import Taker, say
from glassformer.core.errors import GlassformerError

RECORDED_EVERY = 1.0  # seconds
BLOCK = 1 << 20


class Texts:
    """Texts on their way to a model, and a digest of those that were answered.

    A signal may break in anywhere, so what was answered is told by one value that is replaced as a whole.
    """

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines, self._waiting = lines, deque[str]()
        # how many were answered; how many of those that the digest holds are to be answered again; the digest
        self._state = (0, 0, hashlib.sha256())

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            self._waiting.append(line)
            yield line

    @property
    def answered(self) -> int:
        return self._state[0]

    def answer(self) -> None:
        """The first that waited is answered."""
        answered, known, digest = self._state
        if not known:
            digest = digest.copy()
            digest.update(_told_apart(self._waiting[0]))
        self._state = (answered + 1, max(0, known - 1), digest)
        self._waiting.popleft()

    def so_far(self) -> tuple[int, str]:
        """How many texts were answered, those that are being answered again included, and their digest."""
        answered, known, digest = self._state
        return answered + known, digest.hexdigest()

    def go_on(self, progress: Progress) -> bool:
        """Begin at the text where batches began; whether those that were answered are the same as then."""
        digest, kept, many = hashlib.sha256(), list[str](), 0
        for many, line in enumerate(islice(self._lines, progress.lines), 1):
            digest.update(_told_apart(line))
            if many > progress.again:
                kept.append(line)
        self._lines, self._state = chain(kept, self._lines), (progress.again, len(kept), digest)
        return self.so_far() == (progress.lines, progress.inputs)

    def end(self) -> None:
        """There is nothing left to answer."""
        self._lines = iter(())


def _told_apart(line: str) -> bytes:
    return line.encode("utf-8", "surrogatepass") + b"\n"


class Keeper(Taker):
    """Takes lines into a file. texts: those to answer. Lines that the file holds already are left out."""

    def __init__(
        self,
        file: BinaryIO,
        texts: Texts,
        *,
        made: Mapping[str, Any],
        record: Path | None,
        done: int,
        source: Given,
        telling: bool,
    ) -> None:
        super().__init__(self._write, total=source.total, telling=telling, done=done, first=texts.answered)
        self.texts, self._file, self._record, self._made = texts, file, record, made
        self._refusals = source.refusals
        self._again = texts.answered
        self._recorded: float | None = None

    def take_at(self, line: str, *, fresh: bool) -> None:
        """Take the line of the text that is answered next; fresh: batches began with it."""
        if fresh:
            self._again = self.texts.answered
        if self._recorded is None or time.monotonic() - self._recorded >= RECORDED_EVERY:
            self.record()
        if self.texts.answered >= self.done:
            self.take(line)
        self.texts.answer()

    def record(self) -> None:
        """Write down what was done, once that is on disk."""
        self._recorded = time.monotonic()
        if self._record is None:
            return
        os.fsync(self._file.fileno())
        tell_beside(self._record, self._progress())

    def _progress(self) -> Progress:
        lines, inputs = self.texts.so_far()
        refused = [] if self._refusals is None else self._refusals.upto(lines)
        return Progress(made=self._made, lines=lines, inputs=inputs, again=self._again, refused=refused)

    def end(self) -> None:
        """All lines are taken: what was done needs no telling beside them, unless lines were refused."""
        if self._record is None:
            return
        if self._refusals is not None and self._refusals.upto(self.done):
            self.record()
            return
        os.fsync(self._file.fileno())
        progress = self._progress()
        if progress.lines == self.done:  # not of lines that were there and whose making is unknown
            tell_with(self._file, progress)
        self._record.unlink(missing_ok=True)

    def _write(self, line: str) -> None:
        left = memoryview(f"{line}\n".encode())
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise GlassformerError(f"'{self._file.name}' cannot be written to: {error.strerror}") from None


@contextmanager
def keeping(
    out: Path, source: Given, *, made: Mapping[str, Any], resume: bool, overwrite: bool, telling: bool
) -> Iterator[Keeper]:
    """Open a file of answers, anew or to go on with.

    Whatever ends the run, the lines so far stay, with a sentence that says how to go on.
    """
    if resume and overwrite:
        raise GlassformerError("--resume goes on and --overwrite begins anew; give one of them")
    record, made = _beside(out), brief(made)
    texts = Texts(source.lines)
    with out.open("ab", buffering=0) as file:
        _alone(file, out)
        done = _prepared(out, record, texts, source, made=made, resume=resume, overwrite=overwrite)
        keeper = Keeper(file, texts, done=done, record=record, made=made, source=source, telling=telling)
        try:
            yield keeper
        except BaseException:
            if keeper.done and record is not None:
                with suppress(GlassformerError):  # what stopped the run is to be told, and not this
                    keeper.record()
                say(f"stopped; {keeper.done:,} lines are in '{out}', and --resume goes on from there")
            raise
        keeper.end()
    if telling and keeper.done > keeper.before:
        keeper.tell()


def _alone(file: BinaryIO, out: Path) -> None:
    """Hold the file against other runs until it is closed, where the system can."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise GlassformerError(f"another run is writing to '{out}'; wait for it, or stop it") from None
    except OSError:  # a file system without locks
        return


def _beside(out: Path) -> Path | None:
    """Where a file's progress is told; nowhere for a pipe or a device, which hold no lines to go on with.

    Nor for an open file that was deleted, which has no name to be gone on with.
    """
    if out.is_dir():
        raise GlassformerError(f"'{out}' is a folder; give a file to write to with --out")
    named = Path(os.path.realpath(out))  # not the name of a link, as /dev/stdout is one
    if not named.parent.is_dir() or not os.access(out if out.exists() else named.parent, os.W_OK):
        raise GlassformerError(f"'{out}' cannot be written to; give another file with --out")
    if out.exists() and not (named.is_file() and named.samefile(out)):
        return None
    return named.with_name(f"{named.name}.progress")


def _prepared(
    out: Path,
    record: Path | None,
    texts: Texts,
    source: Given,
    *,
    made: Mapping[str, Any],
    resume: bool,
    overwrite: bool,
) -> int:
    """Make the file ready to be added to, and the texts to begin where it ends; how many lines it holds."""
    if record is None or not out.exists() or not out.stat().st_size:
        return 0
    if overwrite:
        os.truncate(out, 0)
        return 0
    progress = told_beside(record)
    if not resume:
        way = "add --resume to go on with it, or --overwrite" if progress else "add --overwrite"
        raise GlassformerError(f"'{out}' is there already; {way} to begin anew")
    (done, whole), total = _whole_lines(out), source.total
    half = out.stat().st_size > whole
    progress = progress or told_with(out)
    if progress is None:
        if (done := done + half) != total:
            raise GlassformerError(
                f"'{out}' has lines, and no '{record.name}' beside it tells what made them; "
                "add --overwrite in place of --resume to begin anew"
            )
        say(
            f"'{out}' has as many lines as there are texts, {done:,}, and nothing tells what made them; "
            "they stay as they are, and --overwrite in place of --resume begins anew"
        )
        texts.end()
        return done
    _check_same(out, progress.made, made)
    if not texts.go_on(progress) or done < progress.lines or (total is not None and done > total):
        raise GlassformerError(
            f"'{out}' holds {done:,} lines that answer other texts than these; give the same texts again, "
            "or --overwrite to begin anew"
        )
    if half:
        os.truncate(out, whole)
    if progress.lines == total:
        say(f"'{out}' has a line for each of the {done:,} texts already; nothing is left to do")
        texts.end()
    else:
        say(f"{done:,} lines are done in '{out}'; going on")
    if source.refusals is not None:
        source.refusals.go_on(progress.refused)
    return done


def _check_same(out: Path, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """A sentence that names the first of the things that made the lines and is another now."""
    for name in (*was, *now):
        if was.get(name) != now.get(name):
            told = f"{_with(name, was.get(name))}, and now {_with(name, now.get(name))}"
            told = "by another model" if name == "model" else told
            raise GlassformerError(
                f"'{out}' was begun {told}; give the same again, or --overwrite to begin anew"
            )


def _with(name: str, value: Any) -> str:
    return f"without {name}" if value in (None, False) else f"with {name}" + f" {value}" * (value is not True)


def _whole_lines(out: Path) -> tuple[int, int]:
    """How many lines a file holds, and where they end; one that was being written when it stopped is none."""
    with out.open("rb") as file:
        done = whole = at = 0
        while block := file.read(BLOCK):
            done += block.count(b"\n")
            if (last := block.rfind(b"\n")) >= 0:
                whole = at + last + 1
            at += len(block)
    return done, whole
