"""tiny-shakespeare by character, measured like nanoGPT and exactly."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

import glassformer
from experiments import text_loss
from experiments.paths import Workspace
from experiments.records import note
from experiments.training_runs import train
from glassformer.training.hardware import device_for

ROW = "shakespeare"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The number of random windows in nanoGPT's loss estimate, in its settings for a GPU or a CPU."""

    rows: int
    batches: int


ON_GPU, ON_CPU = Sample(rows=64, batches=200), Sample(rows=12, batches=20)
LEARNED = (
    "{preset: gpt2, d_model: 384, num_heads: 6, d_ff: 1536, num_layers: 6, max_len: 256,"
    " dropout: 0.2, attention_dropout: 0.2, embed_dropout: 0.2}"
)
KINDS: dict[str, tuple[str, tuple[str, ...]]] = {  # recipe and changes of each kind of run
    "gpu": ("lm-char-shakespeare", ()),
    "cpu": ("lm-char-shakespeare-cpu", ()),
    "tried-learned-positions": ("lm-char-shakespeare", (f"model={LEARNED}",)),
    "tried-less-dropout": (
        "lm-char-shakespeare",
        (
            "model.dropout=0.2",
            "model.attention_dropout=0.2",
            "training.max_steps=1600",
            "training.save_steps=1600",
        ),
    ),
    "tried-more-dropout": (
        "lm-char-shakespeare",
        (
            "model.dropout=0.35",
            "model.attention_dropout=0.35",
            "training.max_steps=3000",
            "training.save_steps=3000",
        ),
    ),
}


def run(workspace: Workspace, name: str) -> None:
    kind, seed = name.split("/")
    recipe, changes = KINDS[kind]
    learned, held = files(workspace)
    own = () if kind != "cpu" else ("training.device=cpu",)
    trained = train(
        workspace,
        ROW,
        name,
        recipe,
        seed=int(seed),
        of="loss",
        changes=(f"data.train=[{learned}]", f"data.valid=[{held}]", *changes, *own),
    )
    device, sample = ("cpu", ON_CPU) if kind == "cpu" else (workspace.device, ON_GPU)
    figures = measured(trained.model, held, device, sample)
    figures["best validation"] = min(value for _, value in trained.curve)
    figures["last validation"] = trained.curve[-1][1]
    note(workspace, ROW, name, seed=int(seed), trained=trained, figures=figures)


def files(workspace: Workspace) -> tuple[Path, Path]:
    """nanoGPT's split: the first nine tenths of the characters, and the rest."""
    text = (workspace.data / "tiny-shakespeare" / "input.txt").read_text(encoding="utf-8")
    cut = int(len(text) * 0.9)
    learned, held = (workspace.prepared(ROW) / name for name in ("train.txt", "valid.txt"))
    learned.write_text(text[:cut], encoding="utf-8")
    held.write_text(text[cut:], encoding="utf-8")
    return learned.absolute(), held.absolute()


def measured(model: Path, held: Path, device: str, sample: Sample) -> dict[str, float]:
    """Nats per character of the validation text, in float32, with the context length of training."""
    bundle = glassformer.load(str(model))
    where = device_for(device).type
    scorer = bundle.model.to(where).eval()
    assert bundle.tokenizer is not None
    text = held.read_text(encoding="utf-8")
    ids = np.asarray(bundle.tokenizer.encode(text, special=False).ids, np.int64)
    length = bundle.spec.max_len or 256  # type: ignore[union-attr]
    return {
        "estimate": text_loss.estimated(
            scorer, ids, length=length, batch=sample.rows, batches=sample.batches, device=where
        ),
        "exact": text_loss.exact(scorer, ids, length=length, device=where),
        "strided": text_loss.exact(scorer, ids, length=length, stride=length // 4, device=where),
    }
