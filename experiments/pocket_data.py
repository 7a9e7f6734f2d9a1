"""The data of the default translator: disjoint training, validation and test pairs.

python -m experiments.pocket_data --data DATA --out FOLDER

Tables of source, target and target-language tag (`to`): train.tsv.gz, dev.tsv.gz, and test.tsv.gz with a
fourth column for the test set; and english.tsv.gz, sentences of Wikipedia without a translation. Whether an
English sentence is held out depends only on the sentence, so it is held out of every pair and direction.
Sentences of other evaluation sets, on either side, are not in the training data.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import lzma
import random
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from experiments import pocket_numbers
from experiments.paths import data_folder
from experiments.plain_english import wikipedia_articles, wikitext_articles
from experiments.pocket_text import (
    normalized,
    placeholders,
    plausible_lengths,
    sentence,
    tidy,
    without_case_and_punctuation,
)
from glassformer.tokenization.sentence_split import split_sentences
from glassformer.weights.atomic_write import atomic_write

Part = Literal["train", "dev", "test"]
TAGS = ("en", "de", "fr", "ko", "ko-label", "ko-bible")
CARELESS = 0.08  # of the sources, as people in a hurry type
COPIES = {
    **{"tatoeba-ko": 6, "debian-de": 2, "debian-fr": 2, "bible-ko": 1},
    **{"phrases-de": 2, "phrases-fr": 2, "phrases-ko": 4},
}
SAID = 5  # words; a line of the phrasebook that is no longer is learnt, and nobody is tested with it
PHRASES = Path(__file__).with_name("phrases.tsv.xz")  # written for this translator, in four languages
A_PHRASE = 3  # words; what is no longer may stand in evaluation sets too, as "Thank you." in the news
LABELS = 3  # one in LABELS user-interface labels is used
# shares for testing, and for development as much again
HELD = {"tatoeba-ko": 0.095, "tatoeba-de": 0.011, "tatoeba-fr": 0.011, "debian-ko": 0.004}
DEV = 300  # most rows of a direction and set in dev
LENGTHS = (5, 45)  # words of a sentence of Wikipedia
Row = tuple[str, str, str]  # source, target, to


@dataclass(frozen=True, kw_only=True)
class Pair:
    """An English text and its translation. kind: "tatoeba-de", ...; tag: of the target language."""

    english: str
    other: str
    kind: str
    tag: str

    @property
    def language(self) -> str:
        return self.kind.rpartition("-")[2]


def all_pairs(data: Path) -> Iterator[Pair]:
    """Every usable pair, once."""
    known = set()
    for pair in _sources(data):
        once = (pair.english, pair.other)
        if (
            once in known
            or not plausible_lengths(*once)
            or not normalized(pair.english)
            or not normalized(pair.other)
        ):
            continue
        known.add(once)
        yield pair


def _sources(data: Path) -> Iterator[Pair]:
    for language, files in (
        ("de", ("tatoeba-deu-eng/deu.txt.gz",)),
        ("fr", ("tatoeba-fra-eng/fra.txt.gz",)),
        ("ko", ("tatoeba-kor-eng/eng-kor.txt.gz", "tatoeba-kor-eng/kor-attributed-2022.txt.gz")),
    ):
        for file in files:
            for english, other, *_ in _cells(data / file):
                yield _pair(english, other, f"tatoeba-{language}", language)
    for _, english, other in _cells(data / "bible-en-ko/bible.en-ko.tsv.gz"):
        yield _pair(english, other, "bible-ko", "ko-bible")
    for english, other, *_ in _cells(data / "debian-en-ko/prose.en-ko.tsv.gz"):
        if not placeholders(english + other):
            is_sentence = sentence(english)
            yield _pair(
                english,
                other,
                "debian-ko" if is_sentence else "labels-ko",
                "ko" if is_sentence else "ko-label",
            )
    for english, other, *_ in _cells(data / "debian-en-ko/ui.en-ko.tsv.gz"):
        if not placeholders(english + other) and hash_fraction("label", english) < 1 / LABELS:
            yield _pair(english, other, "labels-ko", "ko-label")
    yield from phrasebook()
    for english, german, french, *_ in _cells(data / "debian-en-ko/prose.en-de-fr.tsv.gz"):
        if not placeholders(english + german + french):
            yield _pair(english, german, "debian-de", "de")
            yield _pair(english, french, "debian-fr", "fr")


def phrasebook() -> Iterator[Pair]:
    """The phrasebook written for this translator, and sentences with numbers in words."""
    with lzma.open(PHRASES, "rt", encoding="utf-8") as file:
        written = [line.rstrip("\n").split("\t") for line in file][1:]
    for english, *others in (*written, *pocket_numbers.sentences()):
        for language, other in zip(("de", "fr", "ko"), others, strict=True):
            yield _pair(english, other, f"phrases-{language}", language)


def _pair(english: str, other: str, kind: str, tag: str) -> Pair:
    return Pair(english=tidy(english, "en"), other=tidy(other, tag[:2]), kind=kind, tag=tag)


def evaluated(data: Path) -> set[str]:
    """The texts of the evaluation sets in any language, except common short phrases."""
    folders = ("flores", "korean-english-news", "korean-english-jhe", "wmt-newstest")
    files = [file for folder in folders for file in sorted((data / folder).glob("*.gz"))]
    files += [file for part in ("val", "test_*") for file in sorted((data / "multi30k").glob(f"{part}.*.gz"))]
    return {text for file in files for line in _lines(file) if not _is_short(text := normalized(line))}


def _is_short(text: str) -> bool:
    """Whether a text is a short, common phrase."""
    return len(text.split()) <= A_PHRASE


def monolingual_sentences(data: Path, held_out: set[str]) -> list[str]:
    """English sentences of Wikipedia, deduplicated, of suitable length."""
    with gzip.open(
        data / "enwik8-10M" / "enwik8.first10M.gz", "rt", encoding="utf-8", errors="ignore"
    ) as file:
        articles = [*wikipedia_articles(file.read())]
    articles += wikitext_articles("\n".join(_lines(data / "wikitext-2" / "train.txt.gz")))
    sentences = dict.fromkeys(
        tidy(one, "en")
        for article in articles
        for paragraph in article.split("\n")
        for one, _ in split_sentences(paragraph)
        if LENGTHS[0] <= len(one.split()) <= LENGTHS[1] and sentence(one)
    )
    return [one for one in sentences if normalized(one) not in held_out and not placeholders(one)]


def split_of(english: str, kind: str) -> Part:
    """The split of an English sentence, for a kind of pairs."""
    at, share = hash_fraction("held", english), HELD.get(kind, 0.0)
    return "test" if at < share else "dev" if at < 2 * share else "train"


def split_pairs(pairs: Sequence[Pair], forbidden: set[str]) -> dict[Part, list[Pair]]:
    """Pairs by part. Of what is held out the English is in no training pair, nor is the other text, save a
    phrase: "Bonjour !", held out as "At noon.", may be learnt as "Good morning!". What everyone says is not
    held out: "Hello." has to be known, whatever its hash."""
    held: dict[str, Part] = {}
    common = {
        normalized(pair.english) for pair in pairs if pair.kind.startswith("phrases-") and _is_phrase(pair)
    }
    for pair in pairs:
        part = split_of(normalized(pair.english), pair.kind)
        if normalized(pair.english) in common:
            continue
        if part == "test" or (part == "dev" and normalized(pair.english) not in held):
            held[normalized(pair.english)] = part
    others = {normalized(pair.other) for pair in pairs if normalized(pair.english) in held}
    others = {text for text in others if not _is_short(text)}
    parts: dict[Part, list[Pair]] = {"train": [], "dev": [], "test": []}
    for pair in pairs:
        english, other = normalized(pair.english), normalized(pair.other)
        if english in held:
            if pair.kind in HELD:
                parts[held[english]].append(pair)
        elif english not in forbidden and other not in forbidden and other not in others:
            parts["train"].append(pair)
    return {part: pairs if part == "train" else _first(pairs) for part, pairs in parts.items()}


def _is_phrase(pair: Pair) -> bool:
    return len(pair.english.split()) <= SAID


def _first(pairs: Iterable[Pair]) -> list[Pair]:
    """One translation of each sentence, ordered by hash."""
    unique = {(pair.kind, normalized(pair.english)): pair for pair in reversed(list(pairs))}
    return sorted(unique.values(), key=lambda pair: hash_fraction("order", pair.english))


def bidirectional(pair: Pair) -> tuple[Row, Row]:
    """Each pair in both directions."""
    return (pair.english, pair.other, pair.tag), (pair.other, pair.english, "en")


def training_rows(pairs: Iterable[Pair], *, seed: int = 1) -> Iterator[Row]:
    """Training rows: rare kinds repeated, some sources without case and punctuation."""
    rng = random.Random(seed)
    for pair in pairs:
        for _ in range(COPIES.get(pair.kind, 1)):
            for source, target, to in bidirectional(pair):
                hurried = to in ("en", "de", "fr", "ko") and rng.random() < CARELESS
                yield without_case_and_punctuation(source) if hurried else source, target, to


def tested(pairs: Iterable[Pair]) -> Iterator[tuple[str, str, str, str]]:
    """Test rows; the fourth cell names the set and the direction, e.g. "tatoeba en-de"."""
    for pair in pairs:
        there, back = bidirectional(pair)
        name = pair.kind.partition("-")[0]
        yield *there, f"{name} en-{pair.language}"
        yield *back, f"{name} {pair.language}-en"


def write(path: Path, names: Sequence[str], rows: Iterable[Sequence[str]], *, pressed: int = 9) -> int:
    """Write a gzipped table with a header, at compression level 1 to 9; its bytes depend only on the rows."""
    count = 0
    with (
        atomic_write(path) as file,
        gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0, compresslevel=pressed) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as text,
    ):
        text.write("\t".join(names) + "\n")
        for row in rows:
            text.write("\t".join(row) + "\n")
            count += 1
    return count


def read(path: Path) -> Iterator[list[str]]:
    """The rows of a table that `write` wrote."""
    lines = _lines(path)
    next(lines)
    return (line.split("\t") for line in lines)


def _cells(path: Path) -> Iterator[list[str]]:
    return (line.split("\t") for line in _lines(path))


def _lines(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        for line in file:
            yield line.rstrip("\r\n")


def hash_fraction(purpose: str, text: str) -> float:
    """A number from 0 to 1 that depends only on the text (a hash)."""
    digest = hashlib.blake2b(text.encode(), digest_size=8, key=purpose.encode()).digest()
    return int.from_bytes(digest, "big") / 2**64


def prepare(data: Path, out: Path) -> dict[str, int]:
    """Write the tables, print the number of pairs of each kind, and return the counts by name."""
    out.mkdir(parents=True, exist_ok=True)
    for of_others in out.glob("made-by-*"):
        shutil.rmtree(of_others)
    forbidden = evaluated(data)
    parts = split_pairs(list(all_pairs(data)), forbidden)
    rows = write(out / "train.tsv.gz", ("source", "target", "to"), training_rows(parts["train"]))
    write(out / "dev.tsv.gz", ("source", "target", "to"), _developed(parts["dev"]))
    write(out / "test.tsv.gz", ("source", "target", "to", "set"), tested(parts["test"]))
    held = {normalized(pair.english) for pair in (*parts["dev"], *parts["test"])}
    english = write(
        out / "english.tsv.gz", ("text",), ((one,) for one in monolingual_sentences(data, forbidden | held))
    )
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for part, pairs in parts.items():
        for pair in pairs:
            counts[pair.kind][part] += 1
            counts[pair.kind]["words"] += len(pair.english.split()) * (part == "train")
    print(f"{'kind':12}{'train':>9}{'copies':>8}{'words':>11}{'dev':>7}{'test':>7}")
    for kind, of in counts.items():
        copies = COPIES.get(kind, 1)
        print(f"{kind:12}{of['train']:9,}{copies:8}{of['words']:11,}{of['dev']:7,}{of['test']:7,}")
    print(f"{rows:,} rows to learn from, {english:,} sentences of Wikipedia to translate")
    print(f"{len(forbidden):,} texts of other evaluation sets kept out")
    totals = {"rows": rows, "sentences of Wikipedia": english, "texts kept out": len(forbidden)}
    return totals | {f"{kind} {name}": of[name] for kind, of in counts.items() for name in (*parts, "words")}


def _developed(pairs: Sequence[Pair]) -> list[Row]:
    """A few rows of each direction, mixed, so that the first ones are a fair sample."""
    counts: Counter[tuple[str, str]] = Counter()
    rows = []
    for pair in pairs:
        for row in bidirectional(pair):
            counts[pair.kind, row[2]] += 1
            if counts[pair.kind, row[2]] <= DEV:
                rows.append(row)
    return sorted(rows, key=lambda row: hash_fraction("dev", row[0] + row[2]))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.pocket_data", description=__doc__)
    parser.add_argument("--data", type=Path, default=data_folder())
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    prepare(args.data, args.out)


if __name__ == "__main__":
    main()
