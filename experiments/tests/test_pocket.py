"""The data of the default translator: no leakage, no unknown tokens, answers match their tasks."""

import lzma
import random
import re
from collections import Counter

import pytest

from experiments import pocket, pocket_back_translation, pocket_polish, pocket_tokenizer
from experiments.paths import Workspace
from experiments.pocket_data import HELD, PHRASES, SAID, Pair, phrasebook, read, split_of, split_pairs, write
from experiments.pocket_text import normalized, tidy
from experiments.records import runs_of
from glassformer.errors import GlassformerError
from glassformer.training.recipe import read_recipe_dict

SIZES = (
    "model.d_model=16",
    "model.num_heads=2",
    "model.d_ff=32",
    "model.num_layers=1",
    "model.decoder_layers=1",
)
KINDS = {
    "tatoeba-de": "de",
    "tatoeba-ko": "ko",
    "debian-ko": "ko",
    "bible-ko": "ko-bible",
    "labels-ko": "ko-label",
}


def make_pairs(count: int, suffix: str = "is a text") -> list[Pair]:
    """Pairs of few enough texts that most stand in several, in other letters or with other signs."""
    rng = random.Random(1)
    pairs = []
    for _ in range(count):
        kind = rng.choice(list(KINDS))
        english, other = (
            rng.choice((str.title, str.upper, "{}!".format))(f"{side} {rng.randrange(900)} {suffix}")
            for side in "ab"
        )
        pairs.append(Pair(english=english, other=other, kind=kind, tag=KINDS[kind]))
    return pairs


def test_held_out_and_forbidden_texts_are_in_no_training_pair():
    pairs, forbidden = (
        make_pairs(2000),
        {normalized(f"{side} {number} is a text") for side in "ab" for number in range(20)},
    )
    parts = split_pairs(pairs, forbidden)
    learned = {normalized(text) for pair in parts["train"] for text in (pair.english, pair.other)}
    held = [pair for part in ("dev", "test") for pair in parts[part]]
    assert len(held) > 50 and len(learned) > 300
    assert not learned & forbidden
    assert not learned & {normalized(text) for pair in held for text in (pair.english, pair.other)}
    assert not {normalized(pair.english) for pair in parts["dev"]} & {
        normalized(pair.english) for pair in parts["test"]
    }
    assert {pair.kind for pair in held} <= set(HELD)


def test_only_the_english_of_held_out_phrases_is_excluded():
    parts = split_pairs(make_pairs(2000, ""), set())
    held = [pair for part in ("dev", "test") for pair in parts[part]]
    assert not {normalized(pair.english) for pair in parts["train"]} & {
        normalized(pair.english) for pair in held
    }
    assert {normalized(pair.other) for pair in parts["train"]} & {normalized(pair.other) for pair in held}


def test_tokenizer_has_byte_fallback_and_single_digits(tmp_path):
    rows = [["Der Hund ist alt .", "The dog is old .", "en"], ["개가 늙었다", "The dog is old .", "en"]]
    tokenizer = pocket_tokenizer.learn(rows * 20, tmp_path / "tokenizer", size=420, rare=2)
    for text in ("The dog is 1234 days old", "늙은 개 42", "ñ 漢 🐕", 'It\'s "so"'):
        ids = tokenizer.encode(text).ids
        assert tokenizer.unk_id not in ids
        assert tokenizer.decode(ids) == text
    pieces = tokenizer.tokens(tokenizer.encode("1234").ids)
    assert [piece.strip("▁") for piece in pieces if piece.strip("▁").isdigit()] == ["1", "2", "3", "4"]


def test_phrasebook_has_unique_normalized_phrases_in_four_languages():
    text = lzma.decompress(PHRASES.read_bytes()).decode("utf-8")
    head, *lines = (line.split("\t") for line in text.splitlines())
    assert head == ["en", "de", "fr", "ko"] and len(lines) > 10_000
    assert all(len(line) == 4 and all(line) for line in lines)
    assert len({line[0] for line in lines}) == len(lines)
    untidy = [text for line in lines for text, to in zip(line, head, strict=True) if tidy(text, to) != text]
    assert not untidy
    assert all(re.search("[가-힣]", line[3]) for line in lines)


def test_translations_are_paired_with_their_sources(tmp_path):
    rows = [(f"A sentence number {n}.", f"Ein Satz {n}.", "de") for n in range(6)]
    rows += [(f"Ein Satz {n}.", f"A sentence number {n}.", "en") for n in range(6)]
    rows += [("A book of the Bible.", "성경의 책", "ko-bible"), ("A sentence number 3.", "문장 3", "ko")]
    write(tmp_path / "train.tsv.gz", ("source", "target", "to"), rows)
    write(tmp_path / "english.tsv.gz", ("text",), [("The river is 40 km long.",), ("A sentence number 1.",)])
    tasks = pocket_back_translation.tasks(tmp_path)
    assert sorted(tasks) == sorted(
        [(f"A sentence number {n}.", "ko", True) for n in range(6) if n != 3]
        + [(f"A sentence number {n}.", "fr", True) for n in range(6)]
        + [("The river is 40 km long.", to, False) for to in ("de", "fr", "ko")]
    )
    answers = [(text, to, f"{text} in {to}" if n % 3 else "") for n, (text, to, _) in enumerate(tasks)]
    answers.append(("A sentence of other tables.", "fr", "Une phrase"))
    (tmp_path / "made").mkdir()
    for shard in (0, 1):
        write(tmp_path / "made" / f"answers{shard}.tsv.gz", ("text", "to", "answer"), answers[shard::2])
    expected = []
    for n, (text, to, everyday) in enumerate(tasks):
        if n % 3:
            expected += [[f"{text} in {to}", text, "en"]]
            expected += [[text, f"{text} in {to}", to]] if everyday and to == "fr" else []
    assert list(read(pocket_back_translation.expand(tmp_path, tmp_path / "made"))) == expected


def test_expanding_without_answers_is_an_error(tmp_path):
    with pytest.raises(GlassformerError, match="has no answers"):
        pocket_back_translation.expand(tmp_path, tmp_path)


def test_each_run_continues_the_previous_one_with_its_back_translations(tmp_path, monkeypatch, in_process):
    workspace = Workspace(
        data=tmp_path / "none",
        work=tmp_path / "work",
        figures=tmp_path / "figures",
        device="cpu",
        changes=("training.max_steps=2", "training.batch_tokens=512", "training.packing=false", *SIZES),
    )
    tables = workspace.prepared("pocket")
    rows = [(f"The dog is {n} years old.", f"Der Hund ist {n} Jahre alt.", "de") for n in range(40)]
    rows += [(other, english, "en") for english, other, _ in rows]
    rows += [("The dog is here.", "개가 여기 있다.", "ko"), ("Le chien est ici.", "The dog is here.", "en")]
    rows.append(("Hello!", "Hallo!", "de"))  # of the phrasebook
    for name, table in (("train", rows), ("dev", rows[:8])):
        write(tables / f"{name}.tsv.gz", ("source", "target", "to"), table)
    write(tables / "test.tsv.gz", ("source", "target", "to", "set"), [(*rows[0], "tatoeba en-de")])
    write(tables / "english.tsv.gz", ("text",), [("The river is long.",)])
    pocket_tokenizer.learn([list(row) for row in rows], tables / "tokenizer", size=420, rare=2)
    wrote = []

    def make(model, tables, out, **_):
        wrote.append(model)
        out.mkdir()
        answers = [(text, to, f"{text} {to}") for text, to, _ in pocket_back_translation.tasks(tables)]
        write(out / "answers0.tsv.gz", ("text", "to", "answer"), answers)

    monkeypatch.setattr(pocket_back_translation, "make", make)
    pocket.run(workspace, "small/1")
    pocket.run(workspace, "student/1")
    pocket.run(workspace, "graduate/1")
    pocket.run(workspace, "polished/1")
    before = [workspace.run("pocket", name) / "model" for name in ("small/1", "student/1", "graduate/1")]
    assert wrote == before
    for name, writer in zip(("student/1", "graduate/1", "polished/1"), before, strict=True):
        recipe, folder = (
            read_recipe_dict(workspace.run("pocket", name) / "recipe.yaml"),
            f"made-by-{writer.parts[-3]}-1",
        )
        assert recipe["model"]["folder"] == str(writer)
        learned = [tables / "train.tsv.gz", tables / folder / "made.tsv.gz"]
        learned += [tables / "polish.tsv.gz"] * (name == "polished/1")
        assert recipe["data"]["train"] == [str(path) for path in learned]
    assert len(runs_of("pocket", workspace.figures)) == 4


def test_polish_repeats_only_phrases_of_the_training_data(tmp_path):
    phrases = list(phrasebook())
    short = next(one for one in phrases if len(one.english.split()) <= SAID)
    longer = next(one for one in phrases if len(one.english.split()) > SAID)
    rows = [(one.english, one.other, one.tag) for one in (short, longer)]
    other = ("The dog is here.", "Le chien est ici.", "fr")
    write(tmp_path / "train.tsv.gz", ("source", "target", "to"), [*rows, *rows, other])
    count = Counter(map(tuple, read(pocket_polish.polish(tmp_path))))
    assert count == {rows[0]: pocket_polish.AGAIN, rows[1]: pocket_polish.LONGER}


def test_common_phrases_are_trained_on_and_not_tested():
    english = next(
        text for n in range(9999) if split_of(normalized(text := f"Hello {n}"), "tatoeba-ko") == "test"
    )
    pairs = [
        Pair(english=english, other="안녕", kind=f"{kind}-ko", tag="ko") for kind in ("tatoeba", "phrases")
    ]
    assert len(split_pairs(pairs[:1], set())["test"]) == 1
    assert split_pairs(pairs, set()) == {"train": pairs, "dev": [], "test": []}
