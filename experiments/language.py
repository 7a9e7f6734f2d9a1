"""Our language model against nanoGPT of the same size: same token ids, batch, context and training time.

The number of steps that fit is measured first for each; compilation and validation are not counted.
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
from experiments.paths import Workspace
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
    """Shared by both: training files and tokenizer, token ids and units of each split."""

    corpus: Corpus
    files: dict[str, Path]
    folder: Path
    tokenizer: Tokenizer
    ids: dict[str, Ids]
    units: dict[str, int]


def run(workspace: Workspace, name: str, corpus: str) -> None:
    """A run is a model and a seed, e.g. "ours/1"."""
    contest(CORPORA[corpus], workspace, name)


def contest(corpus: Corpus, workspace: Workspace, name: str) -> None:
    kind, seed = name.split("/")
    if kind == "nanogpt":
        nanogpt.model_file()  # fail before minutes of preparation if it is missing
    corpus_files = prepared(corpus, workspace)
    if kind == "nanogpt":
        _theirs(corpus_files, workspace, name, int(seed))
    else:
        tried = (corpus.learned_positions,) if kind.startswith("tried") else ()
        _ours(corpus_files, workspace, name, int(seed), tried)


def prepared(corpus: Corpus, workspace: Workspace) -> PreparedCorpus:
    """Write the texts, train a tokenizer on the training text unless it exists, and encode them."""
    texts, data = corpus.texts(workspace.data), workspace.prepared(corpus.row)
    files = {part: data / f"{part}.txt" for part in texts}
    for part, path in files.items():
        if not path.exists():
            with atomic_write(path) as file:  # concurrent runs may all write it
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


def _ours(
    corpus_files: PreparedCorpus, workspace: Workspace, name: str, seed: int, tried: tuple[str, ...]
) -> None:
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
        workspace, row, f"timed/{name}", recipe, seed=seed, of="loss", changes=(*changes, *timing_steps)
    )
    steps = max(10, int((workspace.seconds or SECONDS) / seconds_per_step(first)))
    length = _steps(steps, max(1, steps // 10))
    trained = train(workspace, row, name, recipe, seed=seed, of="loss", changes=(*changes, *length))
    device = _device(workspace)
    model = glassformer.load(str(trained.model)).model.to(device).eval()
    result = {
        part: _loss(corpus_files.corpus, model, corpus_files.ids[part], device) for part in ("valid", "test")
    }
    figures = {"steps": float(steps), "seconds of steps": steps * seconds_per_step(trained)}
    note(
        workspace,
        row,
        name,
        seed=seed,
        trained=trained,
        figures=_with_bits_per_byte(corpus_files, result) | figures,
    )


def _theirs(corpus_files: PreparedCorpus, workspace: Workspace, name: str, seed: int) -> None:
    corpus, ids, device = corpus_files.corpus, corpus_files.ids, _device(workspace)
    size = nanogpt.Size(
        vocab_size=corpus_files.tokenizer.vocab_size,
        length=corpus.length,
        rows=corpus.rows,
        dropout=corpus.dropout,
    )
    peer = nanogpt.Peer(size, ids["train"], device=device, seed=seed)

    def measure(scores: Scores, of: Ids) -> float:
        return _loss(corpus, scores, of, device)

    seconds = workspace.seconds or SECONDS
    each = [peer.contest(lr, seconds, ids["valid"], ids["test"], measure) for lr in RATES]
    best = min(each, key=lambda one: one.valid)
    figures = _with_bits_per_byte(corpus_files, {"valid": best.valid, "test": best.test})
    figures |= {f"valid at rate {one.lr:g}": one.valid for one in each}
    figures |= {"steps": float(best.steps), "seconds of steps": best.seconds}
    trained = Trained(
        folder=workspace.run(corpus.row, name),
        seconds=best.seconds,
        parameters=best.parameters,
        of="loss",
        curve=best.curve,
    )
    note(workspace, corpus.row, name, seed=seed, trained=trained, figures=figures)


def seconds_per_step(trained: Trained) -> float:
    """Seconds per step, from logged steps without a validation between them, except the first."""
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
    result = load_tokenizer(folder)
    assert result is not None
    return result


def _ids(tokenizer: Tokenizer, path: Path) -> Ids:
    """The ids of a text and the end token, as in training."""
    ids = tokenizer.encode(path.read_text(encoding="utf-8"), special=False).ids
    assert tokenizer.eos_id is not None
    return np.asarray([*ids, tokenizer.eos_id], np.int64)


def _loss(corpus: Corpus, scores: Scores, ids: Ids, device: str) -> float:
    return text_loss.exact(scores, ids, length=corpus.length, batch=corpus.rows, device=device)


def _with_bits_per_byte(corpus_files: PreparedCorpus, result: dict[str, float]) -> dict[str, float]:
    """Nats per token, and bits per byte or perplexity per word, of each split."""
    metrics = dict(result)
    for part, loss in result.items():
        a_unit = loss * (len(corpus_files.ids[part]) - 1) / corpus_files.units[part]
        if corpus_files.corpus.unit == "byte":
            metrics[f"{part} bits a byte"] = a_unit / math.log(2)
        else:
            metrics[f"{part} perplexity a word"] = math.exp(a_unit)
    return metrics


def _device(workspace: Workspace) -> str:
    return device_for(workspace.device).type
