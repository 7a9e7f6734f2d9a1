"""The Multi30k row: published preprocessing, parameter limits and scores."""

import json

import pytest
import sacrebleu
import yaml

from experiments import moses
from experiments.multi30k import RECIPE, TESTS, WAYS, read_name, run
from experiments.paths import Workspace, data_folder
from experiments.rows import ROWS
from glassformer import api
from glassformer.families.registry import preset_spec
from glassformer.recipes import recipe_path
from glassformer.tokenization import TokenizerPlan, train_tokenizer

pytest.importorskip("sacremoses")
DATA = data_folder() / "multi30k"
SENTENCES = {
    "en": ["A man's T-shirt says \"No. 5\", doesn't it?", "Two dogs (one is old) run 1,000 m."],
    "de": ["Auf dem T-Shirt eines Mannes steht „Nr. 5“ …", "Zwei Hunde laufen 1.000 m – einer ist alt."],
    "fr": ["L'homme porte un t-shirt « n° 5 », n'est-ce pas ?", "Deux chiens courent aujourd'hui."],
}
TOKENIZED = {language: moses.tokenize(texts, language) for language, texts in SENTENCES.items()}


@pytest.mark.skipif(not DATA.is_dir(), reason="GLASSFORMER_DATA has no multi30k")
def test_references_match_the_published_run():
    """Its log says reflen=12103."""
    references = moses.tokenize(moses.read(DATA / "test_2016_flickr.de.gz"), "de")
    assert sum(len(text.split()) for text in references) == 12103


def test_vocabulary_round_trips_words():
    texts = [text for several in TOKENIZED.values() for text in several]
    tokenizer = train_tokenizer(texts, TokenizerPlan(vocab_size=150))
    for text in texts:
        ids = tokenizer.encode(text).ids
        assert tokenizer.decode(ids) == text and tokenizer.unk_id not in ids


@pytest.mark.parametrize("name", ROWS["multi30k"].runs)
def test_runs_have_known_names_and_few_parameters(name):
    recipe = yaml.safe_load(recipe_path(RECIPE).read_text())
    for change in WAYS[read_name(name).way]:
        workspace, value = change.split("=")
        section, key = workspace.split(".")
        recipe[section][key] = yaml.safe_load(value)
    overrides = {key: value for key, value in recipe["model"].items() if key not in ("preset", "folder")}
    size = recipe["tokenizer"]["vocab_size"]
    model = api.build(preset_spec("original", **overrides, src_vocab_size=size, tied=("source", "head")))
    assert sum(weights.numel() for weights in model.parameters()) <= 2_700_000


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("name", ["en-de/1", "en-fr-cased/2"])
def test_recorded_scores_match_sacrebleu(tmp_path, name):
    run_name, data = read_name(name), tmp_path / "data" / "multi30k"
    data.mkdir(parents=True)
    for part in ("train", *TESTS.values()):
        for language, texts in SENTENCES.items():
            moses.write(data / f"{part}.{language}.gz", texts * 4)
    small = (
        "max_steps=40",
        "batch_tokens=512",
        "r_drop=0",
        "lr=0.01",
        "warmup_steps=5",
        "eval_steps=20",
        "average_checkpoints=1",
    )
    workspace = Workspace(
        data=data.parent,
        work=tmp_path / "work",
        figures=tmp_path / "figures",
        device="cpu",
        changes=(*(f"training.{word}" for word in small), "model.d_model=32", "model.dropout=0"),
    )
    run(workspace, name)
    (record_file,) = (tmp_path / "figures" / "multi30k").glob("*.json")
    figures = json.loads(record_file.read_text())["figures"]
    expected = SENTENCES if run_name.way == "cased" else TOKENIZED
    for short, part in TESTS.items():
        got = moses.read(workspace.run("multi30k", name) / f"{part}.{run_name.target}.gz")
        references = [expected[run_name.target] * 4]
        if run_name.way == "cased":
            assert figures[f"bleu_{short}"] == pytest.approx(sacrebleu.corpus_bleu(got, references).score)
            assert figures[f"chrf_{short}"] == pytest.approx(sacrebleu.corpus_chrf(got, references).score)
        else:
            scored = sacrebleu.corpus_bleu(got, references, tokenize="none", force=True)
            assert figures[f"bleu_{short}"] == pytest.approx(scored.score)
    assert figures["bleu_val"] > 50  # it was seen in training
