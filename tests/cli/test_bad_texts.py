"""Bad texts and bad settings, for every verb that writes, from Python and from the command line.

Each is refused in one sentence that names the place, or has a defined result; nothing crashes.
"""

from __future__ import annotations

import io
import json
import math
import sys
from typing import Any

import pytest
import torch

import glassformer
from glassformer.errors import GlassformerError
from glassformer.tasks import writing
from glassformer.tokenization import TokenizerPlan, train_tokenizer
from tests.faults.scale import WHOLE
from tests.tasks.reversing import bytewise, reverser, speaker

VERBS = ("translate", "summarize", "restore", "generate")
REWRITING = VERBS[:3]
SOUND = ("red", "blue")  # texts that stand around the bad one
FEW: dict[str, Any] = {"num_beams": 1, "max_new_tokens": 3}


def mender(folder):
    """A model of random numbers with the job to restore."""
    plan = TokenizerPlan(kind="bpe", vocab_size=200, marks="end", tags=("<gap>",))
    tokenizer = train_tokenizer(["the old captain sang to the sea"] * 3, plan)
    torch.manual_seed(0)
    model = glassformer.tiny("original", src_vocab_size=tokenizer.vocab_size, max_len=600, start_id=1)
    job = glassformer.JobInfo(name="restore", gap="<gap>", before=" ")
    return glassformer.save(glassformer.Pipeline(model=model, tokenizer=tokenizer, job=job), folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("folders")
    talker = speaker(place / "talker", max_len=64)
    return {"translate": reverser(), "summarize": reverser(), "restore": mender(place / "mender"),
            "generate": talker}  # fmt: skip


@pytest.fixture(scope="module")
def bundles(folders):
    return {verb: glassformer.load(folder) for verb, folder in folders.items()}


def options(settings: dict[str, Any]) -> list[str]:
    found = []
    for name, value in settings.items():
        flag = "--stop" if name == "stop_strings" else f"--{name.replace('_', '-')}"
        found += [flag] if value is True else [flag, str(value)]
    return found


def refused(done, sentence):
    assert done.code == 2 and sentence in done.err, done
    assert done.err.startswith("error: ") and done.err.count("\n") == 1 and not done.out


# ---- texts ------------------------------------------------------------------------------------------

ANY, EMPTY = "any line", "an empty line"
WORDS, WORD = b"the sea, " * 111_000, b"x" * 1_000_000
NO_SPACE = "000,000 letters with no space between"
BEGUN = {"generate": ANY, "stdin": EMPTY, "file": EMPTY}  # a text is begun from an empty prompt, but no line
UNSPLIT = {"translate": NO_SPACE, "restore": NO_SPACE}
NOT_UNICODE = "2 is not Unicode: half a letter stands at its place 5"

# a line, and what becomes of it: by itself, and where verbs or ways of giving it differ
TEXTS: dict[str, tuple[bytes, str, dict[str, str]]] = {
    "empty": (b"", EMPTY, BEGUN),
    "blank": (b" \t \xe3\x80\x80", EMPTY, BEGUN),
    "a line of 1 MB": (WORDS, "2 has ", {"translate": ANY, "restore": ANY}),
    "a word of 1 MB": (WORD, "2 has ", UNSPLIT),
    "over 1 MiB": (WORD * 2, "2 has ", {**UNSPLIT, "stdin": "it is longer than 1,048,576 bytes",
                                        "file": "it is longer than 1,048,576 bytes"}),
    "not UTF-8": (b"red \xff", NOT_UNICODE, {"stdin": "it is not UTF-8 (byte 0xff at byte 5)",
                                             "file": "it is not UTF-8 (byte 0xff at byte 5)"}),
    "half a letter": (b"red \xed\xa0\x80", NOT_UNICODE, {"stdin": "not UTF-8", "file": "not UTF-8"}),
    "NUL": (b"red \x00", ANY, {"stdin": "it holds a NUL byte", "file": "it holds a NUL byte"}),
    "control characters": (b"\x01\x07red\x1b[31m\x08\x7f\x0b\x0c\x1c\x1d\xc2\x85", ANY, {}),
    "line ends of Unicode": ("red\u2028blue\u2029".encode(), ANY, {}),
    "marks of direction and order": ("\u202e\ufeffred\u200b".encode(), ANY, {}),
    "marks of the tokenizer": (b"</s> <pad> <s> <gap> <unk> <|endoftext|>", ANY, {}),
    "words never seen": ("바다 ☃ zzz 🌊".encode(), ANY, {}),
}  # fmt: skip
WAYS = ("python", "arguments", "stdin", "file")


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("verb", VERBS)
def test_texts(verb, name, way, run, folders, bundles, tmp_path, monkeypatch):
    content, by_itself, others = TEXTS[name]
    outcome = others.get(way, others.get(verb, by_itself))
    if way == "arguments" and (b"\x00" in content or len(content) > 1 << 17):
        pytest.skip("the system takes no such argument")
    if content is WORDS and (way == "file" or (way == "python" and not WHOLE)):
        pytest.skip("it is the same as from standard input, and takes long")
    if content is WORDS and verb == "restore" and not WHOLE:
        content = WORDS[: len(WORDS) // 10]  # a long line too; one of 1 MB is translated
    call = getattr(bundles[verb], verb)
    texts = [SOUND[0], content.decode("utf-8", "surrogateescape"), SOUND[1]]
    if way == "python":
        if outcome not in (ANY, EMPTY):
            with pytest.raises(GlassformerError, match=r"^(text|prompt) ") as error:
                call(texts, **FEW)
            assert outcome in str(error.value) and "\n" not in str(error.value)
            return
        found = call(texts, **FEW)
    else:
        given: tuple[Any, ...] = ()
        lines = b"\n".join((SOUND[0].encode(), content, SOUND[1].encode(), b""))
        if way == "arguments":
            given = tuple(texts)
        elif way == "file":
            (tmp_path / "in.txt").write_bytes(lines)
            given = ("--file", tmp_path / "in.txt")
        else:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines), encoding="utf-8"))
        done = run(verb, folders[verb], *given, *options(FEW))
        if outcome not in (ANY, EMPTY) and way == "arguments":
            refused(done, outcome)
            return
        found = done.out.split("\n")
        assert found.pop() == ""
        if outcome not in (ANY, EMPTY):  # the other lines are answered
            note, error = [line for line in done.err.splitlines() if "empty" in line]
            assert note.startswith("note: line 2 is left empty: it ") and outcome.removeprefix("2 ") in note
            assert done.code == 2 and error == "error: 1 line was left empty, for want of an answer"
            outcome = EMPTY
        else:
            assert done.code == 0, done.err
    assert [found[0], found[2]] == [line.replace("\n", " ") for line in call(list(SOUND), **FEW)]
    assert len(found) == 3 and (outcome == ANY or found[1] == "")


# ---- settings ---------------------------------------------------------------------------------------

SAMPLED = {"do_sample": True}
SETTINGS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"num_beams": 0}, "num_beams"),
    ({"num_beams": 1_000_000}, "the memory does not hold a batch"),
    ({**SAMPLED, "temperature": 0.0}, "temperature"),
    ({"temperature": 0.0}, "temperature"),
    ({**SAMPLED, "temperature": math.nan}, "temperature"),
    ({**SAMPLED, "temperature": math.inf}, "temperature"),
    ({"temperature": 0.5}, "temperature"),
    ({**SAMPLED, "top_p": 2.0}, "top_p"),
    ({**SAMPLED, "top_p": 0.0}, "top_p"),
    ({**SAMPLED, "top_p": math.nan}, "top_p"),
    ({**SAMPLED, "top_k": -1}, "top_k"),
    ({**SAMPLED, "min_p": 1.5}, "min_p"),
    ({**SAMPLED, "seed": -1}, "seed"),
    ({**SAMPLED, "seed": 1 << 64}, "seed"),
    ({"max_new_tokens": -1}, "max_new_tokens"),
    ({"min_new_tokens": 9, "max_new_tokens": 2}, "min_new_tokens"),
    ({"repetition_penalty": 0.0}, "repetition_penalty"),
    ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size"),
    ({"length_penalty": math.nan}, "length_penalty"),
    ({"length_penalty": -1e9, "num_beams": 2}, "length_penalty"),
    ({"length_formula": "long"}, "length_formula"),
    ({"early_stopping": "maybe"}, "early_stopping"),
    ({"num_return_sequences": 0}, "num_return_sequences"),
    ({"stop_strings": ""}, "stop_strings"),
)  # fmt: skip


@pytest.mark.parametrize(("settings", "sentence"), SETTINGS, ids=[str(words) for words, _ in SETTINGS])
@pytest.mark.parametrize("verb", VERBS)
def test_settings(verb, settings, sentence, run, folders, bundles):
    words = {"max_new_tokens": 4, **settings}
    with pytest.raises(GlassformerError) as error:
        getattr(bundles[verb], verb)(["red the"], **words)
    assert sentence in str(error.value) and "\n" not in str(error.value)
    refused(run(verb, folders[verb], "red the", *options(words)), sentence)
    if verb == "generate" and "num_beams" not in settings and settings.get("num_return_sequences") != 0:
        with pytest.raises(GlassformerError) as error:
            "".join(bundles[verb].stream("red the", **words))
        assert sentence in str(error.value)


WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"num_beam": 2}, "num_beams"),
    ({"num_beams": 2.5}, "num_beams"),
    ({"stop_strings": 5}, "stop_strings"),
    ({"batch_tokens": 0}, "batch_tokens must be a whole number, 1 or more; got 0"),
    ({"batch_tokens": "many"}, "batch_tokens must be a whole number"),
    ({"forced_bos_token_id": 10**6}, "forced token"),
    ({"suppress_tokens": tuple(range(400)), "num_beams": 1}, "every token is suppressed"),
    ({"num_return_sequences": 2, "num_beams": 2}, "ask for details"),
)


@pytest.mark.parametrize(("settings", "sentence"), WRONG, ids=[str(words)[:40] for words, _ in WRONG])
@pytest.mark.parametrize("verb", VERBS)
def test_settings_that_only_python_can_give(verb, settings, sentence, bundles):
    with pytest.raises(GlassformerError, match=sentence):
        getattr(bundles[verb], verb)(["red"], **{"max_new_tokens": 4, **settings})


@pytest.mark.parametrize("texts", [5, None, ["red", 5], ["red", b"blue"]], ids=str)
@pytest.mark.parametrize("verb", VERBS)
def test_what_is_no_text(verb, texts, bundles):
    with pytest.raises(GlassformerError, match=r"must be strings|2 must be a string, not"):
        getattr(bundles[verb], verb)(texts, **FEW)


# ---- folders ----------------------------------------------------------------------------------------

FAMILIES = ("gpt2", "llama", "bart", "t5", "marian")


def verb_of(family: str) -> str:
    return "generate" if family in ("gpt2", "llama") else "translate"


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_out_of_the_vocabulary(family, run, tmp_path):
    """A tokenizer of another model, and settings that name tokens there are not."""
    tokenizer, verb = bytewise(), verb_of(family)
    small = glassformer.Pipeline(model=glassformer.tiny(family, vocab_size=120), tokenizer=tokenizer)
    with pytest.raises(GlassformerError, match=r"token id \d+ is out of range"):
        getattr(small, verb)(["the sea sang"], max_new_tokens=3)
    folder = glassformer.save(small, tmp_path / "small")
    refused(run(verb, folder, "the sea sang", "--max-new-tokens", 3), "is out of range")
    for name, value, sentence in (
        ("pad_token_id", 10**6, None),  # some published folders name one never learnt: any token pads as well
        ("decoder_start_token_id", 10**6, None if verb == "generate" else "and knows the tokens"),
        ("eos_token_id", "</s>", "an id is due there"),
        ("bad_words_ids", 5, "bad_words_ids"),
        ("eos_token_id", 10**6, "and knows the tokens"),  # no text would ever end
        ("eos_token_id", [10**6, 3], None),  # the one that is known ends them
        ("pad_token_id", -1, None),  # a published way to say that there is none
    ):
        model = glassformer.tiny(family, vocab_size=tokenizer.vocab_size)
        made = glassformer.Pipeline(model=model, tokenizer=tokenizer, generation={name: value})
        texts = ["the", "the sea sang"]
        if sentence is None:
            assert len(getattr(made, verb)(texts, max_new_tokens=3)) == 2
            continue
        with pytest.raises(GlassformerError, match=sentence):
            getattr(made, verb)(texts, max_new_tokens=3)


@pytest.mark.parametrize("family", ["gpt2", "bart"])
def test_a_model_without_an_end_stops_at_the_limit_and_says_so(family, run, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({word: n for n, word in enumerate("red blue gold ?".split())}, "?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = glassformer.save(glassformer.tiny(family, vocab_size=4), tmp_path / "model")
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")
    config = json.loads((folder / "config.json").read_text())
    names = ("eos_token_id", "forced_eos_token_id")
    (folder / "config.json").write_text(json.dumps({**config, **dict.fromkeys(names)}))
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "checksums.json").unlink()
    verb, note = verb_of(family), "note: the model has no end token, so it wrote up to the limit"
    for words in ([], ["--json"], ["--num-beams", 2], ["--out", tmp_path / "out.txt"]):
        done = run(verb, folder, "red blue", "--max-new-tokens", 7, *words)
        assert done.code == 0 and done.err.count(note) == 1, done.err
        if words == ["--json"]:
            told = json.loads(done.out)
            assert (told["ended"], told["tokens"]) == ("length", 7)
    (passage,) = getattr(writing, verb)(glassformer.load(folder), ["red"], max_new_tokens=7, details=True)
    assert (passage.ended, passage.tokens) == ("length", 7)
    if family == "gpt2":
        refused(run(verb, folder, "", "--max-new-tokens", 7), "an empty prompt needs a token to begin with")
        stream = glassformer.load(folder).stream("red", max_new_tokens=7)
        assert "".join(stream) and stream.written is not None and stream.written.finish_reason == "length"
