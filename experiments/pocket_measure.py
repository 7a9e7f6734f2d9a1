"""Evaluate a multilingual translator by test set and direction: sacreBLEU and chrF.

python -m experiments.pocket_measure MODEL --tables FOLDER [--data DATA] [--out FILE]

Sets: held-out Tatoeba and Debian (`test.tsv.gz` of the tables), FLORES devtest, the Korean-English news
test. Lines are not split into sentences, as in most published scores. BLEU of Korean uses characters
(`bleu-char`), and also MeCab tokens (`bleu-mecab`) if MeCab is installed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Iterator
from pathlib import Path

import glassformer
from experiments.paths import data_folder
from experiments.pocket_data import read, write
from experiments.pocket_text import tidy
from glassformer.metrics.text import bleu, chrf
from glassformer.training.hardware import device_for

Set = list[tuple[str, str]]  # sources and references
AT_ONCE = 64_000  # tokens of a batch on a GPU


def sets(tables: Path, data: Path) -> Iterator[tuple[str, str, Set]]:
    """Every available test set: name and direction, target-language tag, sources and references."""
    held: dict[str, Set] = {}
    for source, target, _, name in read(tables / "test.tsv.gz"):
        held.setdefault(name, []).append((source, target))
    for name, rows in sorted(held.items()):
        yield name, name[-2:], rows
    for set_name, stem, languages in (
        ("flores", "flores/flores-test", ("de", "fr", "ko")),
        ("news", "korean-english-news/korean-english-park.test", ("ko",)),
    ):
        for language in languages:
            if not (data / f"{stem}.{language}.gz").is_file():
                continue
            english, other = (_lines(data / f"{stem}.{side}.gz") for side in ("en", language))
            yield f"{set_name} en-{language}", language, list(zip(english, other, strict=True))
            yield f"{set_name} {language}-en", "en", list(zip(other, english, strict=True))


def measure(
    model: Path,
    tables: Path,
    data: Path,
    *,
    device: str = "auto",
    most: int | None = None,
    out: Path | None = None,
    **settings: int,
) -> dict[str, float]:
    """Scores by name, e.g. "bleu tatoeba en-de"; most: sentences per set; out: file for the outputs."""
    where = device_for(device)
    bundle = glassformer.load(model, device=where, dtype="bfloat16" if where.type == "cuda" else None)
    figures: dict[str, float] = {}
    written = []
    for name, to, rows in sets(tables, data):
        rows, began = rows[:most], time.monotonic()
        room = {"batch_tokens": AT_ONCE} if where.type == "cuda" else {}
        got = bundle.translate([source for source, _ in rows], to=to, split="never", **room, **settings)
        figures |= {f"{kind} {name}": score for kind, score in likeness(got, rows, to).items()}
        written += [(name, *row, answer) for row, answer in zip(rows, got, strict=True)]
        print(f"{name}: {len(rows)} in {time.monotonic() - began:.1f} s", flush=True)
    if out is not None:
        write(out, ("set", "source", "reference", "written"), written)
    return figures


def likeness(got: list[str], rows: Set, language: str) -> dict[str, float]:
    """BLEU and chrF; the references are normalized like the training data."""
    expected = [tidy(target, language) for _, target in rows]
    got = [tidy(text, language) for text in got]
    scores = {"chrf": chrf(got, expected).score}
    if language != "ko":
        return {"bleu": bleu(got, expected).score, **scores}
    scores["bleu-char"] = bleu(got, expected, tokenize="char").score
    parser = bleu(got, expected, tokenize="ko-mecab")
    return scores if parser.note else {"bleu-mecab": parser.score, **scores}


def _lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        return [line.rstrip("\r\n") for line in file]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.pocket_measure", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tables", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=data_folder())
    parser.add_argument("--device", default="auto")
    parser.add_argument("--most", type=int, help="maximum number of sentences per set")
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--out", type=Path, help="a .tsv.gz for what was written")
    args = parser.parse_args()
    figures = measure(
        args.model,
        args.tables,
        args.data,
        device=args.device,
        most=args.most,
        out=args.out,
        num_beams=args.beams,
    )
    print(json.dumps(figures, indent=1, sort_keys=True))


if __name__ == "__main__":
    main()
