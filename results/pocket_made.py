"""What a trained teacher writes for the small translator to learn from.

python -m results.pocket_made MODEL --tables FOLDER --out FOLDER --seconds 120 --shards 4

It leaves answers*.tsv.gz: the number of a task, and its translation. `expand` makes two tables of them.
distilled.tsv.gz: the training sources with the teacher's translation in place of the person's. made.tsv.gz:
English sentences that have no pair in a language, with the teacher's translation, both ways (into English the
target is what a person wrote). What matters most comes first, so that a run whose time is over leaves the
rest out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import glassformer
from glassformer.training.machine import device_for
from results.place import environment
from results.pocket_data import Row, read, share_of, write
from results.pocket_text import fitting, same

Task = tuple[str, str, str]  # the table it is for, the text, the tag to write
TOGETHER = 8192  # texts handed over at once, of like length
AT_ONCE = 96_000  # tokens of a batch on a GPU


def tasks(tables: Path) -> Iterator[Task]:
    """What is to be translated, the most useful first, each once."""
    rows = [(source, target, to) for source, target, to in read(tables / "train.tsv.gz")]
    apart = {text for _, text, to in rows if to in ("ko-label", "ko-bible")}
    paired: dict[str, set[str]] = {
        to: {source for source, _, tag in rows if tag == to} for to in ("de", "fr")
    }
    spoken = paired["de"] | paired["fr"]  # everyday English, for the most part
    korean = {same(source) for source, _, to in rows if to == "ko"}
    careful = {text for text in spoken if text[:1].isupper() or not text[:1].isalpha()}
    yield from _once(("made", text, "ko") for text in careful if same(text) not in korean)
    everyday = [row for row in rows if row[2] in ("de", "fr") or (row[2] == "en" and row[1] in spoken)]
    yield from _once(("distilled", source, to) for source, _, to in everyday)
    yield from _once(("distilled", source, "ko") for source, _, to in rows if to == "ko")
    for to in ("de", "fr"):
        known = {same(text) for text in paired[to]}
        yield from _once(("made", text, to) for text in careful if same(text) not in known)
    yield from _once(
        ("distilled", source, to)
        for source, target, to in rows
        if to == "en" and target not in spoken and source not in apart
    )


def _once(found: Iterable[Task]) -> list[Task]:
    """Without repeats, shuffled the same way every time."""
    return sorted(dict.fromkeys(found), key=lambda task: share_of("made", task[2] + task[1]))


def translated(
    model: Path, todo: list[tuple[int, Task]], *, device: str, until: float, beams: int
) -> Iterator[tuple[str, str]]:
    """The numbers of the tasks that were done in time, and what was written for them."""
    where = device_for(device)
    bundle = glassformer.load(model, device=where, dtype="bfloat16" if where.type == "cuda" else None)
    room = {"batch_tokens": AT_ONCE} if where.type == "cuda" else {}
    for start in range(0, len(todo), 8 * TOGETHER):
        part = todo[start : start + 8 * TOGETHER]
        for to in sorted({task[2] for _, task in part}):
            tagged = sorted((one for one in part if one[1][2] == to), key=lambda one: len(one[1][1]))
            for at in range(0, len(tagged), TOGETHER):
                if time.time() > until:
                    return
                few = tagged[at : at + TOGETHER]
                got = bundle.translate([task[1] for _, task in few], to=to, num_beams=beams, **room)
                yield from ((str(number), answer) for (number, _), answer in zip(few, got, strict=True))


def run_shard(given: argparse.Namespace) -> None:
    """Every so many-th task."""
    shard, of = given.shard
    todo = [one for one in enumerate(tasks(given.tables)) if one[0] % of == shard]
    began = time.time()
    rows = list(translated(given.model, todo, device=given.device, until=given.until, beams=given.beams))
    write(given.out / f"answers{shard}.tsv.gz", ("task", "answer"), rows, pressed=6)
    print(f"shard {shard}: {len(rows):,} of {len(todo):,} in {time.time() - began:.0f} s", flush=True)


def expand(tables: Path) -> list[Path]:
    """The two tables, from the answers beside the pairs."""
    paths = [tables / f"{name}.tsv.gz" for name in ("distilled", "made")]
    if not all(path.is_file() for path in paths):
        answers = sorted(tables.glob("answers*.tsv.gz"))
        if not answers:
            sys.exit(f"{tables} has no answers of a teacher; run `python -m results pocket --only teacher`")
        known = dict(row for path in answers for row in read(path))
        rows: dict[str, list[Row]] = {"distilled": [], "made": []}
        for number, (table, text, to) in enumerate(tasks(tables)):
            answer = known.get(str(number), "")
            if fitting(text, answer) and same(answer) and same(answer) != same(text):
                rows[table].append((text, answer, to))
                if table == "made":
                    rows[table].append((answer, text, "en"))
        for path, (table, found) in zip(paths, rows.items(), strict=True):
            count = write(path, ("source", "target", "to"), found, pressed=1)
            print(f"{table}: {count:,} rows", flush=True)
    return paths


def make(
    model: Path, tables: Path, out: Path, *, seconds: float, shards: int, device: str, beams: int
) -> None:
    """Let several processes write at once: one alone keeps neither the GPU nor the cores busy."""
    until = time.time() + seconds
    words = [sys.executable, "-m", "results.pocket_made", model, "--tables", tables, "--out", out]
    words += ["--device", device, "--beams", beams, "--until", until]
    children = [
        subprocess.Popen([*map(str, words), "--shard", str(number), str(shards)], env=environment())
        for number in range(shards)
    ]
    codes = [child.wait() for child in children]
    if any(codes):
        sys.exit("a shard failed")


def main() -> None:
    words = argparse.ArgumentParser(prog="python -m results.pocket_made", description=__doc__)
    words.add_argument("model", type=Path)
    words.add_argument("--tables", type=Path, required=True)
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--seconds", type=float, default=120.0)
    words.add_argument("--shards", type=int, default=4)
    words.add_argument("--device", default="auto")
    words.add_argument("--beams", type=int, default=4)
    words.add_argument("--shard", type=int, nargs=2, help=argparse.SUPPRESS)
    words.add_argument("--until", type=float, help=argparse.SUPPRESS)
    given = words.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.shard:
        run_shard(given)
        return
    make(
        given.model,
        given.tables,
        given.out,
        seconds=given.seconds,
        shards=given.shards,
        device=given.device,
        beams=given.beams,
    )


if __name__ == "__main__":
    main()
