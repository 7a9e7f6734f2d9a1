"""Every family and head, with the configurations in which its numbers are held against the reference.

A case is (reference class, settings for its config class). Sizes are small and odd on purpose.
"""

from __future__ import annotations

from typing import Any

Case = tuple[str, dict[str, Any]]

_GPT2 = {"vocab_size": 61, "n_embd": 24, "n_head": 4, "n_layer": 2, "n_positions": 40}

GPT2: list[Case] = [
    ("GPT2LMHeadModel", {**_GPT2}),
    ("GPT2LMHeadModel", {**_GPT2, "tie_word_embeddings": False, "n_head": 3, "n_inner": 37}),
    ("GPT2LMHeadModel", {**_GPT2, "activation_function": "relu", "scale_attn_weights": False, "n_layer": 1}),
    ("GPT2Model", {**_GPT2, "n_embd": 35, "n_head": 5, "layer_norm_epsilon": 1e-3}),
    ("GPT2ForSequenceClassification", {**_GPT2, "num_labels": 3, "pad_token_id": 60}),
    ("GPT2ForTokenClassification", {**_GPT2, "num_labels": 5, "activation_function": "gelu"}),
    ("GPT2ForQuestionAnswering", {**_GPT2, "n_layer": 3}),
]

FAMILIES: dict[str, list[Case]] = {
    "gpt2": GPT2,
}

CASES = [
    (family, number, reference, settings)
    for family, cases in FAMILIES.items()
    for number, (reference, settings) in enumerate(cases)
]
