"""Back-translation: English sentences paired with the translator's own translations.

python -m experiments.pocket_back_translation MODEL --tables FOLDER --out MADE --seconds 120 --shards 4

Writes answers*.tsv.gz to MADE: a text, a language and the translation. `expand` turns them into
made.tsv.gz. A translation is used as a source, with the original English as the target; as a target only
for everyday sentences in German and French, which the model translates well.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import glassformer
from experiments.paths import environment
from experiments.pocket_data import Row, hash_fraction, read, write
from experiments.pocket_text import normalized, plausible_lengths
from glassformer.errors import GlassformerError
from glassformer.training.hardware import device_for

LANGUAGES = ("de", "fr", "ko")
TRUSTED = ("de", "fr")  # as targets
TOGETHER = 8192  # texts per batch, of similar length
AT_ONCE = 96_000  # tokens of a batch on a GPU


def tasks(tables: Path) -> list[tuple[str, str, bool]]:
    """English sentences without a translation in a language, the language, and whether they are everyday.

    In an order that depends only on the texts, so that any part of it is a fair sample.
    """
    rows = [(source, target, to) for source, target, to in read(tables / "train.tsv.gz")]
    known = {tag: {normalized(source) for source, _, to in rows if to == tag} for tag in LANGUAGES}
    spoken = {source for source, _, to in rows if to in TRUSTED and _careful(source)}
    articles = {text for (text,) in read(tables / "english.tsv.gz")} - spoken
    result = [
        (text, tag, everyday)
        for texts, everyday in ((spoken, True), (articles, False))
        for text in texts
        for tag in LANGUAGES
        if normalized(text) not in known[tag]
    ]
    return sorted(result, key=lambda task: hash_fraction("made", task[1] + task[0]))


def _careful(text: str) -> bool:
    """Whether it has regular case and punctuation."""
    return text[:1].isupper() or not text[:1].isalpha()


def translated(
    model: Path, todo: list[tuple[str, str]], *, device: str, until: float, beams: int
) -> Iterator[Row]:
    """The tasks done within the time, texts and languages, with their translations."""
    where = device_for(device)
    bundle = glassformer.load(model, device=where, dtype="bfloat16" if where.type == "cuda" else None)
    room = {"batch_tokens": AT_ONCE} if where.type == "cuda" else {}
    for start in range(0, len(todo), 8 * TOGETHER):
        part = todo[start : start + 8 * TOGETHER]
        for to in LANGUAGES:
            tagged = sorted((text for text, tag in part if tag == to), key=len)
            for at in range(0, len(tagged), TOGETHER):
                if time.time() > until:
                    return
                batch = tagged[at : at + TOGETHER]
                got = bundle.translate(batch, to=to, num_beams=beams, **room)
                yield from ((text, to, answer) for text, answer in zip(batch, got, strict=True))


def run_shard(args: argparse.Namespace) -> None:
    """Every n-th task."""
    shard, of = args.shard
    todo = [(text, to) for text, to, _ in tasks(args.tables)[shard::of]]
    began = time.time()
    rows = list(translated(args.model, todo, device=args.device, until=args.until, beams=args.beams))
    write(args.out / f"answers{shard}.tsv.gz", ("text", "to", "answer"), rows, pressed=6)
    print(f"shard {shard}: {len(rows):,} of {len(todo):,} in {time.time() - began:.0f} s", flush=True)


def expand(tables: Path, out: Path) -> Path:
    """The table of pairs, from the answers in the same folder."""
    path = out / "made.tsv.gz"
    answers = sorted(out.glob("answers*.tsv.gz"))
    if not answers:
        raise GlassformerError(
            f"{out} has no answers; `python -m experiments.pocket_back_translation MODEL` writes them"
        )
    if not path.is_file():
        known = {(text, to): answer for part in answers for text, to, answer in read(part)}
        count = write(path, ("source", "target", "to"), _pairs(tables, known), pressed=1)
        print(f"made: {count:,} rows", flush=True)
    return path


def _pairs(tables: Path, known: dict[tuple[str, str], str]) -> Iterator[Row]:
    for text, to, everyday in tasks(tables):
        answer = known.get((text, to), "")
        if plausible_lengths(text, answer) and normalized(answer) and normalized(answer) != normalized(text):
            yield answer, text, "en"
            if everyday and to in TRUSTED:
                yield text, answer, to


def make(
    model: Path, tables: Path, out: Path, *, seconds: float, shards: int, device: str, beams: int
) -> None:
    """Translate in several processes: a single one does not saturate a GPU or the cores."""
    out.mkdir(parents=True, exist_ok=True)
    until = time.time() + seconds
    command = [
        sys.executable,
        "-m",
        "experiments.pocket_back_translation",
        model,
        "--tables",
        tables,
        "--out",
        out,
    ]
    command += ["--device", device, "--beams", beams, "--until", until]
    children = [
        subprocess.Popen([*map(str, command), "--shard", str(number), str(shards)], env=environment())
        for number in range(shards)
    ]
    codes = [child.wait() for child in children]
    if any(codes):
        for part in out.glob("answers*.tsv.gz"):
            part.unlink()
        raise GlassformerError("a process that translated failed; what it said stands above")


def main() -> None:
    command = argparse.ArgumentParser(
        prog="python -m experiments.pocket_back_translation", description=__doc__
    )
    command.add_argument("model", type=Path)
    command.add_argument("--tables", type=Path, required=True)
    command.add_argument("--out", type=Path, required=True)
    command.add_argument("--seconds", type=float, default=120.0)
    command.add_argument("--shards", type=int, default=4)
    command.add_argument("--device", default="auto")
    command.add_argument("--beams", type=int, default=4)
    command.add_argument("--shard", type=int, nargs=2, help=argparse.SUPPRESS)
    command.add_argument("--until", type=float, help=argparse.SUPPRESS)
    args = command.parse_args()
    if args.shard:
        run_shard(args)
        return
    make(
        args.model,
        args.tables,
        args.out,
        seconds=args.seconds,
        shards=args.shards,
        device=args.device,
        beams=args.beams,
    )


if __name__ == "__main__":
    main()
