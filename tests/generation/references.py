"""Tiny random models of transformers, and ours with the same weights."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from torch import Tensor

import glassformer
from glassformer.generation import GenerationConfig
from tests.generation.test_greedy import generate_with

VOCAB, EOS, PAD = 61, 5, 0
_TEXT = {"vocab_size": VOCAB, "eos_token_id": EOS, "pad_token_id": PAD, "bos_token_id": 1}
_PAIR = {
    **_TEXT, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 37, "decoder_ffn_dim": 37, "forced_eos_token_id": None,
    "max_position_embeddings": 60, "tie_word_embeddings": False,
}  # fmt: skip
_DECODER = {
    **_TEXT, "hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 37,
    "num_key_value_heads": 2, "tie_word_embeddings": False,
}  # fmt: skip
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "marian": (
        "MarianMTModel",
        {**_PAIR, "pad_token_id": 60, "decoder_start_token_id": 60, "decoder_vocab_size": VOCAB,
         "share_encoder_decoder_embeddings": False},
    ),
    "bart": ("BartForConditionalGeneration", {**_PAIR, "decoder_start_token_id": 2, "pad_token_id": 0,
                                              "tie_word_embeddings": True}),
    "t5": (
        "T5ForConditionalGeneration",
        {**_TEXT, "d_model": 24, "d_kv": 5, "num_heads": 4, "d_ff": 37, "num_layers": 2,
         "decoder_start_token_id": 0, "tie_word_embeddings": False},
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        {**_TEXT, "n_embd": 24, "n_head": 4, "n_layer": 2, "n_positions": 60, "tie_word_embeddings": False},
    ),
    "llama": ("LlamaForCausalLM", _DECODER),
    "mistral": ("MistralForCausalLM", {**_DECODER, "sliding_window": 7, "head_dim": 6}),
    "falcon": (
        "FalconForCausalLM",
        {**_TEXT, "hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 2, "alibi": False,
         "new_decoder_architecture": False, "multi_query": True, "parallel_attn": True, "bias": False},
    ),
}  # fmt: skip


@cache
def pair(family: str) -> tuple[Any, Any]:
    """The transformers model and ours."""
    torch.manual_seed(4)
    name, kwargs = CONFIGS[family]
    kind = getattr(transformers, name)
    theirs = kind(kind.config_class(**kwargs)).eval()
    with torch.no_grad():
        for value in theirs.parameters():
            if value.requires_grad and value.dim() > 1:
                value.copy_(torch.randn_like(value) * 1.2 / value.shape[-1] ** 0.5)
    with TemporaryDirectory() as folder:
        theirs.save_pretrained(Path(folder))
        ours = glassformer.load(Path(folder)).model
    return theirs, ours


def rows(count: int = 3) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    lengths = (7, 3, 5, 1)
    return [torch.randint(6, 50, (lengths[n % 4],), generator=generator).tolist() for n in range(count)]


def padded(rows: list[list[int]], side: str, pad: int) -> tuple[Tensor, Tensor]:
    """ids and mask (B, S)."""
    width = max(map(len, rows))
    ids, mask = torch.full((len(rows), width), pad), torch.zeros(len(rows), width, dtype=torch.bool)
    for n, row in enumerate(rows):
        at = slice(width - len(row), width) if side == "left" else slice(0, len(row))
        ids[n, at], mask[n, at] = torch.tensor(row), True
    return ids, mask


@cache
def varied_eos_ids(family: str) -> tuple[int, int]:
    """The two end tokens for which the outputs have the most different lengths."""
    theirs, ours = pair(family)
    pad = theirs.config.pad_token_id
    ids, mask = padded(rows(), "right", pad)
    settings = GenerationConfig(num_beams=4, num_return_sequences=4, max_new_tokens=14)
    free = generate_with(ours, ids, mask, config=settings, eos_token_id=None, pad_token_id=pad)
    tokens = {token for texts in free for text in texts for token in text.ids}

    def lengths(end: int) -> int:
        outputs = generate_with(ours, ids, mask, config=settings, eos_token_id=end, pad_token_id=pad)
        return len({len(text.ids) for texts in outputs for text in texts})

    first, second, *_ = sorted(tokens - {pad}, key=lambda end: (-lengths(end), end))
    return first, second


def reference_generate(
    theirs: Any, ids: Tensor, mask: Tensor, ends: tuple[int, ...] = (EOS,), **kwargs: Any
) -> tuple[list[list[int]], Tensor]:
    """What transformers generates, without end tokens, and the scores as we define them."""
    config = theirs.config
    out = theirs.generate(
        input_ids=ids, attention_mask=mask.long(), return_dict_in_generate=True, output_scores=True,
        eos_token_id=list(ends), pad_token_id=config.pad_token_id,
        **{"top_k": 0, "do_sample": False, **kwargs},
    )  # fmt: skip
    start = ids.shape[1]
    if config.is_encoder_decoder:
        start = kwargs["decoder_input_ids"].shape[1] if "decoder_input_ids" in kwargs else 1
    texts = []
    for row in out.sequences[:, start:].tolist():
        texts.append(row[: next((n for n, token in enumerate(row) if token in ends), len(row))])
    if kwargs.get("num_beams", 1) > 1:
        return texts, out.sequences_scores
    logprobs = theirs.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)
    is_end = torch.isin(out.sequences[:, start:], torch.tensor(ends)).int()
    after_end = is_end.cumsum(1) - is_end > 0
    return texts, logprobs.masked_fill(after_end, 0.0).sum(1)
