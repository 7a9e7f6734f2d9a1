"""The default translator's data: nothing held out is learnt, nothing is unknown, answers find their tasks."""

import random

import pytest

from results import pocket_made, pocket_tokenizer
from results.pocket_data import HELD, Pair, divided, read, write
from results.pocket_text import same

KINDS = {
    "tatoeba-de": "de",
    "tatoeba-ko": "ko",
    "debian-ko": "ko",
    "bible-ko": "ko-bible",
    "labels-ko": "ko-label",
}


def drawn(count: int) -> list[Pair]:
    """Pairs of few enough texts that most stand in several, in other letters or with other signs."""
    rng = random.Random(1)
    pairs = []
    for _ in range(count):
        kind = rng.choice(list(KINDS))
        english, other = (
            rng.choice((str.title, str.upper, "{}!".format))(f"{side} {rng.randrange(900)}") for side in "ab"
        )
        pairs.append(Pair(english=english, other=other, kind=kind, tag=KINDS[kind]))
    return pairs


def test_what_is_held_out_or_forbidden_is_learnt_in_no_pair():
    pairs, forbidden = drawn(2000), {same(f"{side} {number}") for side in "ab" for number in range(20)}
    parts = divided(pairs, forbidden)
    learnt = {same(text) for pair in parts["train"] for text in (pair.english, pair.other)}
    held = [pair for part in ("dev", "test") for pair in parts[part]]
    assert len(held) > 50 and len(learnt) > 300
    assert not learnt & forbidden
    assert not learnt & {same(text) for pair in held for text in (pair.english, pair.other)}
    assert not {same(pair.english) for pair in parts["dev"]} & {same(pair.english) for pair in parts["test"]}
    assert {pair.kind for pair in held} <= set(HELD)


def test_every_letter_is_spelled_and_every_digit_stands_alone(tmp_path):
    rows = [["Der Hund ist alt .", "The dog is old .", "en"], ["개가 늙었다", "The dog is old .", "en"]]
    tokenizer = pocket_tokenizer.learn(rows * 20, tmp_path / "tokenizer", size=420, rare=2)
    for text in ("The dog is 1234 days old", "늙은 개 42", "ñ 漢 🐕", 'It\'s "so"'):
        ids = tokenizer.encode(text).ids
        assert tokenizer.unk_id not in ids
        assert tokenizer.decode(ids) == text
    pieces = tokenizer.tokens(tokenizer.encode("1234").ids)
    assert [piece.strip("▁") for piece in pieces if piece.strip("▁").isdigit()] == ["1", "2", "3", "4"]


def test_answers_are_put_beside_what_was_asked(tmp_path):
    rows = [(f"A sentence number {n}.", f"Ein Satz {n}.", "de") for n in range(6)]
    rows += [(f"Ein Satz {n}.", f"A sentence number {n}.", "en") for n in range(6)]
    rows += [("A book of the Bible.", "성경의 책", "ko-bible"), ("A sentence number 3.", "문장 3", "ko")]
    write(tmp_path / "train.tsv.gz", ("source", "target", "to"), rows)
    asked = list(pocket_made.tasks(tmp_path))
    assert len(set(asked)) == len(asked) and ("made", "A sentence number 3.", "ko") not in asked
    answers = [(str(n), f"{text} in {to}" if n % 3 else "") for n, (_, text, to) in enumerate(asked)]
    for shard in (0, 1):
        write(tmp_path / f"answers{shard}.tsv.gz", ("task", "answer"), answers[shard::2])
    tables = {
        path.name.partition(".")[0]: list(map(tuple, read(path))) for path in pocket_made.expand(tmp_path)
    }
    done = [(table, text, f"{text} in {to}", to) for n, (table, text, to) in enumerate(asked) if n % 3]
    assert tables["distilled"] == [tuple(row) for table, *row in done if table == "distilled"]
    made = [row for table, *row in done if table == "made"]
    assert tables["made"] == [
        row for text, answer, to in made for row in ((text, answer, to), (answer, text, "en"))
    ]


def test_without_a_teacher_there_is_nothing_to_expand(tmp_path):
    with pytest.raises(SystemExit, match="no answers of a teacher"):
        pocket_made.expand(tmp_path)
