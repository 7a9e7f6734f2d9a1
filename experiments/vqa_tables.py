"""Visual question answering from tables: easy-VQA and NLVR, with the job `vqa` and ViLT from scratch.

Beside the accuracy stand three answers that need no image: the most frequent one, the most frequent one to
the same question, and that of the trained model if every image is gray. The tables are those of `vqa_data`.
"""

from __future__ import annotations

from typing import Any

from experiments.paths import Workspace
from experiments.vision_training import record, train_recipe
from experiments.vqa_data import TABLES, majority, read_rows

SECONDS = 60.0
MODEL = {"preset": "vilt-mini", "d_model": 192, "num_heads": 6, "d_ff": 768}
TRAINING = {"lr": 1e-3, "weight_decay": 0.05, "ema": 0.999, "max_grad_norm": 1.0, "compile": "off"}
RECIPES: dict[str, dict[str, Any]] = {
    "easy": {
        "data": {"image_size": [64, 64], "max_len": 16, "flip_prob": 0.5, "max_shift": 6},
        "model": {**MODEL, "patch_size": 8, "num_layers": 6},
        "training": {**TRAINING, "batch_size": 256},
    },
    "nlvr": {
        "data": {"image_size": [50, 200], "max_len": 40},
        "model": {**MODEL, "patch_size": 10, "num_layers": 4, "dropout": 0.1},
        "training": {**TRAINING, "batch_size": 128, "lr": 5e-4},
    },
}


def run(workspace: Workspace, name: str, data: str) -> None:
    """Train and measure one model. data: easy or nlvr."""
    row = f"vqa-{data}"
    folder = TABLES[data](workspace.data, workspace.prepared(row) / "tables")
    recipe = RECIPES[data]
    tables = {"train": [str(folder / "train.tsv")], "valid": [str(folder / "test.tsv")]}
    recipe = {
        **recipe,
        "job": "vqa",
        "data": {**recipe["data"], **tables},
        "tokenizer": {"kind": "word", "lowercase": True},
    }
    _, _, trained = train_recipe(workspace, row, name, recipe, of="vqa_accuracy", seconds=SECONDS)
    figures = {"accuracy": trained.metrics["vqa_accuracy"], "gray images": trained.metrics["question_only"]}
    figures |= majority(read_rows(folder / "train.tsv"), read_rows(folder / "test.tsv"))
    record(workspace, row, name, trained, "vqa_accuracy", figures)
