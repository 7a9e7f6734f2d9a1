"""The language-model rows: losses, and two small models end to end."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from experiments import language, nanogpt, text_loss
from experiments.corpora import CORPORA, PARTS, Corpus
from experiments.paths import Workspace, data_folder
from glassformer.recipes import recipe_path

LETTERS = np.random.default_rng(0).integers(0, 7, 101)
TABLE = torch.randn(7, 7, generator=torch.Generator().manual_seed(0))


def by_last(ids: torch.Tensor) -> torch.Tensor:
    """Logits that depend only on the last id, so that every window gives the same loss."""
    return TABLE[ids]


@pytest.mark.parametrize(("length", "stride"), [(16, None), (16, 4), (7, 3), (200, None), (200, 5)])
def test_exact_loss_counts_every_id_but_the_first_once(length, stride):
    ids = torch.from_numpy(LETTERS)
    expected_loss = float(F.cross_entropy(TABLE[ids[:-1]], ids[1:]))
    result = text_loss.exact(by_last, LETTERS, length=length, stride=stride, batch=3)
    assert result == pytest.approx(expected_loss, rel=1e-6)


def test_stride_gives_every_later_id_context():
    counted = []
    for window, labels in text_loss.windows(np.arange(101), 16, 4, 5):
        for row in range(len(window)):
            (at,) = np.nonzero(labels[row] != text_loss.IGNORED)
            assert (labels[row][at] == window[row][at] + 1).all()
            assert counted == [] or at.min() >= 12
            counted += labels[row][at].tolist()
    assert counted == list(range(1, 101))


def test_the_estimate_is_near_the_exact_loss():
    result = text_loss.estimated(by_last, LETTERS, length=16, batch=32, batches=40)
    assert result == pytest.approx(text_loss.exact(by_last, LETTERS, length=16), abs=0.05)


@pytest.mark.skipif(not (data_folder() / "wikitext-2").is_dir(), reason="GLASSFORMER_DATA has no wikitext-2")
def test_word_counts_match_published_perplexities():
    corpus = CORPORA["wikitext2"]
    result = {part: corpus.units(text) for part, text in corpus.texts(data_folder()).items()}
    assert result == {"train": 2_088_628, "valid": 217_646, "test": 245_569}


def test_characters_are_the_bytes_of_the_file(tmp_path):
    (tmp_path / "enwik8-10M").mkdir()
    expected_loss = np.random.default_rng(0).integers(0, 256, 10_000_000).astype(np.uint8).tobytes()
    path = tmp_path / "enwik8-10M" / "enwik8.first10M.gz"
    path.write_bytes(gzip.compress(expected_loss, compresslevel=0))
    texts = CORPORA["enwik8"].texts(tmp_path)
    assert "".join(texts[part] for part in PARTS).encode("latin-1") == expected_loss
    assert [len(texts[part]) for part in PARTS] == [9_000_000, 500_000, 500_000]


PEER = """
from dataclasses import dataclass
import torch
from torch.nn import functional as F

@dataclass
class GPTConfig:
    block_size: int
    vocab_size: int
    n_layer: int
    n_head: int
    n_embd: int
    dropout: float
    bias: bool

class GPT(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.table = torch.nn.Embedding(config.vocab_size, config.vocab_size)

    def forward(self, ids, labels):
        logits = self.table(ids)
        return logits, F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    def configure_optimizers(self, weight_decay, lr, betas, device):
        return torch.optim.AdamW(self.parameters(), lr=lr, betas=betas, weight_decay=weight_decay)
"""


@pytest.fixture
def contest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Corpus, Workspace]:
    """A small text, small models, and a moment of training for each."""
    texts = {part: "abcdefghij" * (80 if part == "train" else 30) for part in PARTS}
    recipe = tmp_path / "small.yaml"
    recipe_text = recipe_path("lm-enwik8").read_text(encoding="utf-8")
    for old, new in {
        "d_model: 384": "d_model: 24",
        "num_layers: 6": "num_layers: 1",
        "d_ff: 1536": "d_ff: 48",
        "length: 496": "length: 16",
        "batch_tokens: 21328": "batch_tokens: 64",
        "compile: reduce-overhead": "compile: off",
    }.items():
        assert old in recipe_text
        recipe_text = recipe_text.replace(old, new)
    recipe.write_text(recipe_text, encoding="utf-8")
    (tmp_path / "peer.py").write_text(PEER)
    monkeypatch.setenv("NANOGPT_MODEL", str(tmp_path / "peer.py"))
    for name, value in {"REHEARSED": 8, "EVERY": 2}.items():
        monkeypatch.setattr(language, name, value)
    monkeypatch.setattr(nanogpt, "TIMED", 3)
    corpus = Corpus(
        row="contest",
        recipe=str(recipe),
        texts=lambda _: texts,
        kind="char",
        vocab_size=100,
        unit="byte",
        length=16,
        rows=4,
        dropout=0.1,
    )
    workspace = Workspace(
        data=tmp_path, work=tmp_path / "work", figures=tmp_path / "figures", device="cpu", seconds=0.3
    )
    return corpus, workspace


@pytest.mark.usefixtures("in_process")
def test_both_sides_of_a_comparison_are_recorded(contest):
    corpus, workspace = contest
    result = {}
    for name in ("ours/1", "nanogpt/1"):
        language.contest(corpus, workspace, name)
        path = workspace.figures / "contest" / f"{name.replace('/', '-')}.json"
        result[name] = json.loads(path.read_text())
    for record in result.values():
        figures = record["figures"]
        assert figures["steps"] >= 10 and figures["seconds of steps"] > 0 and record["curve"]
        # 300 characters and the end token are 300 predictions
        assert figures["test bits a byte"] == pytest.approx(figures["test"] / np.log(2), rel=1e-4)
    best = min(figure for _, figure in result["nanogpt/1"]["curve"])
    assert result["nanogpt/1"]["figures"]["valid"] == pytest.approx(best, abs=1e-5)
    ours = result["ours/1"]
    assert ours["figures"]["valid"] == pytest.approx(min(value for _, value in ours["curve"]), abs=1e-4)
