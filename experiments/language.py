"""A language model of ours against nanoGPT of the same size: the same ids, batch, context and seconds.

How many steps fit is measured first, on each side; compiling and validating are not counted, on either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

import glassformer
from experiments import nanogpt, text_loss
from experiments.corpora import CORPORA, Corpus
from experiments.paths import Place
from experiments.paths import glassformer as command
from experiments.records import note
from experiments.text_loss import Ids, Scores
from experiments.training_runs import Trained, log, train
from glassformer.tokenization import Tokenizer, load_tokenizer
from glassformer.training.hardware import device_for
from glassformer.weights.atomic_write import atomic_write

SECONDS = 25.0  # of steps, for each side
REHEARSED, EVERY = 200, 50  # steps by which the time of one is measured; steps between two noted ones
RATES = (1e-3, 2e-3, 3e-3)  # nanoGPT is tried with, and its best one is kept


@dataclass(frozen=True, kw_only=True)
class PreparedCorpus:
    """What both sides have: files to learn from and their tokenizer, the ids and units of each part."""

    corpus: Corpus
    files: dict[str, Path]
    folder: Path
    tokenizer: Tokenizer
    ids: dict[str, Ids]
    units: dict[str, int]


def run(place: Place, name: str, corpus: str) -> None:
    """A run is a side and a seed, as "ours/1"."""
    contest(CORPORA[corpus], place, name)


def contest(corpus: Corpus, place: Place, name: str) -> None:
    kind, seed = name.split("/")
    if kind == "nanogpt":
        nanogpt.model_file()  # a missing one is told before minutes of preparing
    corpus_files = prepared(corpus, place)
    if kind == "nanogpt":
        _theirs(corpus_files, place, name, int(seed))
    else:
        tried = (corpus.learned_positions,) if kind.startswith("tried") else ()
        _ours(corpus_files, place, name, int(seed), tried)


def prepared(corpus: Corpus, place: Place) -> PreparedCorpus:
    """The texts as files, cut by a tokenizer that is learned from the first where it is not there."""
    texts, data = corpus.texts(place.data), place.prepared(corpus.row)
    files = {part: data / f"{part}.txt" for part in texts}
    for part, path in files.items():
        if not path.exists():
            with atomic_write(path) as file:  # runs side by side may all write it
                file.write(texts[part].encode())
    folder = data / "tokenizer"
    tokenizer = _tokenizer(corpus, files["train"], folder)
    return PreparedCorpus(
        corpus=corpus,
        files=files,
        folder=folder,
        tokenizer=tokenizer,
        ids={part: _ids(tokenizer, path) for part, path in files.items()},
        units={part: corpus.units(text) for part, text in texts.items()},
    )


def _ours(corpus_files: PreparedCorpus, place: Place, name: str, seed: int, tried: tuple[str, ...]) -> None:
    row, recipe = corpus_files.corpus.row, corpus_files.corpus.recipe
    changes = (
        f"data.train=[{corpus_files.files['train'].absolute()}]",
        f"data.valid=[{corpus_files.files['valid'].absolute()}]",
        f"tokenizer.folder={corpus_files.folder.absolute()}",
        f"training.logging_steps={EVERY}",
        *tried,
    )
    timing_steps = _steps(REHEARSED, REHEARSED)
    first = train(
        place, row, f"timed/{name}", recipe, seed=seed, of="loss", changes=(*changes, *timing_steps)
    )
    steps = max(10, int((place.seconds or SECONDS) / a_step(first)))
    length = _steps(steps, max(1, steps // 10))
    trained = train(place, row, name, recipe, seed=seed, of="loss", changes=(*changes, *length))
    device = _device(place)
    model = glassformer.load(str(trained.model)).model.to(device).eval()
    found = {
        part: _loss(corpus_files.corpus, model, corpus_files.ids[part], device) for part in ("valid", "test")
    }
    figures = {"steps": float(steps), "seconds of steps": steps * a_step(trained)}
    note(
        place,
        row,
        name,
        seed=seed,
        trained=trained,
        figures=_with_bits_per_byte(corpus_files, found) | figures,
    )


def _theirs(corpus_files: PreparedCorpus, place: Place, name: str, seed: int) -> None:
    corpus, ids, device = corpus_files.corpus, corpus_files.ids, _device(place)
    size = nanogpt.Size(
        vocab_size=corpus_files.tokenizer.vocab_size,
        length=corpus.length,
        rows=corpus.rows,
        dropout=corpus.dropout,
    )
    peer = nanogpt.Peer(size, ids["train"], device=device, seed=seed)

    def measure(scores: Scores, of: Ids) -> float:
        return _loss(corpus, scores, of, device)

    seconds = place.seconds or SECONDS
    each = [peer.contest(lr, seconds, ids["valid"], ids["test"], measure) for lr in RATES]
    best = min(each, key=lambda one: one.valid)
    figures = _with_bits_per_byte(corpus_files, {"valid": best.valid, "test": best.test})
    figures |= {f"valid at rate {one.lr:g}": one.valid for one in each}
    figures |= {"steps": float(best.steps), "seconds of steps": best.seconds}
    trained = Trained(
        folder=place.run(corpus.row, name),
        seconds=best.seconds,
        parameters=best.parameters,
        of="loss",
        curve=best.curve,
    )
    note(place, corpus.row, name, seed=seed, trained=trained, figures=figures)


def a_step(trained: Trained) -> float:
    """Seconds of one step, from the noted ones between which nothing was validated, the first left out."""
    entries = [one for one in log(trained.folder) if one["kind"] in ("step", "valid")][1:]
    pairs = [(a, b) for a, b in pairwise(entries) if a["kind"] == b["kind"] == "step"]
    steps = sum(b["step"] - a["step"] for a, b in pairs)
    return sum(b["time"] - a["time"] for a, b in pairs) / steps if steps else math.inf


def _steps(steps: int, validate_every: int) -> tuple[str, ...]:
    return (
        f"training.max_steps={steps}",
        f"training.eval_steps={validate_every}",
        f"training.save_steps={steps}",
    )


def _tokenizer(corpus: Corpus, text: Path, folder: Path) -> Tokenizer:
    if not (folder / "tokenizer.json").is_file():
        options = ("--kind", corpus.kind, "--vocab-size", str(corpus.vocab_size), "--template", "none")
        command("tokenizer", "train", text, *options, "--out", folder)
    found = load_tokenizer(folder)
    assert found is not None
    return found


def _ids(tokenizer: Tokenizer, path: Path) -> Ids:
    """A text's ids and the end token, as the training reads them."""
    ids = tokenizer.encode(path.read_text(encoding="utf-8"), special=False).ids
    assert tokenizer.eos_id is not None
    return np.asarray([*ids, tokenizer.eos_id], np.int64)


def _loss(corpus: Corpus, scores: Scores, ids: Ids, device: str) -> float:
    return text_loss.exact(scores, ids, length=corpus.length, batch=corpus.rows, device=device)


def _with_bits_per_byte(corpus_files: PreparedCorpus, found: dict[str, float]) -> dict[str, float]:
    """Nats a token, and bits a byte or perplexity a word, of each part."""
    metrics = dict(found)
    for part, loss in found.items():
        a_unit = loss * (len(corpus_files.ids[part]) - 1) / corpus_files.units[part]
        if corpus_files.corpus.unit == "byte":
            metrics[f"{part} bits a byte"] = a_unit / math.log(2)
        else:
            metrics[f"{part} perplexity a word"] = math.exp(a_unit)
    return metrics


def _device(place: Place) -> str:
    return device_for(place.device).type
