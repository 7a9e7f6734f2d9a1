"""Multilingual translation: a column names the target language, whose tag precedes the source."""

import json
import random
from itertools import product
from pathlib import Path

import pytest

import glassformer
from glassformer.errors import MissingValueError, UnknownNameError, UnsupportedError
from glassformer.tokenization import load_tokenizer
from glassformer.training.data_cache import no_log
from glassformer.training.evaluation import evaluate_files
from glassformer.training.recipe import parse_recipe
from glassformer.training.run import run

MODEL = {"d_model": 64, "num_heads": 4, "d_ff": 128, "num_layers": 2, "dropout": 0.0}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy letters ("same") or reverse them ("back"): only the tag says which."""
    folder = tmp_path_factory.mktemp("tags")
    words = ["".join(letters) for length in (2, 3, 4) for letters in product("abcd", repeat=length)]
    rows = [(word, word[::turn], to) for word in words for to, turn in (("same", 1), ("back", -1))]
    random.Random(0).shuffle(rows)
    for name, part in (("test", rows[:60]), ("train", rows[60:])):
        table = "".join("\t".join(row) + "\n" for row in [("source", "target", "to"), *part])
        (folder / f"{name}.tsv").write_text(table)
    recipe = parse_recipe(
        {
            "job": "translate",
            "data": {
                "train": str(folder / "train.tsv"),
                "valid": str(folder / "test.tsv"),
                "language_column": "to",
            },
            "tokenizer": {"kind": "char"},
            "model": MODEL,
            "training": {
                "device": "cpu",
                "max_steps": 300,
                "batch_tokens": 900,
                "lr": 3e-3,
                "lr_scheduler": "cosine",
                "label_smoothing": 0.0,
                "eval_steps": 10**6,
            },
        }
    )
    assert run(recipe, folder / "run", log=no_log).outcome == "finished"
    return folder


def test_the_tag_selects_the_target_language(trained: Path) -> None:
    model = trained / "run" / "model"
    result = evaluate_files(model, [str(trained / "test.tsv")], log=no_log).validation
    assert result.metrics["exact"] > 0.95
    assert {sample.source.split()[0] for sample in result.samples} == {">>same<<", ">>back<<"}
    bundle = glassformer.load(model)
    assert bundle.translate("abdc", to="back") == "cdba" and bundle.translate("abdc", to="same") == "abdc"
    tokenizer = load_tokenizer(model)
    assert tokenizer is not None and {tokenizer.token_id(">>back<<"), tokenizer.token_id(">>same<<")} == {
        4,
        5,
    }
    job = json.loads((model / "job.json").read_text())
    assert job["languages"] == ["back", "same"] and (job["unit"], job["usual_len"]) == ("sentence", 6)


def test_a_multilingual_model_needs_a_known_target_language(trained: Path) -> None:
    bundle = glassformer.load(trained / "run" / "model")
    with pytest.raises(MissingValueError) as missing:
        bundle.translate("abdc")
    assert missing.value.name == "to"
    with pytest.raises(UnsupportedError):  # a prompt has no place for the language
        bundle.generate("abdc")
    with pytest.raises(UnknownNameError):
        bundle.translate("abdc", to="de")
    assert bundle.generate([">>back<<abdc"], parse_special=True, num_beams=1) == ["cdba"]


@pytest.mark.parametrize(("share", "unit"), [(0.05, "sentence"), (0.2, "line")])
def test_job_json_records_whether_sources_are_sentences(tmp_path: Path, share: float, unit: str) -> None:
    table = tmp_path / "pairs.tsv"
    rows = ["It rained. We left." if n < 200 * share else f"We left at {n}." for n in range(200)]
    table.write_text("".join(f"{row}\t{row}\n" for row in rows))
    recipe = parse_recipe(
        {
            "job": "translate",
            "data": {"train": str(table), "valid": str(table), "max_len": 40},
            "tokenizer": {"kind": "char"},
            "model": MODEL,
            "training": {"device": "cpu", "max_steps": 1, "batch_tokens": 900, "eval_steps": 10**6},
        }
    )
    run(recipe, tmp_path / "run", log=no_log)
    job = json.loads((tmp_path / "run" / "model" / "job.json").read_text())
    longest = len("It rained. We left.") + 1  # letters, and the end
    columns = {"source": 1, "target": 2}
    assert job == {"job": "translate", "data_columns": columns, "unit": unit, "usual_len": longest}
