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
from glassformer.text import Tokenizer, load_tokenizer
from glassformer.training.machine import device_for
from results import nanogpt, text_loss
from results.noted import note
from results.place import Place
from results.place import glassformer as command
from results.text_loss import Ids, Scores
from results.trained import Trained, log, train

SECONDS = 45.0  # of steps, for each side
REHEARSED, EVERY = 200, 50  # steps by which the time of one is measured; steps between two noted ones
RATES = (1e-3, 6e-4)  # nanoGPT is tried with, and its better one is kept
PARTS = ("train", "valid", "test")


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A row: its recipe, its files, how they are cut, and what nanoGPT needs to be of the same size.

    units: how many words or bytes each part has, by which the loss is told too
    """

    row: str
    recipe: str
    files: dict[str, Path]
    kind: str
    vocab_size: int
    length: int
    rows: int
    dropout: float
    units: dict[str, int]

    @property
    def learned_positions(self) -> str:
        """The same size with GPT-2's positions, as was tried."""
        words = f"dropout: {self.dropout}, attention_dropout: {self.dropout}, embed_dropout: {self.dropout}"
        size = f"d_model: 384, num_heads: 6, d_ff: 1536, num_layers: 6, max_len: {self.length}"
        return f"model={{preset: gpt2, {size}, {words}}}"


def run(corpus: Corpus, place: Place, name: str) -> None:
    kind, seed = name.split("/")
    tokenizer = _tokenizer(corpus, place)
    ids = {part: _ids(tokenizer, corpus.files[part]) for part in PARTS}
    if kind == "nanogpt":
        _theirs(corpus, place, name, int(seed), tokenizer.vocab_size, ids)
    else:
        tried = (corpus.learned_positions,) if kind.startswith("tried") else ()
        _ours(corpus, place, name, int(seed), ids, tried)


def _ours(
    corpus: Corpus, place: Place, name: str, seed: int, ids: dict[str, Ids], tried: tuple[str, ...]
) -> None:
    changes = (
        f"data.train=[{corpus.files['train'].absolute()}]",
        f"data.valid=[{corpus.files['valid'].absolute()}]",
        f"tokenizer.folder={(place.prepared(corpus.row) / 'tokenizer').absolute()}",
        f"training.log_every={EVERY}",
        *tried,
    )
    row = corpus.row
    rehearsal = _steps(REHEARSED, REHEARSED)
    first = train(
        place, row, f"timed/{name}", corpus.recipe, seed=seed, of="loss", changes=(*changes, *rehearsal)
    )
    steps = max(10, int((place.seconds or SECONDS) / a_step(first)))
    length = _steps(steps, max(1, steps // 10))
    trained = train(place, row, name, corpus.recipe, seed=seed, of="loss", changes=(*changes, *length))
    device = _device(place)
    model = glassformer.load(str(trained.model)).model.to(device).eval()
    found = {part: _loss(corpus, model, ids[part], device) for part in PARTS[1:]}
    figures = {"steps": float(steps), "seconds of steps": steps * a_step(trained)}
    note(place, row, name, seed=seed, trained=trained, figures=_told(corpus, ids, found) | figures)


def _theirs(corpus: Corpus, place: Place, name: str, seed: int, vocab_size: int, ids: dict[str, Ids]) -> None:
    device = _device(place)
    size = nanogpt.Size(vocab_size=vocab_size, length=corpus.length, rows=corpus.rows, dropout=corpus.dropout)
    peer = nanogpt.Peer(size, ids["train"], device=device, seed=seed)

    def measure(scores: Scores, of: Ids) -> float:
        return _loss(corpus, scores, of, device)

    seconds = place.seconds or SECONDS
    each = [peer.contest(lr, seconds, ids["valid"], ids["test"], measure) for lr in RATES]
    best = min(each, key=lambda one: one.valid)
    figures = _told(corpus, ids, {"valid": best.valid, "test": best.test})
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
        f"training.steps={steps}",
        f"training.validate_every={validate_every}",
        f"training.save_every={steps}",
    )


def _tokenizer(corpus: Corpus, place: Place) -> Tokenizer:
    folder = place.prepared(corpus.row) / "tokenizer"
    if not (folder / "tokenizer.json").is_file():
        size = ("--vocab-size", str(corpus.vocab_size))
        words = ("--kind", corpus.kind, *size, "--marks", "none", "--out", folder)
        command("tokenizer", "train", corpus.files["train"], *words)
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


def _told(corpus: Corpus, ids: dict[str, Ids], found: dict[str, float]) -> dict[str, float]:
    """Nats a token, and bits a byte or perplexity a word, of each part."""
    told = dict(found)
    for part, loss in found.items():
        a_unit = loss * (len(ids[part]) - 1) / corpus.units[part]
        if corpus.kind == "char":
            told[f"{part} bits a byte"] = a_unit / math.log(2)
        else:
            told[f"{part} perplexity a word"] = math.exp(a_unit)
    return told


def _device(place: Place) -> str:
    return device_for(place.device).type
