"""BPE dropout: the same texts in other tokens, never longer than planned."""

import random
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassformer.data.examples import IGNORE_INDEX, NO_SPLIT, PairExamples
from glassformer.errors import UnsupportedError
from glassformer.tokenization import Side, TokenizerPlan, load_tokenizer, train_tokenizer
from glassformer.training.data_cache import no_log
from glassformer.training.data_loader import make_batches
from glassformer.training.jobs.seq2seq import TranslateJob
from glassformer.training.jobs.text import token_splits
from glassformer.training.recipe import Recipe, parse_recipe
from glassformer.training.run import run
from tests.data.files import rows_of

CHANCE = 0.2
SIDES: tuple[Side, Side] = ("source", "target")
SYLLABLES = ("ba", "co", "du", "fe", "gi", "lo", "ma", "né", "강", "은")


def table(place: Path, count: int) -> str:
    """Sentences of made-up words, as long as chance has it, into two languages."""
    rng = random.Random(1)
    words = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(60)]
    rows = []
    for n in range(count):
        text = rng.choices(words, k=rng.randint(1, 12))
        rows.append((" ".join(text), " ".join(word[::-1] for word in text) + " !", ("de", "fr")[n % 2]))
    path = place / "pairs.tsv"
    path.write_text("".join("\t".join(row) + "\n" for row in [("source", "target", "to"), *rows]))
    return str(path)


def recipe(place: Path, *, bpe_dropout: Any = CHANCE, tokenizer: Any = None, **training: Any) -> Recipe:
    return parse_recipe(
        {
            "job": "translate",
            "data": {
                "train": table(place, 300),
                "valid": 0.2,
                "language_column": "to",
                "bpe_dropout": bpe_dropout,
                "max_len": 30,
            },
            "tokenizer": {"kind": "bpe", "vocab_size": 220, **(tokenizer or {})},
            "model": {
                "preset": "original",
                "d_model": 16,
                "num_heads": 2,
                "d_ff": 32,
                "num_layers": 1,
                "dropout": 0.1,
            },
            "training": {"device": "cpu", "batch_tokens": 400, "eval_steps": 10**6, **training},
        }
    )


def gathered(place: Path, **words: Any) -> TranslateJob:
    job = TranslateJob(recipe(place, **words), place / "run", no_log)
    job.prepare_data()
    return job


@pytest.mark.parametrize(
    "tokenizer", [{}, {"kind": "unigram"}, {"kind": "byte", "vocab_size": 400}, {"separate_vocabs": True}]
)
def test_text_is_unchanged_and_length_within_its_bound(tmp_path: Path, tokenizer: Any) -> None:
    job = gathered(tmp_path, tokenizer=tokenizer)
    learned, words = job.train_examples(), job.corpus.tokenizer
    rows = np.arange(len(learned))
    stored, bounds = job.corpus.train.lengths(rows), learned.lengths(rows)
    assert (stored <= bounds).all() and bounds.max() <= 30
    assert (bounds <= np.ceil(stored * (1 + 3 * CHANCE)) + 1).all()
    epochs = [[learned.row(n, epoch) for n in range(len(learned))] for epoch in (0, 1)]
    for n, (pair, given) in enumerate(zip(epochs[0], rows_of(job.corpus.train), strict=True)):
        for side, first, made, bound in zip(SIDES, given, pair, bounds[n], strict=True):
            assert len(made) <= bound
            assert words.decode(made, side=side) == words.decode(first, side=side)
            marks = [[one for one in ids if one in words.special_ids] for ids in (first, made)]
            assert marks[0] == marks[1] and made[-1] == words.eos_id
        assert pair[0][0] == given[0][0]  # the tag
    together, lengths = learned.gather(rows[::-1], 1)
    for n, made in enumerate(together):
        beside = np.split(made, lengths[:, n].cumsum()[:-1])[::-1]
        one, other = ([pair[n].tolist() for pair in epoch] for epoch in epochs)
        assert [row.tolist() for row in beside] == other
        assert sum(a != b for a, b in zip(one, other, strict=True)) > len(rows) / 2


def test_tokens_are_split_as_often_as_requested_and_independently_per_side(tmp_path: Path) -> None:
    job, chance, epochs = gathered(tmp_path, bpe_dropout=0.05), 0.05, 40
    examples: Any = job.train_examples()
    one, other = examples.sides
    rows = np.arange(len(job.corpus.train))
    (ids, _), stored = job.corpus.train.gather(rows)
    made = [
        [cut.without_truncation(ids, stored[:, 0], rows, epoch=n)[0] for n in range(epochs)]
        for cut in (one, other)
    ]
    halved = (
        sum(len(each) - len(ids) for each in made[0]) / epochs / int((one.table[ids, 0] != NO_SPLIT).sum())
    )
    assert 0.9 * 3 * chance < halved < 1.1 * ((1 + chance) ** 3 - 1)  # three turns, halves among them
    assert all(a.tolist() != b.tolist() for a, b in zip(*made, strict=True))


@pytest.mark.parametrize("packing", [False, True])
def test_batches_keep_their_planned_size_and_validation_is_unchanged(tmp_path: Path, packing: bool) -> None:
    job = gathered(tmp_path, packing=packing)
    task, tokens = job.task(), 400
    held = PairExamples(job.corpus.valid, pad_id=job.corpus.pad_id, start_id=job.start_id)
    batches, examples = make_batches(task, job.recipe.training, 1)
    for batch in islice(batches.stream(), 60):  # over several epochs
        arrays = examples.batch(batch.rows, epoch=batch.epoch)
        assert arrays["src"].size + arrays["tgt"].size <= tokens
        kept = [int((arrays[name] != fill).sum()) for name, fill in (("src", 0), ("labels", IGNORE_INDEX))]
        _, lengths = job.train_examples().gather(batch.rows[batch.rows >= 0], batch.epoch)
        assert kept == lengths.sum(0).tolist()
    both, stored = held.gather(np.arange(len(held)), 5)
    first, lengths = job.corpus.valid.gather(np.arange(len(held)))
    assert all((one == two).all() for one, two in zip(both, first, strict=True)) and (stored == lengths).all()


@pytest.mark.parametrize("packing", [False, True])
def test_resume_is_bit_identical(tmp_path: Path, packing: bool) -> None:
    words: dict[str, Any] = {
        "lr": 1e-3,
        "lr_scheduler": "constant",
        "warmup_steps": 1,
        "load_best_model_at_end": False,
        "packing": packing,
    }
    for folder, stops in (("whole", (40,)), ("stopped", (17, 40))):
        for steps in stops:
            asked = recipe(tmp_path, max_steps=steps, **words)
            assert run(asked, tmp_path / folder, log=no_log).outcome == "finished"
    whole, stopped = (
        (tmp_path / folder / "model" / "model.safetensors").read_bytes() for folder in ("whole", "stopped")
    )
    assert whole == stopped


def test_only_splits_that_decode_alike_are_used(tmp_path: Path) -> None:
    marks = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    (tmp_path / "vocab.txt").write_text("\n".join((*marks, "play", "ing", "playing")))
    pieces = load_tokenizer(tmp_path)
    assert pieces is not None and pieces.decode([5, 6]) == "play ing"
    letters = train_tokenizer(["ab ba"], TokenizerPlan(kind="char", vocab_size=20))
    for tokenizer in (pieces, letters):
        with pytest.raises(UnsupportedError):
            token_splits(tokenizer)
