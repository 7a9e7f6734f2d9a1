"""Sentences trimmed, gapped and shuffled, then made whole again: a Transformer beside an LSTM of its size.

Both learn from the same sentences, in as many steps of as many tokens. Each kind of damage is tested apart on
the same held-out sentences, every one changed by it; what a damaged sentence scores as it is stands beside.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import glassformer as product
from experiments import records, training_runs
from experiments.paths import Place
from experiments.recall import pace
from glassformer.data.denoising import GAP_EVERY, MAX_GAP, MAX_MOVE, MAX_TRIM
from glassformer.metrics.text import chrf
from glassformer.training.hardware import device_for
from glassformer.weights.atomic_write import atomic_write

ROW = "restore"
RECIPES = {"transformer": "restore-sentences", "lstm": "lstm-restore"}
SOURCES = ("tatoeba-deu-eng/deu.txt.gz", "tatoeba-fra-eng/fra.txt.gz")  # of which the English side is taken
STEPS = 3000
HELD, TESTED = 500, 1000  # sentences to validate with, and to test with
GAP = "<gap>"
KINDS = {  # how likely trimming, gaps and shuffling are
    "trim": (1.0, 0.0, 0.0),
    "gap": (0.0, 1.0, 0.0),
    "shuffle": (0.0, 0.0, 1.0),
    "all": (1.0, 1.0, 1.0),
}
SHORTEST = 4  # words of a sentence that is tested with: of fewer, little is left
TRIES = 100  # drawings until a damage changes a sentence


def run(place: Place, name: str) -> None:
    """One run, as "transformer/1"."""
    model, _, number = name.partition("/")
    files = split(place)
    data = (f"data.train=[{files['train']}]", f"data.valid=[{files['valid']}]")
    limits = (f"training.max_steps={STEPS}", f"training.max_generate_samples={HELD}")
    found = training_runs.train(
        place, ROW, name, RECIPES[model], seed=int(number), of="chrf", changes=(*data, *limits)
    )
    sentences = files["test"].read_text(encoding="utf-8").splitlines()
    figures = {**measured(found.model, sentences, place.device), **pace(found)}
    records.note(place, ROW, name, seed=int(number), trained=found, figures=figures)


def sentences(data: Path) -> Iterator[str]:
    """The English sentences of the pairs, each once."""
    known = set()
    for source in SOURCES:
        with gzip.open(data / source, "rt", encoding="utf-8") as file:
            for line in file:
                sentence = " ".join(line.split("\t", 1)[0].split())
                if sentence and sentence not in known:
                    known.add(sentence)
                    yield sentence


def split(place: Place) -> dict[str, Path]:
    """Sentences to learn from, validate and test with; where one goes follows from the sentence alone."""
    folder = place.prepared(ROW)
    paths = {name: folder / f"{name}.txt" for name in ("train", "valid", "test")}
    if all(path.exists() for path in paths.values()):
        return paths
    ordered = sorted(sentences(place.data), key=lambda text: hashlib.sha256(text.encode()).digest())
    long = [text for text in ordered if len(text.split()) >= SHORTEST]
    held = {"test": long[:TESTED], "valid": long[TESTED : TESTED + HELD]}
    apart = {text for texts in held.values() for text in texts}
    for name, texts in {"train": [text for text in ordered if text not in apart], **held}.items():
        with atomic_write(paths[name]) as file:  # runs side by side may all write it
            file.writelines(f"{text}\n".encode() for text in texts)
    return paths


@dataclass(frozen=True, kw_only=True)
class Damaged:
    """What is read, with marks where gaps are; and what is left of the sentence, without them."""

    read: str
    left: str


def corrupt(
    tokens: NDArray[Any],
    rng: np.random.Generator,
    *,
    trim: float,
    gap: float,
    shuffle: float,
    gap_id: int | str,
) -> NDArray[Any]:
    """Corrupt words or ids, (T,) -> (T' <= T,); nothing is added but gap marks, and at least one word stays.

    trim, gap, shuffle: the probability of each, drawn independently.
    gap_id: the mark for one gap, whatever its length.

    >>> words = np.array("a b c d e f".split())
    >>> corrupt(words, np.random.default_rng(5), trim=0, gap=1, shuffle=0, gap_id="...").tolist()
    ['a', 'b', '...', 'f']
    """
    do_trim, do_gap, do_shuffle = rng.random(3) < (trim, gap, shuffle)
    if do_shuffle:
        tokens = _shuffle(tokens, rng)
    if do_trim:
        tokens = _trim(tokens, rng)
    if do_gap:
        tokens = _add_gaps(tokens, rng, gap_id)
    return tokens


def _shuffle(tokens: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Sort by position plus noise up to MAX_MOVE + 1: no word can pass another further away."""
    noisy = np.arange(len(tokens)) + rng.random(len(tokens)) * (MAX_MOVE + 1)
    return tokens[np.argsort(noisy, kind="stable")]


def _trim(tokens: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Remove at least one word at the beginning or the end."""
    most = len(tokens) // MAX_TRIM
    if not most:
        return tokens
    count = int(rng.integers(1, most + 1))
    return tokens[count:] if rng.random() < 0.5 else tokens[:-count]


def _add_gaps(tokens: NDArray[Any], rng: np.random.Generator, gap_id: int | str) -> NDArray[Any]:
    """Replace every gap by a mark."""
    count = len(tokens)
    if count < 2:
        return tokens
    removed = np.zeros(count, bool)
    gaps = 1 + count // GAP_EVERY
    starts, sizes = rng.integers(0, count, gaps), rng.integers(1, MAX_GAP + 1, gaps)
    for start, size in zip(starts, sizes, strict=True):
        removed[start : start + size] = True
    if removed.all():
        removed[-int(rng.integers(2))] = False  # the first or the last: one in the middle would make two gaps
    opens = removed & ~np.concatenate(([False], removed[:-1]))
    mark = np.array([gap_id], dtype=tokens.dtype if tokens.dtype.kind in "iuO" else None)
    wide = tokens.astype(np.promote_types(tokens.dtype, mark.dtype))  # the mark may be longer than any word
    return np.where(opens, mark.astype(wide.dtype), wide)[~removed | opens]


def damaged(sentence: str, kind: str, *, seed: int) -> Damaged:
    """A sentence with one kind of damage, drawn until it is another than it was.

    >>> damaged("she left without saying a word", "trim", seed=1).left
    'without saying a word'
    """
    tokens, rng = np.array(sentence.split(), object), np.random.default_rng(seed)
    trim, gap, shuffle = KINDS[kind]
    for _ in range(TRIES):
        found = corrupt(tokens, rng, trim=trim, gap=gap, shuffle=shuffle, gap_id=GAP)
        if found.tolist() != tokens.tolist():
            break
    return Damaged(read=" ".join(found), left=" ".join(word for word in found if word != GAP))


def measured(model: Path, sentences: Sequence[str], device: str) -> dict[str, float]:
    """chrF and exact answers for each kind of damage, chrF of the damaged, exact answers for whole ones."""
    bundle = product.load(model, device=device_for(device))
    figures: dict[str, float] = {}
    for kind in KINDS:
        corrupted = [damaged(sentence, kind, seed=number) for number, sentence in enumerate(sentences)]
        answers = bundle.restore([one.read for one in corrupted])
        figures |= {
            f"{kind} chrf": chrf(answers, sentences).score,
            f"{kind} chrf as damaged": chrf([one.left for one in corrupted], sentences).score,
            f"{kind} exact": _same(answers, sentences),
        }
    return {**figures, "whole left alone": _same(bundle.restore(list(sentences)), sentences)}


def _same(answers: Sequence[str], sentences: Sequence[str]) -> float:
    return sum(one == other for one, other in zip(answers, sentences, strict=True)) / len(sentences)
