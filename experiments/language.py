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
from experiments.trained import Trained, log, train
from glassformer.tokenization import Tokenizer, load_tokenizer
from glassformer.training.hardware import device_for
from glassformer.weights.atomic_write import atomic_write

SECONDS = 25.0  # of steps, for each side
REHEARSED, EVERY = 200, 50  # steps by which the time of one is measured; steps between two noted ones
RATES = (1e-3, 2e-3, 3e-3)  # nanoGPT is tried with, and its best one is kept


@dataclass(frozen=True, kw_only=True)
class Given:
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
    given = prepared(corpus, place)
    if kind == "nanogpt":
        _theirs(given, place, name, int(seed))
    else:
        tried = (corpus.learned_positions,) if kind.startswith("tried") else ()
        _ours(given, place, name, int(seed), tried)


def prepared(corpus: Corpus, place: Place) -> Given:
    """The texts as files, cut by a tokenizer that is learned from the first where it is not there."""
    texts, data = corpus.texts(place.data), place.prepared(corpus.row)
    files = {part: data / f"{part}.txt" for part in texts}
    for part, path in files.items():
        if not path.exists():
            with atomic_write(path) as file:  # runs side by side may all write it
                file.write(texts[part].encode())
    folder = data / "tokenizer"
    tokenizer = _tokenizer(corpus, files["train"], folder)
    return Given(
        corpus=corpus,
        files=files,
        folder=folder,
        tokenizer=tokenizer,
        ids={part: _ids(tokenizer, path) for part, path in files.items()},
        units={part: corpus.units(text) for part, text in texts.items()},
    )


def _ours(given: Given, place: Place, name: str, seed: int, tried: tuple[str, ...]) -> None:
    row, recipe = given.corpus.row, given.corpus.recipe
    changes = (
        f"data.train=[{given.files['train'].absolute()}]",
        f"data.valid=[{given.files['valid'].absolute()}]",
        f"tokenizer.folder={given.folder.absolute()}",
        f"training.logging_steps={EVERY}",
        *tried,
    )
    rehearsal = _steps(REHEARSED, REHEARSED)
    first = train(place, row, f"timed/{name}", recipe, seed=seed, of="loss", changes=(*changes, *rehearsal))
    steps = max(10, int((place.seconds or SECONDS) / a_step(first)))
    length = _steps(steps, max(1, steps // 10))
    trained = train(place, row, name, recipe, seed=seed, of="loss", changes=(*changes, *length))
    device = _device(place)
    model = glassformer.load(str(trained.model)).model.to(device).eval()
    found = {part: _loss(given.corpus, model, given.ids[part], device) for part in ("valid", "test")}
    figures = {"steps": float(steps), "seconds of steps": steps * a_step(trained)}
    note(place, row, name, seed=seed, trained=trained, figures=_told(given, found) | figures)


def _theirs(given: Given, place: Place, name: str, seed: int) -> None:
    corpus, ids, device = given.corpus, given.ids, _device(place)
    size = nanogpt.Size(
        vocab_size=given.tokenizer.vocab_size, length=corpus.length, rows=corpus.rows, dropout=corpus.dropout
    )
    peer = nanogpt.Peer(size, ids["train"], device=device, seed=seed)

    def measure(scores: Scores, of: Ids) -> float:
        return _loss(corpus, scores, of, device)

    seconds = place.seconds or SECONDS
    each = [peer.contest(lr, seconds, ids["valid"], ids["test"], measure) for lr in RATES]
    best = min(each, key=lambda one: one.valid)
    figures = _told(given, {"valid": best.valid, "test": best.test})
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
    noted = [one for one in log(trained.folder) if one["kind"] in ("step", "valid")][1:]
    pairs = [(a, b) for a, b in pairwise(noted) if a["kind"] == b["kind"] == "step"]
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
        words = ("--kind", corpus.kind, "--vocab-size", str(corpus.vocab_size), "--template", "none")
        command("tokenizer", "train", text, *words, "--out", folder)
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


def _told(given: Given, found: dict[str, float]) -> dict[str, float]:
    """Nats a token, and bits a byte or perplexity a word, of each part."""
    told = dict(found)
    for part, loss in found.items():
        a_unit = loss * (len(given.ids[part]) - 1) / given.units[part]
        if given.corpus.unit == "byte":
            told[f"{part} bits a byte"] = a_unit / math.log(2)
        else:
            told[f"{part} perplexity a word"] = math.exp(a_unit)
    return told


def _device(place: Place) -> str:
    return device_for(place.device).type
