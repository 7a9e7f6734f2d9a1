"""BPE dropout: the same texts in other tokens, never longer than planned."""

import random
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassformer.data.bpe_dropout import NO_SPLIT
from glassformer.data.examples import IGNORE_INDEX, PairExamples
from glassformer.errors import UnsupportedError
from glassformer.tokenization import Side, TokenizerPlan, load_tokenizer, train_tokenizer
from glassformer.training.data_cache import no_log
from glassformer.training.data_loader import make_batches
from glassformer.training.encoding import token_splits
from glassformer.training.jobs.translate import TranslateJob
from glassformer.training.recipe import Recipe, parse_recipe
from glassformer.training.run import run
from tests.data.files import rows_of

CHANCE = 0.2
SIDES: tuple[Side, Side] = ("source", "target")
SYLLABLES = ("ba", "co", "du", "fe", "gi", "lo", "ma", "né", "강", "은")


def table(folder: Path, count: int) -> str:
    """Sentences of made-up words, as long as chance has it, into two languages."""
    rng = random.Random(1)
    options = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(60)]
    rows = []
    for n in range(count):
        text = rng.choices(options, k=rng.randint(1, 12))
        rows.append((" ".join(text), " ".join(word[::-1] for word in text) + " !", ("de", "fr")[n % 2]))
    path = folder / "pairs.tsv"
    path.write_text("".join("\t".join(row) + "\n" for row in [("source", "target", "to"), *rows]))
    return str(path)


def recipe(folder: Path, *, bpe_dropout: Any = CHANCE, tokenizer: Any = None, **training: Any) -> Recipe:
    return parse_recipe(
        {
            "job": "translate",
            "data": {
                "train": table(folder, 300),
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


def prepared_job(folder: Path, **options: Any) -> TranslateJob:
    job = TranslateJob(recipe(folder, **options), folder / "run", no_log)
    job.prepare_data()
    return job


@pytest.mark.parametrize(
    "tokenizer", [{}, {"kind": "unigram"}, {"kind": "byte", "vocab_size": 400}, {"separate_vocabs": True}]
)
def test_bpe_dropout_keeps_the_text_and_the_length_bound(tmp_path: Path, tokenizer: Any) -> None:
    job = prepared_job(tmp_path, tokenizer=tokenizer)
    learned, options = job.train_examples(), job.corpus.tokenizer
    rows = np.arange(len(learned))
    stored, bounds = job.corpus.train.lengths(rows), learned.lengths(rows)
    assert (stored <= bounds).all() and bounds.max() <= 30
    assert (bounds <= np.ceil(stored * (1 + 3 * CHANCE)) + 1).all()
    epochs = [[learned.row(n, epoch) for n in range(len(learned))] for epoch in (0, 1)]
    for n, (pair, stored_pair) in enumerate(zip(epochs[0], rows_of(job.corpus.train), strict=True)):
        for side, first, split_ids, bound in zip(SIDES, stored_pair, pair, bounds[n], strict=True):
            assert len(split_ids) <= bound
            assert options.decode(split_ids, side=side) == options.decode(first, side=side)
            marks = [[one for one in ids if one in options.special_ids] for ids in (first, split_ids)]
            assert marks[0] == marks[1] and split_ids[-1] == options.eos_id
        assert pair[0][0] == stored_pair[0][0]  # the tag
    together, lengths = learned.gather(rows[::-1], 1)
    for n, split_ids in enumerate(together):
        in_batch = np.split(split_ids, lengths[:, n].cumsum()[:-1])[::-1]
        one, other = ([pair[n].tolist() for pair in epoch] for epoch in epochs)
        assert [row.tolist() for row in in_batch] == other
        assert sum(a != b for a, b in zip(one, other, strict=True)) > len(rows) / 2


def test_tokens_are_split_with_the_requested_probability_independently_per_side(tmp_path: Path) -> None:
    job, chance, epochs = prepared_job(tmp_path, bpe_dropout=0.05), 0.05, 40
    examples: Any = job.train_examples()
    one, other = examples.sides
    rows = np.arange(len(job.corpus.train))
    (ids, _), stored = job.corpus.train.gather(rows)
    split_ids = [
        [cut.without_truncation(ids, stored[:, 0], rows, epoch=n)[0] for n in range(epochs)]
        for cut in (one, other)
    ]
    halved = (
        sum(len(each) - len(ids) for each in split_ids[0])
        / epochs
        / int((one.table[ids, 0] != NO_SPLIT).sum())
    )
    assert 0.9 * 3 * chance < halved < 1.1 * ((1 + chance) ** 3 - 1)  # three turns, halves among them
    assert all(a.tolist() != b.tolist() for a, b in zip(*split_ids, strict=True))


@pytest.mark.parametrize("packing", [False, True])
def test_batches_keep_their_planned_size_and_validation_is_unchanged(tmp_path: Path, packing: bool) -> None:
    job = prepared_job(tmp_path, packing=packing)
    task, tokens = job.plan(), 400
    held = PairExamples(job.corpus.valid, pad_id=job.corpus.pad_id, start_id=job.start_id)
    batches, examples = make_batches(task.train, job.recipe.training, seed=1, row_width=task.row_width)
    for batch in islice(batches.stream(), 60):  # over several epochs
        arrays = examples.batch(batch.rows, epoch=batch.epoch)
        assert arrays["src"].size + arrays["tgt"].size <= tokens
        token_counts = [
            int((arrays[name] != fill).sum()) for name, fill in (("src", 0), ("labels", IGNORE_INDEX))
        ]
        _, lengths = job.train_examples().gather(batch.rows[batch.rows >= 0], batch.epoch)
        assert token_counts == lengths.sum(0).tolist()
    sides, stored = held.gather(np.arange(len(held)), 5)
    first, lengths = job.corpus.valid.gather(np.arange(len(held)))
    assert (
        all((one == two).all() for one, two in zip(sides, first, strict=True)) and (stored == lengths).all()
    )


@pytest.mark.parametrize("packing", [False, True])
def test_resume_is_bit_identical(tmp_path: Path, packing: bool) -> None:
    options: dict[str, Any] = {
        "lr": 1e-3,
        "lr_scheduler": "constant",
        "warmup_steps": 1,
        "load_best_model_at_end": False,
        "packing": packing,
    }
    for folder, stops in (("whole", (40,)), ("stopped", (17, 40))):
        for steps in stops:
            request = recipe(tmp_path, max_steps=steps, **options)
            assert run(request, tmp_path / folder, log=no_log).outcome == "finished"
    full, stopped = (
        (tmp_path / folder / "model" / "model.safetensors").read_bytes() for folder in ("whole", "stopped")
    )
    assert full == stopped


def test_only_splits_that_decode_to_the_same_text_are_used(tmp_path: Path) -> None:
    marks = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    (tmp_path / "vocab.txt").write_text("\n".join((*marks, "play", "ing", "playing")))
    pieces = load_tokenizer(tmp_path)
    assert pieces is not None and pieces.decode([5, 6]) == "play ing"
    letters = train_tokenizer(["ab ba"], TokenizerPlan(kind="char", vocab_size=20))
    for tokenizer in (pieces, letters):
        with pytest.raises(UnsupportedError):
            token_splits(tokenizer)
