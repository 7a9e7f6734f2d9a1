"""The same models in other libraries."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.core.positions import sinusoids

BASE = {"d_model": 512, "num_heads": 8, "d_ff": 2048, "num_layers": 6}
TINY = {"d_model": 32, "num_heads": 2, "d_ff": 64, "num_layers": 1}


def shrink() -> None:
    """Make all models tiny, for `--tiny`, which checks that a benchmark runs."""
    BASE.update(TINY)


def is_tiny() -> bool:
    return BASE == TINY


def bert_config() -> Any:
    """Return the config of BERT-base, or of its tiny version."""
    import transformers

    tiny = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    return transformers.BertConfig(**(tiny if is_tiny() else {}))


def vit_config() -> Any:
    """Return the config of ViT-B/16, or of its tiny version."""
    import transformers

    tiny = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    return transformers.ViTConfig(**(tiny if is_tiny() else {}))


def gpt2_config(**options: Any) -> Any:
    """Return the config of GPT-2 124M, or of its tiny version."""
    import transformers

    tiny = {"n_embd": 32, "n_layer": 1, "n_head": 2}
    return transformers.GPT2Config(**(tiny if is_tiny() else {}), **options)


class TorchTransformer(nn.Module):
    """torch.nn.Transformer at base size, with embeddings, positions and output projection."""

    def __init__(
        self, vocab: int, length: int, dropout: float = 0.1, padded: bool = True, pad_id: int = 0
    ) -> None:
        super().__init__()
        width = BASE["d_model"]
        self.padded, self.pad_id = padded, pad_id
        self.src, self.tgt = nn.Embedding(vocab, width), nn.Embedding(vocab, width)
        self.dropout = nn.Dropout(dropout)
        self.inner = nn.Transformer(
            width,
            BASE["num_heads"],
            BASE["num_layers"],
            BASE["num_layers"],
            BASE["d_ff"],
            dropout,
            batch_first=True,
        )
        self.out = nn.Linear(width, vocab)
        self.register_buffer("positions", sinusoids(length, width))
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        scale = BASE["d_model"] ** 0.5
        x = self.dropout(self.src(src) * scale + self.positions[: src.shape[1]])
        y = self.dropout(self.tgt(tgt) * scale + self.positions[: tgt.shape[1]])
        steps = tgt.shape[1]
        masks: dict[str, Any] = {"tgt_mask": self.causal[:steps, :steps], "tgt_is_causal": True}
        if self.padded:
            hidden = src == self.pad_id
            later = torch.zeros_like(tgt, dtype=torch.float32).masked_fill(tgt == self.pad_id, -1e9)
            masks["src_key_padding_mask"] = masks["memory_key_padding_mask"] = hidden
            masks["tgt_key_padding_mask"] = later
        return self.out(self.inner(x, y, **masks))


def marian(vocab: int, length: int, *, pad_id: int = 0, eos_id: int = 1, start_id: int = 0) -> Any:
    """Build transformers' MarianMT at base size."""
    import transformers

    sides = {}
    for side in ("encoder", "decoder"):
        sides[f"{side}_layers"] = BASE["num_layers"]
        sides[f"{side}_attention_heads"] = BASE["num_heads"]
        sides[f"{side}_ffn_dim"] = BASE["d_ff"]
    config = transformers.MarianConfig(
        vocab_size=vocab,
        d_model=BASE["d_model"],
        dropout=0.1,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=pad_id,
        eos_token_id=eos_id,
        decoder_start_token_id=start_id,
        max_position_embeddings=length,
        **sides,
    )
    return transformers.MarianMTModel(config)


class Marian(nn.Module):
    """MarianMT with the same call signature as the others."""

    def __init__(self, vocab: int, length: int) -> None:
        super().__init__()
        self.inner = marian(vocab, length)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        attention_mask = (src != 0).long()
        return self.inner(
            input_ids=src, attention_mask=attention_mask, decoder_input_ids=tgt, use_cache=False
        ).logits


def nanogpt(path: Path, vocab: int) -> Any:
    """Build nanoGPT's model from its model.py at `path`."""
    module_spec = importlib.util.spec_from_file_location("nanogpt_model", path)
    assert module_spec is not None and module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module  # torch.compile looks it up there
    module_spec.loader.exec_module(module)
    return module.GPT(module.GPTConfig(vocab_size=vocab, dropout=0.0, bias=True))
