"""pocket-lm: a small language model of English, from texts whose licenses allow redistribution.

Wikipedia (WikiText-2 and the first 9 MB of enwik8: CC BY-SA), Tatoeba's English sentences (CC BY 2.0), the
New Heart English Bible and Shakespeare (both in the public domain).
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import glassformer
from experiments.paths import Workspace
from experiments.plain_english import wikipedia_articles, wikitext_articles
from experiments.records import note
from experiments.training_runs import log, train

ROW = "pocket-lm"
PAIRS = ("tatoeba-deu-eng/deu.txt.gz", "tatoeba-fra-eng/fra.txt.gz", "tatoeba-kor-eng/eng-kor.txt.gz")
OPENINGS = ("The city of", "Once upon a time", "In the beginning", "I would like to")


def run(workspace: Workspace, name: str) -> None:
    learned = prepared(workspace)
    changes = (f"data.train=[{learned.absolute()}]",)
    trained = train(workspace, ROW, name, "pocket-lm", seed=int(name), of="loss", changes=changes)
    best = min(trained.curve, key=lambda one: one[1])[1]
    bits = [one["metrics"]["bits_per_character"] for one in log(trained.folder) if one["kind"] == "valid"]
    note(
        workspace,
        ROW,
        name,
        seed=int(name),
        trained=trained,
        figures={"loss": best, "bits a character": min(bits)},
    )
    model = glassformer.load(str(trained.model))
    options = {"max_new_tokens": 80, "do_sample": True, "temperature": 0.7, "top_p": 0.9, "seed": 1}
    for opening, written in zip(OPENINGS, model.generate(OPENINGS, **options), strict=True):
        print(f"{opening}|{written}\n", flush=True)


def prepared(workspace: Workspace) -> Path:
    """All documents, deduplicated and shuffled with a fixed seed, as JSON Lines; created if missing."""
    path = workspace.prepared(ROW) / "english.jsonl.gz"
    if not path.is_file():
        texts = list(dict.fromkeys(text for source in sources(workspace.data).values() for text in source))
        random.Random(1).shuffle(texts)
        lines = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
        path.write_bytes(gzip.compress(lines.encode(), mtime=0))
    return path


def sources(data: Path) -> dict[str, Iterator[str]]:
    """The documents of each source, without the test data of other rows."""
    dump = _read(data / "enwik8-10M" / "enwik8.first10M.gz")
    return {
        "wikitext": wikitext_articles(_read(data / "wikitext-2" / "train.txt.gz")),
        "wikipedia": wikipedia_articles(dump[: int(0.9 * len(dump))]),
        "bible": chapters(_read(data / "bible-en-ko" / "bible.en-ko.tsv.gz")),
        "shakespeare": scenes(_read(data / "tiny-shakespeare" / "input.txt")),
        "tatoeba": sentences("\n".join(_read(data / name) for name in PAIRS)),
    }


def chapters(table: str) -> Iterator[str]:
    """The chapters of the Bible, each with its verses in order."""
    verses = (line.split("\t")[:2] for line in table.splitlines())
    for _, chapter in groupby(verses, key=lambda verse: verse[0].partition(":")[0]):
        yield " ".join(text for _, text in chapter)


def scenes(text: str) -> Iterator[str]:
    """A dozen speeches at a time."""
    speeches = [speech for speech in re.split(r"\n\s*\n", text) if speech.strip()]
    for first in range(0, len(speeches), 12):
        yield "\n\n".join(speeches[first : first + 12])


def sentences(pairs: str) -> Iterator[str]:
    """English sentences of five words or more; of those about Tom and Mary every fourth."""
    known, about = set(), 0
    for line in pairs.splitlines():
        english = line.partition("\t")[0].strip()
        if english in known or len(english.split()) < 5 or not english.endswith((".", "!", "?", '."')):
            continue
        known.add(english)
        if re.search(r"\b(Tom|Mary)\b", english):
            about += 1
            if about % 4:
                continue
        yield english


def _read(path: Path) -> str:
    raw = path.read_bytes()
    text = gzip.decompress(raw) if path.suffix == ".gz" else raw
    return text.decode("utf-8", errors="ignore").replace("\r\n", "\n")
