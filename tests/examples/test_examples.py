"""Every script in examples/ runs as its docstring says, at a small size."""

import re
import runpy
import sys
from pathlib import Path

import pytest
from PIL import Image

import glassformer

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run a script as `python examples/NAME.py ARGS` in an empty folder; returns its globals."""
    monkeypatch.chdir(tmp_path)

    def run_script(name, *args):
        monkeypatch.setattr(sys, "argv", [name, *map(str, args)])
        return runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")

    return run_script


def test_every_example_is_tested():
    source = Path(__file__).read_text("utf-8")
    untested = [path.stem for path in EXAMPLES.glob("*.py") if f'"{path.stem}"' not in source]
    assert not untested


def test_the_chapter_learns_to_translate(run, tmp_path, capsys):
    run("the_chapter", "--max-steps", 100, "--out", "chapter")
    assert int(capsys.readouterr().out.split("in the table: ")[1].split()[0]) > 70
    assert (tmp_path / "chapter" / "cross-attention.png").read_bytes().startswith(b"\x89PNG")
    (translation,) = glassformer.load(tmp_path / "chapter" / "model").translate(["Thank you."])
    assert isinstance(translation, str)


def test_attention_heads_writes_a_figure(run, tmp_path, capsys):
    run("attention_heads")
    assert "decoder.blocks.2.cross_attn" in capsys.readouterr().out
    assert (tmp_path / "cross-attention.png").read_bytes().startswith(b"\x89PNG")


def test_activation_patching_finds_heads_with_an_effect(run, capsys):
    run("activation_patching")
    assert "largest effect" in capsys.readouterr().out


def test_korean_english_translator_trains(run, capsys):
    run("korean_english_translator", "--max-steps", 3, "--out", "run")
    assert "안녕하세요! ->" in capsys.readouterr().out


def test_forecast_csv_prints_quantiles(run, capsys):
    run("forecast_csv", "--max-steps", 3, "--out", "run", "--horizon", 7)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("\t") == ["date", "sales", "sales_0.1", "sales_0.5", "sales_0.9"]
    assert len(lines) == 8 and lines[1].startswith("2025-12-31")


def test_fine_tune_bert_classifies(run, tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "bad", "film", *map(str, range(80))]
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "vocab.txt").write_text("\n".join(words))
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path / "bert")
    rows = "\n".join(f"a {word} film {n},{word}" for n in range(80) for word in ("good", "bad"))
    (tmp_path / "films.csv").write_text(f"text,label\n{rows}\n")
    run("fine_tune_bert", "bert", "films.csv", "a good film", "--out", "run", "--epochs", 1)
    assert capsys.readouterr().out.strip().endswith("a good film")


def test_openai_client_talks_to_the_server(run, capsys):
    pytest.importorskip("openai")
    pytest.importorskip("fastapi")
    from tests.server.harness import serving

    with serving(["pocket", "pocket-lm"]) as server:
        run("openai_client", "--base-url", f"{server.url}/v1")
    output = capsys.readouterr().out
    assert "pocket-lm" in output and "Bahnhof" in output


def test_train_own_module_learns_to_add(run, tmp_path, capsys):
    run("train_own_module", "--max-steps", 300, "--out", "run")
    assert float(capsys.readouterr().out.split("mean error ")[1].split()[0]) < 2.0
    assert (tmp_path / "run/model/model.safetensors").is_file()


def test_draw_digits_learns_and_draws(run, tmp_path, capsys):
    pytest.importorskip("sklearn")
    run("draw_digits", "--max-steps", 200, "--out", "run", "--sampling-steps", 8)
    output = capsys.readouterr().out
    assert int(re.search(r"(\d+)% of 200", output)[1]) > 50, "chance is 10 %"
    for name, size in (("digits.png", (600, 300)), ("denoising.png", (600, 480))):
        assert Image.open(tmp_path / "run" / name).size == size
