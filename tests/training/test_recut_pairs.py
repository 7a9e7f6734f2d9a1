"""Pairs cut anew in training: the same texts in other tokens, never more of them than was planned for."""

import random
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassformer.data.examples import IGNORED
from glassformer.data.recut import WHOLE
from glassformer.errors import GlassformerError
from glassformer.tokenization import Side, TokenizerPlan, load_tokenizer, train_tokenizer
from glassformer.training.data_loader import batches_of
from glassformer.training.jobs.translate import Translate
from glassformer.training.recipe import Recipe, recipe_from
from glassformer.training.run import run
from glassformer.training.text_encoding import halves_of
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


def recipe(place: Path, *, recut: Any = CHANCE, tokenizer: Any = None, **training: Any) -> Recipe:
    return recipe_from(
        {
            "job": "translate",
            "data": {"train": table(place, 300), "valid": 0.2, "to": "to", "recut": recut, "max_len": 30},
            "tokenizer": {"kind": "bpe", "vocab_size": 220, **(tokenizer or {})},
            "model": {
                "preset": "original",
                "d_model": 16,
                "num_heads": 2,
                "d_ff": 32,
                "num_layers": 1,
                "dropout": 0.1,
            },
            "training": {"device": "cpu", "batch": 400, "validate_every": 10**6, **training},
        }
    )


def gathered(place: Path, **words: Any) -> Translate:
    job = Translate(recipe(place, **words), place / "run", lambda sentence: None)
    job.gather()
    return job


@pytest.mark.parametrize(
    "tokenizer",
    [{}, {"kind": "unigram"}, {"kind": "byte", "vocab_size": 400}, {"sides": "separate"}],
)
def test_a_row_stays_what_it_says_within_its_bound(tmp_path: Path, tokenizer: Any) -> None:
    job = gathered(tmp_path, tokenizer=tokenizer)
    learned, words = job.learned(), job.tokenizer
    rows = np.arange(len(learned))
    stored, bounds = job.train.lengths(rows), learned.lengths(rows)
    assert (stored <= bounds).all() and bounds.max() <= 30
    assert (bounds <= np.ceil(stored * (1 + 3 * CHANCE)) + 1).all()
    epochs = [[learned.row(n, epoch) for n in range(len(learned))] for epoch in (0, 1)]
    for n, (pair, given) in enumerate(zip(epochs[0], rows_of(job.train), strict=True)):
        for side, first, made, bound in zip(SIDES, given, pair, bounds[n], strict=True):
            assert len(made) <= bound
            assert words.decode(made, side=side) == words.decode(first, side=side)
            marks = [[one for one in ids if one in words.special_ids] for ids in (first, made)]
            assert marks[0] == marks[1] and made[-1] == words.eos_id
        assert pair[0][0] == given[0][0]  # the tag
    together, lengths = learned.together(rows[::-1], 1)
    for n, made in enumerate(together):
        beside = np.split(made, lengths[:, n].cumsum()[:-1])[::-1]
        one, other = ([pair[n].tolist() for pair in epoch] for epoch in epochs)
        assert [row.tolist() for row in beside] == other
        assert sum(a != b for a, b in zip(one, other, strict=True)) > len(rows) / 2


def test_tokens_are_halved_as_often_as_was_asked_and_otherwise_on_the_other_side(tmp_path: Path) -> None:
    job, chance, epochs = gathered(tmp_path, recut=0.05), 0.05, 40
    one, other = job._recut("source"), job._recut("target")
    rows = np.arange(len(job.train))
    (ids, _), stored = job.train.together(rows)
    made = [[cut.whole(ids, stored[:, 0], rows, epoch=n)[0] for n in range(epochs)] for cut in (one, other)]
    halved = sum(len(each) - len(ids) for each in made[0]) / epochs / int((one.table[ids, 0] != WHOLE).sum())
    assert 0.9 * 3 * chance < halved < 1.1 * ((1 + chance) ** 3 - 1)  # three turns, halves among them
    assert all(a.tolist() != b.tolist() for a, b in zip(*made, strict=True))


@pytest.mark.parametrize("batching", ["lengths", "rows"])
def test_batches_keep_what_was_planned_and_validation_is_not_cut(tmp_path: Path, batching: str) -> None:
    job = gathered(tmp_path, batching=batching)
    task, held, tokens = job.task(), job.held(), 400
    batches, examples = batches_of(task, job.recipe.training, 1)
    for batch in islice(batches.stream(), 60):  # over several epochs
        arrays = examples.batch(batch.rows, epoch=batch.epoch)
        assert arrays["src"].size + arrays["tgt"].size <= tokens
        kept = [int((arrays[name] != fill).sum()) for name, fill in (("src", 0), ("labels", IGNORED))]
        _, lengths = job.learned().together(batch.rows[batch.rows >= 0], batch.epoch)
        assert kept == lengths.sum(0).tolist()
    both, stored = held.together(np.arange(len(held)), 5)
    first, lengths = job.valid.together(np.arange(len(held)))
    assert all((one == two).all() for one, two in zip(both, first, strict=True)) and (stored == lengths).all()


def test_without_a_chance_batches_are_the_stored_ones(tmp_path: Path) -> None:
    job = gathered(tmp_path, recut=0.0)
    learned = job.learned()
    rows = np.arange(len(learned))
    assert (learned.lengths(rows) == job.train.lengths(rows)).all()
    both, _ = learned.together(rows, 3)
    first, _ = job.train.together(rows)
    assert all((one == two).all() for one, two in zip(both, first, strict=True))


@pytest.mark.parametrize("batching", ["lengths", "rows"])
def test_a_run_taken_up_again_ends_in_the_same_bits(tmp_path: Path, batching: str) -> None:
    words: dict[str, Any] = {
        "lr": 1e-3,
        "schedule": "constant",
        "warmup": 1,
        "final": "last",
        "batching": batching,
    }
    for folder, stops in (("whole", (40,)), ("stopped", (17, 40))):
        for steps in stops:
            asked = recipe(tmp_path, steps=steps, **words)
            assert run(asked, tmp_path / folder, say=lambda sentence: None).ending == "finished"
    whole, stopped = (
        (tmp_path / folder / "model" / "model.safetensors").read_bytes() for folder in ("whole", "stopped")
    )
    assert whole == stopped


def test_only_tokens_that_read_the_same_take_the_place_of_one(tmp_path: Path) -> None:
    marks = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    (tmp_path / "vocab.txt").write_text("\n".join((*marks, "play", "ing", "playing")))
    pieces = load_tokenizer(tmp_path)
    assert pieces is not None and pieces.decode([5, 6]) == "play ing"
    letters = train_tokenizer(["ab ba"], TokenizerPlan(kind="char", vocab_size=20))
    for tokenizer in (pieces, letters):
        with pytest.raises(GlassformerError, match=r"data\.recut needs tokens that shorter ones spell"):
            halves_of(tokenizer)
