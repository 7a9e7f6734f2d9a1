"""Prepared data: the ids that plain encoding gives, cached, and rebuilt or refused when something changed."""

import gzip
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from glassformer.tokenization import TokenizerPlan, encode_tagged, train_tokenizer
from glassformer.training import data_cache, encoding
from glassformer.training.data_cache import DataChangedError
from glassformer.training.job import create_job
from glassformer.training.recipe import parse_recipe
from tests.data.files import rows_of

REUSED, REBUILT = "using the data prepared", "preparing the data again"
WORDS = "the old sea sang to a grey dog and Käse über 바다 노래 . , !".split()


def texts(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 30))) for _ in range(count)]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    created = train_tokenizer(
        texts(300, 0), TokenizerPlan(vocab_size=120, tags=(">>de<<", ">>ko<<", "<gap>"))
    )
    created.save(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def prepare_job(folder: Path, job: str, data: dict[str, Any], tokenizer: Path) -> tuple[Any, list[str]]:
    """A job with its data gathered, and what it said."""
    messages: list[str] = []
    recipe = parse_recipe({"job": job, "data": data, "tokenizer": {"folder": str(tokenizer)}})
    created = create_job(recipe, folder, messages.append)
    created.prepare_data()
    return created, messages


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few hundred rows are many groups, in flight at the same time."""
    monkeypatch.setattr(encoding, "GROUP_ROWS", 7)
    monkeypatch.setattr(encoding, "GROUP_CHARACTERS", 300)


@pytest.mark.usefixtures("small_groups")
def test_batched_encoding_of_pairs_equals_encoding_one_by_one(tmp_path: Path, tokenizer: Path) -> None:
    pairs = list(zip(texts(400, 1), texts(400, 2), ["de", "ko"] * 200, strict=True))
    pairs += [(target, source, to) for source, target, to in pairs]  # each sentence on either side
    path = tmp_path / "train.tsv.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines("\t".join(row) + "\n" for row in [("source", "target", "to"), *pairs])
    data = {"train": [str(path)], "valid": [str(path)], "language_column": "to", "max_len": 25}
    job, _ = prepare_job(tmp_path / "run", "translate", data, tokenizer)
    expected = []
    for source, target, to in pairs:
        ids = (
            encode_tagged(job.corpus.tokenizer, [source], f">>{to}<<")[0].ids,
            job.corpus.tokenizer.encode(target).ids,
        )
        if max(map(len, ids)) <= 25:
            expected.append([*ids])
    assert rows_of(job.corpus.train) == expected and 0 < len(expected) < len(pairs)
    assert job.facts["pairs over max_len"] == len(pairs) - len(expected)


@pytest.mark.usefixtures("small_groups")
def test_batched_encoding_of_documents_labels_and_sentences_equals_encoding_one_by_one(
    tmp_path: Path, tokenizer: Path
) -> None:
    lines = texts(200, 3)
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(f"{a}\n{b}" for a, b in zip(lines[::2], lines[1::2], strict=True)), "utf-8")
    data: dict[str, Any] = {"train": [str(path)], "valid": [str(path)]}
    job, _ = prepare_job(tmp_path / "lm", "lm", data, tokenizer)
    documents = [f"{a}\n{b}" for a, b in zip(lines[::2], lines[1::2], strict=True)]
    encoded = [job.corpus.tokenizer.encode(text, special=False) for text in documents]
    assert rows_of(job.corpus.train) == [[[*one.ids, job.corpus.eos_id]] for one in encoded]
    predicted = [text[one.offsets[0][1] :] for text, one in zip(documents, encoded, strict=True)]
    assert job.corpus.notes["valid"]["characters"] == sum(map(len, predicted))
    assert job.corpus.notes["valid"]["bytes"] == sum(len(text.encode()) for text in predicted)

    job, _ = prepare_job(tmp_path / "restore", "restore", {**data, "max_len": 25}, tokenizer)
    ids = [job.corpus.tokenizer.encode(" " + " ".join(line.split())).ids for line in lines]
    assert rows_of(job.corpus.train) == [[one] for one in ids if len(one) <= 25]

    table = tmp_path / "labels.tsv"
    rows = [(line, "gb"[n % 2]) for n, line in enumerate(lines)]
    table.write_text("text\tlabel\n" + "".join(f"{a}\t{b}\n" for a, b in rows), "utf-8")
    data = {"train": [str(table)], "valid": [str(table)], "max_len": 12}
    job, _ = prepare_job(tmp_path / "classify", "classify", data, tokenizer)
    ids = [job.corpus.tokenizer.encode(line).ids for line in lines]
    cut = [one if len(one) <= 12 else [*one[:11], one[-1]] for one in ids]
    assert rows_of(job.corpus.train) == [[one, [1 - n % 2]] for n, one in enumerate(cut)]


@pytest.fixture
def prepare(tmp_path: Path, tokenizer: Path) -> Callable[..., tuple[Any, str]]:
    (tmp_path / "train.tsv").write_text("".join(f"{a}\t{a.upper()}\n" for a in texts(50, 4)))
    data = {"train": [str(tmp_path / "train.tsv")], "valid": [str(tmp_path / "train.tsv")]}

    def prepare_again(max_len: int = 60) -> tuple[Any, str]:
        job, messages = prepare_job(tmp_path / "run", "translate", {**data, "max_len": max_len}, tokenizer)
        return job, "\n".join(messages)

    return prepare_again


def test_cache_is_reused_until_something_changes(
    tmp_path: Path, tokenizer: Path, prepare: Callable[..., tuple[Any, str]]
) -> None:
    assert REUSED not in prepare()[1]
    ids = tmp_path / "run" / "data" / "valid" / "source.ids"
    created = ids.stat().st_mtime_ns
    assert REUSED in prepare()[1] and ids.stat().st_mtime_ns == created

    def changed() -> None:
        job, messages = prepare(**settings)
        assert REUSED not in messages
        expected = [
            job.corpus.tokenizer.encode(line.split("\t")[0]).ids for line in train.read_text().splitlines()
        ]
        most = settings.get("max_len", 60)
        assert [source for source, _ in rows_of(job.corpus.train)] == [
            one for one in expected if len(one) <= most
        ]
        assert REUSED in prepare(**settings)[1]

    settings: dict[str, int] = {}
    train = tmp_path / "train.tsv"
    train.write_text(train.read_text() + "the sea\tthe sea\n")
    changed()
    train_tokenizer(texts(300, 6), TokenizerPlan(vocab_size=90)).save(tokenizer)
    changed()
    settings = {"max_len": 100}
    changed()

    # what a run has been trained on is not exchanged under its feet
    (tmp_path / "run" / "checkpoints").mkdir()
    assert REUSED in prepare(max_len=100)[1]
    content = train.read_bytes()
    train.write_bytes(content.replace(b"sea", b"ear"))  # as long as before
    with pytest.raises(DataChangedError):
        prepare(max_len=100)
    train.write_bytes(content)  # put back, and so as it was but for its time
    assert REUSED in prepare(max_len=100)[1]


def test_touched_file_keeps_the_cache_valid(
    tmp_path: Path, prepare: Callable[..., tuple[Any, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare()
    (tmp_path / "run" / "checkpoints").mkdir()
    for time in (1, 2):
        os.utime(tmp_path / "train.tsv", ns=(time, time))
        assert REUSED in prepare()[1]
    # the new time is known from then on, and nothing is read to find out that nothing has changed
    monkeypatch.setattr(data_cache, "stamp_by_content", lambda path: pytest.fail(f"{path} is read"))
    assert REUSED in prepare()[1]
    os.utime(tmp_path / "train.tsv", ns=(3, 3))
    monkeypatch.undo()
    shutil.rmtree(tmp_path / "run" / "data")  # deleted to free space: the same data is prepared again
    assert REBUILT in prepare()[1]
    assert REUSED in prepare()[1]


@pytest.mark.parametrize("trained", [False, True])
def test_damaged_cache_is_rebuilt(
    tmp_path: Path, prepare: Callable[..., tuple[Any, str]], trained: bool
) -> None:
    expected = rows_of(prepare()[0].corpus.train)
    data = tmp_path / "run" / "data"
    if trained:
        (tmp_path / "run" / "checkpoints").mkdir()

    def flipped(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    harms: list[Callable[[Path], None]] = [flipped, Path.unlink, lambda path: os.truncate(path, 8)]
    for name in (
        "checksums.json",
        "valid/source.ids",
        "valid/target.ends",
        "valid/store.json",
        "valid/texts.json",
    ):
        for harm in harms:
            harm(data / name)
            job, messages = prepare()
            assert REBUILT in messages and rows_of(job.corpus.train) == expected
    assert REUSED in prepare()[1]


Gather = Callable[..., tuple[Any, str]]


@pytest.fixture
def learning(tmp_path: Path) -> Gather:
    """A run that learns its tokenizer from its own file."""

    def gather(seed: int | None = None) -> tuple[Any, str]:
        train, messages = tmp_path / "own.tsv", list[str]()
        if seed is not None:
            train.write_text("".join(f"{a}\t{a.upper()}\n" for a in texts(50, seed)))
        data = {"train": [str(train)], "valid": 0.1}
        recipe = parse_recipe({"job": "translate", "data": data, "tokenizer": {"vocab_size": 80}})
        job: Any = create_job(recipe, tmp_path / "own", messages.append)
        job.prepare_data()
        return job, "\n".join(messages)

    return gather


def test_trained_run_rejects_other_data(tmp_path: Path, learning: Gather) -> None:
    run = tmp_path / "own"
    expected = rows_of(learning(seed=1)[0].corpus.train)
    vocabulary = (run / "tokenizer" / "tokenizer.json").read_bytes()
    (run / "checkpoints").mkdir()

    shutil.rmtree(run / "data")  # as if it were deleted to make room, or died while being made anew
    for left in (False, True):
        if left:
            (run / "data").mkdir()
        (tmp_path / "own.tsv").rename(tmp_path / "kept.tsv")
        with pytest.raises(DataChangedError):
            learning(seed=2)
        assert (run / "tokenizer" / "tokenizer.json").read_bytes() == vocabulary
        (tmp_path / "kept.tsv").rename(tmp_path / "own.tsv")
    job, messages = learning()
    assert REBUILT in messages and "training a" not in messages and rows_of(job.corpus.train) == expected
    assert REUSED in learning()[1]


@pytest.mark.parametrize("trained", [False, True])
def test_changed_tokenizer_invalidates_the_cache(tmp_path: Path, learning: Gather, trained: bool) -> None:
    expected = rows_of(learning(seed=1)[0].corpus.train)
    path = tmp_path / "own" / "tokenizer" / "tokenizer.json"
    vocabulary = path.read_bytes()
    shutil.copytree(path.parent, tmp_path / "copied")
    if trained:
        (tmp_path / "own" / "checkpoints").mkdir()

    def swapped() -> None:
        content = json.loads(vocabulary)
        pieces = content["model"]["vocab"]
        pieces["s"], pieces["e"] = pieces["e"], pieces["s"]
        path.write_text(json.dumps(content))

    for harm in (swapped, lambda: shutil.rmtree(path.parent)):
        harm()
        if trained:
            with pytest.raises(DataChangedError):
                learning()
            shutil.copytree(tmp_path / "copied", path.parent, dirs_exist_ok=True)
        job, messages = learning()
        assert (REUSED in messages) == trained and rows_of(job.corpus.train) == expected
        assert path.read_bytes() == vocabulary


def test_skipped_pairs_do_not_count_for_the_source_unit(tmp_path: Path, tokenizer: Path) -> None:
    """Paragraphs that are too long are no part of what a model learns."""
    lines = ["the old dog ."] * 200 + ["The old sea sang. " * 20] * 60
    lines[10] = "The sea. A grey dog."  # one that is kept
    (tmp_path / "mixed.tsv").write_text("".join(f"{line.strip()}\tthe sea\n" for line in lines))
    data = {"train": [str(tmp_path / "mixed.tsv")], "valid": [str(tmp_path / "mixed.tsv")]}
    units = {
        most: prepare_job(tmp_path / str(most), "translate", {**data, "max_len": most}, tokenizer)[0]
        for most in (40, 400)
    }
    assert [len(job.corpus.train) for job in units.values()] == [200, 260]
    assert [job.source_unit for job in units.values()] == ["sentence", "line"]


def test_moved_image_changes_its_class(tmp_path: Path) -> None:
    root, count = tmp_path / "pictures", 40
    for name in "ab":
        (root / name).mkdir(parents=True)
    for n in range(count):
        Image.fromarray(np.full((8, 8), n, np.uint8)).save(root / "ab"[n // 20] / f"{n:02}.png")

    def class_and_cache() -> tuple[str, bool]:
        """The classes of all shades, from the darkest on, and whether they were known before."""
        messages: list[str] = []
        recipe = parse_recipe({"job": "classify", "data": {"train": [str(root)], "valid": 0.2}})
        job: Any = create_job(recipe, tmp_path / "run", messages.append)
        job.prepare_data()
        rows = np.arange(count)
        shades, labels = job.train_set.images(rows)[:, 0, 0, 0], job.train_set.labels(rows)
        return "".join(job.train_set.classes[n] for n in labels[shades.argsort()]), REUSED in str(messages)

    assert class_and_cache() == ("a" * 20 + "b" * 20, False)
    assert class_and_cache() == ("a" * 20 + "b" * 20, True)
    (root / "b" / "20.png").rename(root / "a" / "20.png")  # as old as before, and the names in one order
    assert class_and_cache() == ("a" * 21 + "b" * 19, False)
    (root / "b").rename(root / "c")
    assert class_and_cache() == ("a" * 21 + "c" * 19, False)
    assert class_and_cache() == ("a" * 21 + "c" * 19, True)
