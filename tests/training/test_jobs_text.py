"""Text jobs learn, from files to a saved model, on a few hundred synthetic examples."""

import json
import math
import os
import random
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glassformer
from glassformer.data.denoising import Corruption, DenoisingExamples
from glassformer.data.store import write_store
from glassformer.families.sidecars import JobInfo
from glassformer.tokenization.train import TokenizerPlan, train_tokenizer
from glassformer.training.data_cache import no_log
from glassformer.training.encoding import word_starts
from glassformer.training.jobs.restore import GAP, PREFIX, normalize_spaces
from glassformer.training.recipe import parse_recipe
from glassformer.training.run import run

DATA = Path(os.environ.get("GLASSFORMER_DATA", Path(__file__).parents[3] / "shared" / "data"))
SMALL = {"d_model": 64, "num_heads": 4, "d_ff": 128, "num_layers": 2, "dropout": 0.0}


def trained(folder: Path, job: str, data: dict[str, Any], **sections: Any) -> list[dict[str, float]]:
    """Run a recipe to its end; the metrics of every validation."""
    sections["training"] = {"device": "cpu", "eval_steps": 10**6, **sections.get("training", {})}
    recipe = parse_recipe({"job": job, "data": data, **sections})
    assert run(recipe, folder, log=no_log).outcome == "finished"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["metrics"] for line in lines if line["kind"] == "valid"]


def facts(folder: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {name: fact for line in lines for name, fact in line.get("facts", {}).items()}


def written(path: Path, rows: list[str]) -> str:
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return str(path)


# ---- a small language whose entropy is known --------------------------------------------------------

NOUNS = ("cat", "dog", "horse", "goat", "hen", "pig")
ADJECTIVES = ("old", "grey", "small", "wild")
VERBS = ("see", "like", "chase", "meet", "hear")
# what is drawn after the first word: two adjectives, two nouns, a verb; the rest follows from it
ENTROPY = 2 * math.log(len(ADJECTIVES)) + 2 * math.log(len(NOUNS)) + math.log(len(VERBS))
PREDICTED = 8  # six more words, the full stop, the end


def sentences(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)

    def one() -> str:
        many = rng.random() < 0.5
        det, s, v = ("two", "s", "") if many else ("one", "", "s")
        noun, other = rng.choice(NOUNS) + s, rng.choice(NOUNS)
        verb, *adjectives = rng.choice(VERBS) + v, rng.choice(ADJECTIVES), rng.choice(ADJECTIVES)
        return f"{det} {adjectives[0]} {noun} {verb} the {adjectives[1]} {other}."

    return [one() for _ in range(count)]


# ---- translate --------------------------------------------------------------------------------------


def test_translate_learns_to_reverse(tmp_path: Path) -> None:
    rng = random.Random(0)
    words = ["".join(letters) for length in (2, 3, 4, 5) for letters in product("abcd", repeat=length)]
    rows = [f"{word}\t{word[::-1]}" for word in words]
    rng.shuffle(rows)
    held = written(tmp_path / "valid.tsv", rows[:200])
    (result,) = trained(
        tmp_path / "run",
        "translate",
        {"train": written(tmp_path / "train.tsv", rows[200:]), "valid": held},
        tokenizer={"kind": "char"},
        model=SMALL,
        training={
            "max_steps": 320,
            "batch_tokens": 900,
            "lr": 3e-3,
            "lr_scheduler": "cosine",
            "label_smoothing": 0.0,
        },
    )
    assert result["exact"] > 0.99


def test_lstm_translator_learns(tmp_path: Path) -> None:
    rows = [f"{line}\t{line.upper()}" for line in sentences(300, 1)]
    train = written(tmp_path / "train.tsv", rows)
    first, *_, last = trained(
        tmp_path / "run",
        "translate",
        {"train": train, "valid": 0.1},
        tokenizer={"kind": "word"},
        model={"preset": "lstm", "d_model": 64, "num_layers": 1, "dropout": 0.0},
        training={
            "max_steps": 60,
            "batch_tokens": 1500,
            "lr": 1e-2,
            "eval_steps": 20,
            "label_smoothing": 0.0,
        },
    )
    assert last["loss"] < 0.5 * first["loss"]
    assert type(glassformer.load(tmp_path / "run" / "model").spec).__name__ == "LSTMEncoderDecoderSpec"


def test_published_layout_is_fine_tuned(tmp_path: Path) -> None:
    """The base folder is unchanged, and the new model has its layout."""
    rows = [f"{line}\t{line}" for line in sentences(200, 2)]
    plan = TokenizerPlan(kind="word", vocab_size=100)
    tokenizer = train_tokenizer((row.split("\t")[0] for row in rows), plan)
    torch.manual_seed(0)
    words = {"vocab_size": tokenizer.vocab_size, "pad_id": 0, "start_id": 0}
    base = glassformer.save(
        glassformer.Bundle(model=glassformer.tiny("marian", **words), tokenizer=tokenizer), tmp_path / "base"
    )
    before = {path.name: path.read_bytes() for path in base.iterdir()}
    first, *_, last = trained(
        tmp_path / "run",
        "translate",
        {"train": written(tmp_path / "train.tsv", rows), "valid": 0.1},
        model={"folder": str(base)},
        training={"max_steps": 40, "batch_tokens": 1500, "lr": 1e-2, "eval_steps": 10},
    )
    assert last["loss"] < 0.8 * first["loss"]
    assert {path.name: path.read_bytes() for path in base.iterdir()} == before
    bundle = glassformer.load(tmp_path / "run" / "model")
    assert bundle.family == "marian"
    assert (
        bundle.tokenizer is not None
        and bundle.tokenizer.encode("one cat").ids == tokenizer.encode("one cat").ids
    )


# ---- lm ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["gpt2", "lstm"])
def test_language_model_reaches_the_entropy_of_the_grammar(tmp_path: Path, preset: str) -> None:
    """No model can beat the grammar's entropy; a good one comes close."""
    held = sentences(100, 4)
    words = {"d_model": 48, "num_layers": 2}
    if preset != "lstm":
        words |= {"num_heads": 4, "d_ff": 96}
    (result,) = trained(
        tmp_path / "run",
        "lm",
        {
            "train": written(tmp_path / "train.txt", sentences(600, 3)),
            "valid": written(tmp_path / "valid.txt", held),
            "sample_by": "line",
            "context_length": 8 * (1 + PREDICTED),  # so that no sentence lies in two blocks
        },
        tokenizer={"kind": "word"},
        model={"preset": preset, **words},
        training={"max_steps": 120, "batch_tokens": 1024, "lr": 1e-2},
    )
    counts = Counter(word for line in held for word in line.replace(".", " . </s>").split()[1:])
    total = sum(counts.values())
    unigram = -sum(n / total * math.log(n / total) for n in counts.values())
    assert total == PREDICTED * len(held)
    assert 0.97 * ENTROPY / PREDICTED < result["loss"] < 1.12 * ENTROPY / PREDICTED < 0.5 * unigram
    assert math.isclose(result["perplexity"], math.exp(result["loss"]))
    letters = sum(len(line) - len(line.split()[0]) for line in held)
    assert math.isclose(result["bits_per_character"], result["loss"] * total / math.log(2) / letters)
    # the loss of packed blocks is that of every sentence read alone, by the model as it was saved
    bundle = glassformer.load(tmp_path / "run" / "model")
    tokenizer: Any = bundle.tokenizer
    alone = 0.0
    for line in held:
        ids = torch.tensor([[*tokenizer.encode(line, special=False).ids, tokenizer.eos_id]])
        with torch.no_grad():
            scores = bundle.model(ids[:, :-1]).log_softmax(-1)
        alone -= float(scores.gather(-1, ids[:, 1:, None]).sum())
    if preset != "lstm":  # which reads on from one sentence into the next
        assert math.isclose(alone / total, result["loss"], rel_tol=1e-4)


def test_language_model_is_fine_tuned(tmp_path: Path) -> None:
    text = written(tmp_path / "a.txt", sentences(200, 5))
    other = written(tmp_path / "b.txt", [line.replace("the", "that") for line in sentences(200, 6)])
    data = {"sample_by": "line", "context_length": 32}
    tokenizer = {"kind": "char"}
    model = {"d_model": 32, "num_heads": 4, "d_ff": 64, "num_layers": 1}
    words = {"max_steps": 40, "batch_tokens": 2048, "lr": 1e-2}
    trained(tmp_path / "one", "lm", {"train": text, **data}, tokenizer=tokenizer, model=model, training=words)
    first, *_, last = trained(
        tmp_path / "two",
        "lm",
        {"train": other, **data},
        model={"folder": str(tmp_path / "one" / "model")},
        training={**words, "max_steps": 30, "lr": 3e-3, "eval_steps": 10},
    )
    assert last["loss"] < first["loss"] < 2.0  # nats a letter: what was learned before is not lost
    bundle = glassformer.load(tmp_path / "two" / "model")
    assert bundle.family == "gpt2" and bundle.generation["eos_token_id"] == 3


def test_the_end_of_a_single_document_is_held_out(tmp_path: Path) -> None:
    text = " ".join(sentences(60, 7))
    path = tmp_path / "text.txt"
    path.write_text(text, encoding="utf-8")
    trained(
        tmp_path / "run",
        "lm",
        {"train": str(path), "valid": 0.1, "context_length": 32},
        tokenizer={"kind": "char"},
        model={"d_model": 16, "num_heads": 2, "num_layers": 1},
        training={"max_steps": 2, "batch_tokens": 512},
    )
    run_facts = facts(tmp_path / "run")
    learned, held = (
        run_facts["training tokens"] - 1,
        run_facts["validation tokens"] - 1,
    )  # without the end tokens
    assert learned + held == len(text)
    assert 0.1 * len(text) <= held < 0.1 * len(text) + 20


# ---- restore ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bpe", "unigram", "byte", "word", "char"])
def test_corruption_moves_and_removes_whole_words_only(tmp_path: Path, kind: Any) -> None:
    full = sentences(60, 8)
    tokenizer = train_tokenizer(full, TokenizerPlan(kind=kind, vocab_size=300, tags=(GAP,)))
    ids = [encoded.ids for encoded in tokenizer.encode_batch([PREFIX + line for line in full])]
    store = write_store(tmp_path / "store", ("text",), ((row,) for row in ids), max_id=299)
    gap = tokenizer.token_id(GAP)
    how = Corruption(trim=0.5, gap=0.5, shuffle=0.5, gap_id=gap, starts_word=word_starts(tokenizer))
    examples = DenoisingExamples(store, corruption=how, seed=1, pad_id=0, start_id=3)
    changed = gaps = 0
    for n, line in enumerate(full):
        damaged, target = examples.row(n, 0)
        assert target.tolist() == ids[n] and damaged[-1] == tokenizer.eos_id
        assert len(damaged) <= len(target)
        words = normalize_spaces(tokenizer.decode(damaged)).split()
        assert words and not Counter(words) - Counter(line.split())
        changed += words != line.split()
        gaps += gap in damaged
        assert examples.row(n, 0)[0].tolist() == damaged.tolist()
    assert changed > 40 and gaps > 15
    rows = np.array([7, 2, 59, 0])  # corruption does not depend on the rest of the batch
    sides, lengths = examples.gather(rows, 3)
    for side, corrupted in enumerate(sides):
        alone = [examples.row(int(n), 3)[side].tolist() for n in rows]
        assert [row.tolist() for row in np.split(corrupted, lengths[:, side].cumsum()[:-1])] == alone
    rows = np.arange(20)
    one, other = (examples.batch(rows, epoch=epoch)["src"] for epoch in (0, 1))
    assert one.shape != other.shape or (one != other).any()


RESTORE = {"trim_prob": 0.0, "gap_prob": 0.3, "shuffle_prob": 0.8}


def test_restore_beats_the_corrupted_sentences(tmp_path: Path) -> None:
    (result,) = trained(
        tmp_path / "run",
        "restore",
        {
            "train": written(tmp_path / "train.txt", sentences(800, 9)),
            "valid": written(tmp_path / "valid.txt", sentences(150, 10)),
            **RESTORE,
        },
        tokenizer={"kind": "word"},
        model=SMALL,
        training={
            "max_steps": 130,
            "batch_tokens": 1200,
            "lr": 4e-3,
            "lr_scheduler": "cosine",
            "label_smoothing": 0.0,
        },
    )
    left = facts(tmp_path / "run")["corrupted sentences unchanged"]
    assert left["exact"] < 0.25 and left["chrf"] < 80
    assert result["exact"] > left["exact"] + 0.3
    assert result["chrf"] > left["chrf"] + 10
    bundle = glassformer.load(tmp_path / "run" / "model")
    assert bundle.job == JobInfo(name="restore", before=" ", gap=GAP)
