"""Restoring trimmed, gapped and shuffled sentences: a Transformer and an LSTM of the same size.

Both train on the same sentences with the same steps and tokens. Each corruption is tested separately on the
same held-out sentences, all changed by it; the score of the corrupted sentences themselves is recorded too.
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
from experiments.paths import Workspace
from experiments.recall import pace
from glassformer.data.denoising import GAP_EVERY, MAX_GAP, MAX_MOVE, MAX_TRIM
from glassformer.metrics.text import chrf
from glassformer.training.hardware import device_for
from glassformer.weights.atomic_write import atomic_write

ROW = "restore"
RECIPES = {"transformer": "restore-sentences", "lstm": "lstm-restore"}
SOURCES = ("tatoeba-deu-eng/deu.txt.gz", "tatoeba-fra-eng/fra.txt.gz")  # the English side is used
STEPS = 3000
HELD, TESTED = 500, 1000  # sentences to validate with, and to test with
GAP = "<gap>"
KINDS = {  # probabilities of trimming, gaps and shuffling
    "trim": (1.0, 0.0, 0.0),
    "gap": (0.0, 1.0, 0.0),
    "shuffle": (0.0, 0.0, 1.0),
    "all": (1.0, 1.0, 1.0),
}
SHORTEST = 4  # words of a sentence that is tested with: of fewer, little is left
TRIES = 100  # attempts until a corruption changes a sentence


def run(workspace: Workspace, name: str) -> None:
    """One run, e.g. "transformer/1"."""
    model, _, number = name.partition("/")
    files = split(workspace)
    data = (f"data.train=[{files['train']}]", f"data.valid=[{files['valid']}]")
    limits = (f"training.max_steps={STEPS}", f"training.max_generate_samples={HELD}")
    result = training_runs.train(
        workspace, ROW, name, RECIPES[model], seed=int(number), of="chrf", changes=(*data, *limits)
    )
    sentences = files["test"].read_text(encoding="utf-8").splitlines()
    figures = {**measured(result.model, sentences, workspace.device), **pace(result)}
    records.note(workspace, ROW, name, seed=int(number), trained=result, figures=figures)


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


def split(workspace: Workspace) -> dict[str, Path]:
    """Training, validation and test sentences; the split depends only on the sentence."""
    folder = workspace.prepared(ROW)
    paths = {name: folder / f"{name}.txt" for name in ("train", "valid", "test")}
    if all(path.exists() for path in paths.values()):
        return paths
    ordered = sorted(sentences(workspace.data), key=lambda text: hashlib.sha256(text.encode()).digest())
    long = [text for text in ordered if len(text.split()) >= SHORTEST]
    held = {"test": long[:TESTED], "valid": long[TESTED : TESTED + HELD]}
    apart = {text for texts in held.values() for text in texts}
    for name, texts in {"train": [text for text in ordered if text not in apart], **held}.items():
        with atomic_write(paths[name]) as file:  # concurrent runs may all write it
            file.writelines(f"{text}\n".encode() for text in texts)
    return paths


@dataclass(frozen=True, kw_only=True)
class Damaged:
    """The corrupted sentence with gap marks, and the same without them."""

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
    """A sentence with one kind of corruption, redrawn until it differs from the original.

    >>> damaged("she left without saying a word", "trim", seed=1).left
    'without saying a word'
    """
    tokens, rng = np.array(sentence.split(), object), np.random.default_rng(seed)
    trim, gap, shuffle = KINDS[kind]
    for _ in range(TRIES):
        result = corrupt(tokens, rng, trim=trim, gap=gap, shuffle=shuffle, gap_id=GAP)
        if result.tolist() != tokens.tolist():
            break
    return Damaged(read=" ".join(result), left=" ".join(word for word in result if word != GAP))


def measured(model: Path, sentences: Sequence[str], device: str) -> dict[str, float]:
    """chrF and exact match for each corruption, chrF of the inputs, exact match for intact sentences."""
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
