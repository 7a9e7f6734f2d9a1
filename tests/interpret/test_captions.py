"""A caption is traced as the task generates it, and every number is that of a forward of the model."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer
from glassformer.api import Pipeline
from glassformer.core.build import build_model
from glassformer.core.embeddings import EmbeddingOutput
from glassformer.core.masks import Mask
from glassformer.data.image_files import decode_base64
from glassformer.errors import MissingValueError
from glassformer.families import gpt2, swin, vision_encoder_decoder
from glassformer.families.sidecars import IMAGE_PROCESSOR_FILE
from glassformer.interpret.catalog import describe_model
from glassformer.interpret.examples import example_input
from glassformer.interpret.head_ablation import ablate_heads
from glassformer.interpret.occlusion import background
from glassformer.interpret.search_view import next_step, search_tree
from glassformer.interpret.tensors import read_tensor
from glassformer.interpret.trace import Trace
from glassformer.interpret.views.images import shipped_example
from glassformer.tasks.image_to_text import Captioner
from glassformer.verify.inputs import perturb_parameters
from tests.interpret.models import VOCABULARY, picture, tiny_bundle, trace_of, url, wordpieces

HEAD = {"kind": "ablate_head", "attention": "decoder.blocks.1.cross_attn", "head": 2}


@pytest.fixture(scope="module")
def pocket() -> Pipeline:
    return glassformer.load("pocket-captioner")


@pytest.fixture(scope="module")
def scene(pocket: Pipeline) -> str:
    return example_input(pocket).image or ""


@pytest.fixture(scope="module")
def trace(pocket: Pipeline, scene: str) -> Trace:
    return trace_of(pocket, {"image": scene, "to": "en"})


@pytest.mark.parametrize("to", ["de", "en", "fr", "ko"])
def test_traces_steps_and_searches_equal_the_captions(pocket: Pipeline, scene: str, to: str) -> None:
    file = decode_base64(scene)
    (caption,) = pocket.caption([file], to=to)
    outcome = trace_of(pocket, {"image": scene, "to": to}).outcome
    assert (outcome.kind, outcome.text, outcome.finish_reason) == ("caption", caption, "end")
    ids: list[int] = []
    while not (step := next_step(pocket, image=scene, to=to, generated_ids=ids, top=1)).finished:
        ids.append(step.predictions[0].id)
    assert step.text == caption
    search = search_tree(pocket, image=scene, to=to, num_beams=3)
    best = Captioner(pocket, to=to, num_beams=3, num_return_sequences=3)(file)
    expected = [(one.text, pytest.approx(one.score, abs=1e-5)) for one in (best, *best.alternatives)]
    assert [(one.text, one.score) for one in search.results] == expected


def test_a_captioner_is_described_by_its_image_and_languages(pocket: Pipeline) -> None:
    info = describe_model(pocket, "pocket-captioner")
    assert (info.kind, info.architecture, info.languages) == (
        "caption",
        "encoder-decoder",
        ("de", "en", "fr", "ko"),
    )
    assert info.image is not None and info.image.grid == (12, 12) and info.example.to == "en"
    with pytest.raises(MissingValueError, match="image"):
        next_step(pocket, text="a circle")


def test_words_attend_to_patches_by_the_softmax_of_queries_and_keys(trace: Trace) -> None:
    model: Any = trace.bundle.model
    memory = trace.record["encoder.final_norm"][0]
    assert trace.sequence("source").grid == (12, 12)
    for layer in range(2):
        block, name = model.decoder.blocks[layer], f"decoder.blocks.{layer}.cross_attn"
        attention: Any = block.cross_attn
        x = block.norm_cross(trace.record[f"decoder.blocks.{layer}.resid_self"][0])
        q, k = attention.q_proj(x), attention.k_proj(memory)
        heads = [part.unflatten(-1, (5, 32)).transpose(0, 1) for part in (q, k)]  # (H, T, K), (H, S, K)
        weights = (heads[0] @ heads[1].mT / 32**0.5).softmax(-1)
        torch.testing.assert_close(read_tensor(trace, f"{name}.weights").values[0], weights.detach())


@pytest.mark.parametrize("size", [1, 3])
def test_occlusion_equals_forwards_of_covered_images(pocket: Pipeline, trace: Trace, size: int) -> None:
    drops = read_tensor(trace, f"occlusion.{size}").values
    tokens, model = trace.outcome.num_tokens, pocket.model
    assert drops.shape == (tokens, 12, 12) and (size == 1 or drops.max() > 10)
    inputs, start = trace.prepared.inputs, trace.prepared.start
    ids = inputs["tgt"].ids

    @torch.no_grad()
    def chances(pixels: torch.Tensor) -> torch.Tensor:
        logits = model(pixels, ids)[0].log_softmax(-1)
        return torch.stack([logits[n - 1, ids[0, n]] for n in range(start, start + tokens)])

    before = chances(inputs["src"])
    for row, column in ((0, 0), (3, 2), (4, 7), (11, 11)):
        covered = inputs["src"].clone()
        rows, columns = (slice(max(0, at - size // 2) * 8, (at + size // 2) * 8 + 8) for at in (row, column))
        covered[:, :, rows, columns] = background(inputs["src"])
        torch.testing.assert_close(drops[:, row, column], before - chances(covered), atol=1e-4, rtol=1e-4)


def test_the_sentence_without_a_head_is_that_of_a_model_without_it(pocket: Pipeline) -> None:
    scene = shipped_example("pocket-detector").image or ""
    other = copy.deepcopy(pocket.model)
    attention: Any = other.get_submodule(HEAD["attention"])
    with torch.no_grad():
        attention.out_proj.weight[:, 64:96] = 0
    changed = replace(pocket, model=other)
    (expected,), (own,) = (one.caption([decode_base64(scene)], to="en") for one in (changed, pocket))
    values = {"image": scene, "to": "en"}
    assert trace_of(pocket, values, [HEAD]).outcome.text == expected != own
    effects = ablate_heads(trace_of(pocket, values), HEAD["attention"]).effects
    assert len(effects) == 5 and max(effects) > 0


@pytest.mark.parametrize("family", ["vision_encoder_decoder", "vit"])
def test_masked_patches_are_not_attended_to(family: str) -> None:
    """Masking a patch equals leaving out its token, as the positions are added before."""
    bundle = tiny_bundle(family)
    image = url(picture())
    target = {"target": [7, 9, 5]} if family != "vit" else {}
    name = "input" if family == "vit" else "source"
    change = [{"kind": "mask_token", "sequence": name, "position": n} for n in (3, 11)]
    masked = trace_of(bundle, {"image": image, **target}, change)
    model: Any = bundle.model
    full = trace_of(bundle, {"image": image, **target}).record
    x = full[f"{'embed' if family == 'vit' else 'src_embed'}.out"]
    kept = [n for n in range(x.shape[1]) if n not in (3, 11)]
    with torch.no_grad():
        memory = model.encoder(EmbeddingOutput(x[:, kept], Mask()))
        if family == "vit":
            expected = model.head(memory, model.hidden_states(masked.prepared.inputs["inputs"].pixels)[1])
        else:
            expected = model.decode(masked.prepared.inputs["tgt"], memory)
    output = masked.record.output
    torch.testing.assert_close(output, expected)
    assert not torch.allclose(output, full.output)


def swin_captioner() -> Pipeline:
    """A Swin encoder of two stages, whose output is projected for a GPT-2 decoder."""
    encoder = swin.FAMILY.build(
        image_size=32, patch_size=2, embed_dim=16, depths=(1, 2), num_heads=(2, 4), window_size=4
    )
    decoder = gpt2.FAMILY.build(
        vocab_size=len(VOCABULARY), max_len=16, d_model=24, num_heads=4, d_ff=48, num_layers=2
    )
    joined = vision_encoder_decoder.join(encoder, decoder, connector=True, start_id=1)
    torch.manual_seed(0)
    bundle = Pipeline(model=build_model(joined).eval(), tokenizer=wordpieces())
    perturb_parameters(bundle.model)
    bundle.generation |= {"eos_token_id": 3, "pad_token_id": 0, "max_length": 9}
    bundle.files[IMAGE_PROCESSOR_FILE] = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.5]}
    return bundle


def test_the_decoder_reads_the_last_stage_through_the_connector() -> None:
    bundle = swin_captioner()
    trace = trace_of(bundle, {"image": url(picture())})
    info = trace.info()
    assert [one.name for one in info.sequences] == ["source", "stage2", "target"]
    cross = [one for one in info.attentions if one.kind == "cross"]
    assert {one.keys for one in cross} == {"stage2"} and len(cross) == 2
    assert read_tensor(trace, f"{cross[0].name}.weights").shape[-1] == len(trace.sequence("stage2"))
    memory = {stage.tensors["memory"] for stage in info.stages if "memory" in stage.tensors}
    assert memory == {"connector"}
    (expected,) = bundle.caption([picture()])
    assert trace.outcome.text == expected


def test_shipped_example_ignores_folders_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = shipped_example("pocket-detector")
    (tmp_path / "pocket-detector").mkdir()
    (tmp_path / "pocket-detector" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert shipped_example("pocket-detector") == expected
