"""Answers kept in a file, one a line, so that a run that was stopped can be gone on with.

Beside the file stands FILE.progress until the last line is written: what made the lines (the model, the
settings), how many they are, digests of them and of the texts they answer, which were refused, and where to
begin anew. A later run goes on only with the same, and only with the lines that are counted: what came behind
them since is cut off. Where lines were refused it stays, so that a later run says so too; a file without such
lines keeps it as an attribute (`progress`).
It begins where batches began, so it fills them as the stopped run would have, and the file ends the same to
the byte; lines that are there already are made again and left out.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from glassformer.cli.answered import Texts, written_as
from glassformer.cli.given import Given
from glassformer.cli.made import brief
from glassformer.cli.progress import Progress, tell_beside, tell_with, told_beside, told_with
from glassformer.cli.taken import Taker, say
from glassformer.errors import GlassformerError

if TYPE_CHECKING:
    from hashlib import _Hash

RECORDED_EVERY = 1.0  # seconds
BLOCK = 1 << 20


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
        self._named = False  # whether a record of this run is beside the file
        self._recorded, self._counted = time.monotonic(), done
        texts.when_asked = self._record_if_due

    def take_at(self, line: str, *, fresh: bool) -> None:
        """Take the line of the text that is answered next; fresh: batches began with it."""
        if fresh:
            self._again = self.texts.answered
        if not self._named:  # no line is to stand there without one
            self.record()
        if self.texts.answered >= self.done:
            self.take(line)
        self.texts.answer(line)

    def _record_if_due(self) -> None:
        """When the next texts are asked for: lines come many at once, and here the last of them is taken."""
        if self.texts.counted.lines > self._counted and time.monotonic() - self._recorded >= RECORDED_EVERY:
            self._recorded = time.monotonic()
            self.record()

    def record(self) -> None:
        """Write down what was done, once that is on disk."""
        self._named, self._counted = True, self.texts.counted.lines
        if self._record is None:
            return
        os.fsync(self._file.fileno())
        tell_beside(self._record, self._progress())

    def _progress(self) -> Progress:
        counted = self.texts.counted
        return Progress(
            made=self._made,
            lines=counted.lines,
            inputs=counted.inputs.hexdigest(),
            answers=counted.answers.hexdigest(),
            size=counted.size,
            again=self._again,
            refused=[] if self._refusals is None else self._refusals.upto(counted.lines),
        )

    def end(self) -> None:
        """All lines are taken: what was done needs no telling beside them, unless lines were refused."""
        if self._record is None:
            return
        if self._refusals is not None and self._refusals.upto(self.done):
            self.record()
            return
        os.fsync(self._file.fileno())
        tell_with(self._file, self._progress())
        self._record.unlink(missing_ok=True)

    def _write(self, line: str) -> None:
        left = memoryview(written_as(line))
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
        if done > texts.counted.lines:  # lines of unknown making stay as they are, and are not to be counted
            record = None
        keeper = Keeper(file, texts, done=done, record=record, made=made, source=source, telling=telling)
        try:
            yield keeper
        except BaseException:
            if texts.counted.lines and record is not None:
                with suppress(GlassformerError):  # what stopped the run is to be told, and not this
                    keeper.record()
                say(f"stopped; {texts.counted.lines:,} lines are in '{out}', and --resume goes on from there")
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
    total = source.total
    progress, answers, behind = _told(out, progress)
    if progress is None:
        there = behind
        if there != total:
            raise GlassformerError(
                f"'{out}' has lines, and no '{record.name}' beside it tells what made them; "
                "add --overwrite in place of --resume to begin anew"
            )
        say(
            f"'{out}' has as many lines as there are texts, {there:,}, and nothing tells what made them; "
            "they stay as they are, and --overwrite in place of --resume begins anew"
        )
        texts.end()
        return there
    _check_same(out, progress.made, made)
    if answers.hexdigest() != progress.answers:
        raise GlassformerError(
            f"'{out}' was changed since it was written: its lines are not those that '{record.name}' counts; "
            "put these back, or give --overwrite to begin anew"
        )
    if not texts.go_on(progress, answers):
        raise GlassformerError(
            f"'{out}' holds {progress.lines:,} lines that answer other texts than these; give the same texts "
            "again, or --overwrite to begin anew"
        )
    if progress.lines == total:
        say(f"'{out}' has a line for each of the {total:,} texts already; nothing is left to do")
        texts.end()
    else:
        say(f"{progress.lines:,} lines are done in '{out}'; going on")
    if behind:
        os.truncate(out, progress.size)
        many = "1 line" if behind == 1 else f"{behind:,} lines"
        anew = "" if progress.lines == total else " to be made anew"
        say(f"{many} behind them came after the last record, and had to be cut off{anew}")
    if source.refusals is not None:
        source.refusals.go_on(progress.refused)
    return progress.lines


def _told(out: Path, beside: Progress | None) -> tuple[Progress | None, _Hash, int]:
    """What is told of a file's lines, the digest of so many bytes, and how many lines are behind them.

    What a file keeps of itself holds for the whole of it, and for nothing where it was changed since.
    """
    progress = beside or told_with(out)
    answers, behind = _looked_at(out, counted=0 if progress is None else progress.size)
    whole = progress is not None and not behind and answers.hexdigest() == progress.answers
    if beside is None and progress is not None and not whole:
        return None, *_looked_at(out, counted=0)
    return progress, answers, behind


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


def _looked_at(out: Path, *, counted: int) -> tuple[_Hash, int]:
    """The digest of so many bytes of a file, and how many lines are behind them, half ones too."""
    with out.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(min(BLOCK, counted)):
            digest.update(block)
            counted -= len(block)
        behind, last = 0, b"\n"
        while block := file.read(BLOCK):
            behind += block.count(b"\n")
            last = block
    return digest, behind + (not last.endswith(b"\n"))
