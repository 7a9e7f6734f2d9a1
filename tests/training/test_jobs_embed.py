"""The job embed: its losses, and a sentence encoder from pairs, hard negatives or scores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import glassformer
from glassformer.training.data_cache import no_log
from glassformer.training.evaluation import evaluate_files
from glassformer.training.learner import SentencePairLearner
from glassformer.training.losses import cosent_loss
from glassformer.training.recipe import parse_recipe
from glassformer.training.run import run

MODEL = {"d_model": 32, "num_heads": 2, "d_ff": 64, "num_layers": 1, "dropout": 0.0}
WORDS = "red blue gold green sea hill tree house dog cat horse moon".split()
PAIRS = [(f"{a} and {b}", f"the {b} with {a}") for a in WORDS for b in WORDS if a < b]
TABLES = {
    "pairs": ("anchor\tpositive", [f"{a}\t{b}" for a, b in PAIRS]),
    "negatives": (
        "anchor\tpositive\tnegative",
        [f"{a}\t{b}\t{PAIRS[n - 7][1]}" for n, (a, b) in enumerate(PAIRS)],
    ),
    "scores": (
        "sentence1\tsentence2\tscore",
        [row for n, (a, b) in enumerate(PAIRS) for row in (f"{a}\t{b}\t4.8", f"{a}\t{PAIRS[n - 7][1]}\t0.5")],
    ),
}


@pytest.mark.parametrize("kind", TABLES)
def test_sentence_encoder_learns_and_is_saved_for_sentence_transformers(tmp_path: Path, kind: str) -> None:
    header, rows = TABLES[kind]
    table = tmp_path / "train.tsv"
    table.write_text("\n".join([header, *rows]) + "\n")
    recipe = parse_recipe(
        {
            "job": "embed",
            "data": {"train": str(table), "valid": str(table)},
            "tokenizer": {"kind": "word"},
            "model": MODEL,
            "training": {"device": "cpu", "max_steps": 60, "batch_tokens": 400, "lr": 3e-3, "eval_steps": 60},
        }
    )
    run(recipe, tmp_path / "run", log=no_log)
    folder = tmp_path / "run" / "model"
    metric = "spearman" if kind == "scores" else "recall_at_1"
    metrics = evaluate_files(folder, [str(table)], log=no_log).validation.metrics
    assert metrics[metric] > 0.8, metrics
    modules = json.loads((folder / "modules.json").read_text())
    assert [module["type"].rsplit(".", 1)[-1] for module in modules] == [
        "Transformer",
        "Pooling",
        "Normalize",
    ]
    assert json.loads((folder / "1_Pooling" / "config.json").read_text())["pooling_mode_mean_tokens"]
    model = glassformer.load(folder)
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoModel.from_pretrained(folder, add_pooling_layer=False).eval()
    ids = torch.tensor(model.tokenizer.encode_ids(["red and sea"]))
    with torch.no_grad():
        states = reference(ids).last_hidden_state.mean(1)
    expected = torch.nn.functional.normalize(states, dim=-1)[0]
    torch.testing.assert_close(model.embed("red and sea"), expected, atol=1e-5, rtol=1e-4)


def test_losses_match_their_definitions() -> None:
    torch.manual_seed(0)
    similarities, scores = torch.rand(6), torch.tensor([0.0, 1.0, 1.0, 3.0, 2.0, 5.0])
    terms = [
        ((similarities[i] - similarities[j]) / 0.1).exp()
        for i in range(6)
        for j in range(6)
        if scores[i] < scores[j]
    ]
    torch.testing.assert_close(cosent_loss(similarities, scores, 0.1), (1 + sum(terms)).log())

    table = torch.nn.Embedding(10, 4)
    learner = SentencePairLearner(torch.nn.Sequential(table, torch.nn.Flatten()), temperature=0.5)
    anchors, positives, negatives = (
        torch.tensor([[1], [2], [3]]),
        torch.tensor([[4], [5], [4]]),
        torch.tensor([[6], [7], [8]]),
    )
    unit = torch.nn.functional.normalize(table.weight, dim=-1)
    total = torch.zeros(())
    for n, (anchor, positive) in enumerate(zip([1, 2, 3], [4, 5, 4], strict=True)):
        # the same positive of another pair is not a negative example
        others = [p for m, p in enumerate([4, 5, 4]) if m != n and p != positive] + [6, 7, 8]
        logits = torch.stack([unit[anchor] @ unit[key] / 0.5 for key in [positive, *others]])
        total = total - logits.log_softmax(0)[0]
    torch.testing.assert_close(learner(anchors, positives, negatives), total)
