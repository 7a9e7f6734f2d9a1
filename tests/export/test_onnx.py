"""ONNX Runtime computes from our export what we compute: padded, with a cache, of any size."""

from __future__ import annotations

import json
import sys
from functools import cache

import numpy as np
import pytest
import torch

import glassformer
from glassformer.core import spec
from glassformer.core.inputs import ImageInputs, Masks, SeriesInputs, TextInputs
from glassformer.core.masks import Mask
from glassformer.core.positions import RelativeBias
from glassformer.errors import UnsupportedError
from glassformer.export import onnx
from glassformer.export.onnx import export_onnx
from glassformer.generation import GenerationConfig, GenerationParams, generate
from glassformer.tokenization import load_tokenizer
from glassformer.verify.inputs import named_outputs
from tests.cli.conftest import run  # noqa: F401 (a fixture)
from tests.export.randomized import randomize_parameters
from tests.faults.scale import sample
from tests.tasks.tiny_models import ROWS, reversal_model

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

TOLERANCE = {"atol": 1e-4, "rtol": 1e-4}
START, EOS, MAX_NEW_TOKENS = 1, 2, 12


class Runtime:
    """An exported file in ONNX Runtime; inputs and outputs are named as in export.json."""

    def __init__(self, folder, name):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            folder / name, options, providers=["CPUExecutionProvider"]
        )
        self.ports = json.loads((folder / "export.json").read_text())["files"][name]
        assert [port["name"] for port in self.ports["inputs"]] == [i.name for i in self.session.get_inputs()]

    def __call__(self, **inputs):
        inputs = {name: np.asarray(value) for name, value in inputs.items()}
        names = [port["name"] for port in self.ports["outputs"]]
        return dict(zip(names, map(torch.from_numpy, self.session.run(names, inputs)), strict=True))


@cache
def runtime(folder, name):
    """Load each file once."""
    return Runtime(folder, name)


class OnnxDecoder:
    """Call with the next ids and the mask of all positions so far; keeps the KV cache."""

    def __init__(self, folder, source=None, source_mask=None):
        self.past, self.memory = {}, {}
        self.step = runtime(folder, "model.onnx" if source is None else "decoder.onnx")
        if source is not None:
            outputs = runtime(folder, "encoder.onnx")(ids=source, mask=source_mask)
            self.memory = {name: value for name, value in outputs.items() if name.startswith("cross")}
            self.memory["memory_mask"] = source_mask

    def __call__(self, ids, mask):
        for port in self.step.ports["inputs"]:
            if port["name"].startswith("past") and port["name"] not in self.past:
                shape = [len(ids), port["shape"][1], 0, port["shape"][3]]
                self.past[port["name"]] = np.zeros(shape, np.float32)
        outputs = self.step(ids=ids, mask=mask, **self.memory, **self.past)
        self.past = {n.replace("present", "past"): v for n, v in outputs.items() if n != "logits"}
        return outputs["logits"]


def exported(model, folder):
    """Export a randomized model; check that this does not change the model."""
    bundle = glassformer.Pipeline(model=randomize_parameters(model))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    parts = [type(part) for part in model.modules()]
    out = export_onnx(bundle, folder).folder
    after = model.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert parts == [type(part) for part in model.modules()]
    return out


def rows(size, batch, length, side, generator):
    """Random ids (B, T) of rows of unequal length, and their mask."""
    ids = torch.randint(3, size, (batch, length), generator=generator)
    mask = torch.ones(batch, length, dtype=torch.bool)
    for row in range(1, batch):
        short = row * length // (batch + 1)
        mask[row, slice(0, short) if side == "left" else slice(length - short, length)] = False
    return ids.masked_fill(~mask, 0), mask


def greedy(folder, source, source_mask, starts):
    """Greedy tokens of ONNX Runtime, up to the end token; starts (B, 1): for a model with a source."""
    if starts is None:
        step, ids, mask = OnnxDecoder(folder), source, source_mask
    else:
        step, ids = OnnxDecoder(folder, source, source_mask), starts
        mask = torch.ones_like(starts, dtype=torch.bool)
    tokens = []
    for _ in range(MAX_NEW_TOKENS):
        ids = step(ids, mask)[:, -1].argmax(-1, keepdim=True)
        mask = torch.cat((mask, torch.ones_like(ids, dtype=torch.bool)), 1)
        tokens.append(ids)
    texts = torch.cat(tokens, 1).tolist()
    return [text[: text.index(EOS)] if EOS in text else text for text in texts]


def check_generation(model, folder, longest):
    """Compare logits in uneven steps from an empty cache, padded, and greedy tokens."""
    out = exported(model, folder)
    has_source = isinstance(model.spec, spec.EncoderDecoderSpec)
    generator = torch.Generator().manual_seed(1)
    head = model.spec.head.vocab_size
    for batch in (3, 1):
        source, source_mask = None, None
        if has_source:
            source, source_mask = rows(model.spec.source.vocab_size, batch, longest, "right", generator)
        ids, mask = rows(head, batch, longest - 4, "right" if has_source else "left", generator)
        with torch.no_grad():
            masks = Masks(source_mask, Mask(padding=mask))
            expected = model(source, ids, masks) if has_source else model(ids, mask)
        step, done, logits = OnnxDecoder(out, source, source_mask), 0, []
        for size in (5, 1, 1, 7, ids.shape[1]):
            logits.append(step(ids[:, done : done + size], mask[:, : done + size]))
            done += size
        torch.testing.assert_close(torch.cat(logits, 1)[mask], expected[mask], **TOLERANCE)
    prompt, prompt_mask = (source, source_mask) if has_source else (ids, mask)
    prompt = prompt[:, -9:]
    prompt = torch.cat((prompt, prompt.flip(1)))
    prompt_mask = torch.ones_like(prompt, dtype=torch.bool)
    prompt_mask[1, slice(6, 9) if has_source else slice(0, 3)] = False
    config = GenerationConfig(max_new_tokens=MAX_NEW_TOKENS)
    ours = generate(
        model,
        prompt,
        GenerationParams(
            config=config, eos_token_id=EOS, pad_token_id=0, start_ids=START if has_source else None
        ),
        attention_mask=prompt_mask,
    )
    starts = torch.full((2, 1), START) if has_source else None
    theirs = greedy(out, prompt, prompt_mask, starts)
    assert theirs == [outputs[0].ids for outputs in ours] and theirs[0] != theirs[1]
    return out


ONE = {"num_layers": 1}


GENERATING = [
    ("t5", {"gated": True, "activation": "gelu_tanh", "tied": False, **ONE}),
    ("mistral", ONE),
    ("falcon", {"position": "alibi", "wiring": "parallel_split", **ONE}),
    ("original", {}),
    ("marian", {"decoder_heads": 8, **ONE}),
    ("palm", ONE),
]


@pytest.mark.parametrize(("family", "options"), sample(GENERATING, 3))
def test_generation_matches_onnx_runtime(tmp_path, family, options):
    """T5 also beyond the last bucket of its relative positions."""
    longest = 150 if family == "t5" else 23
    check_generation(glassformer.tiny(family, **options), tmp_path / "out", longest)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_tabulated_buckets_equal_computed_ones(bidirectional):
    own = RelativeBias(4, buckets=32, max_distance=128, bidirectional=bidirectional)
    torch.nn.init.normal_(own.weight)
    positions = torch.arange(300)[None]
    tabulated = onnx.TabulatedRelativeBias(own)(positions, positions).bias
    assert torch.equal(tabulated, own(positions, positions).bias)


def random_inputs(model, batch, generator):
    """Random inputs by their names in the export: padded, with token types, gaps and masked patches."""
    input_spec = model.spec.source if isinstance(model.spec, spec.EncoderDecoderSpec) else model.spec.input
    match input_spec:
        case spec.TokensSpec():
            ids, mask = rows(input_spec.vocab_size, batch, 11 + 6 * batch, "right", generator)
            inputs = {"ids": ids, "mask": mask}
            if input_spec.types is not None:
                inputs["types"] = torch.randint(input_spec.types, ids.shape, generator=generator)
            return inputs
        case spec.ImagePatchesSpec():
            return {
                "images": torch.randn(batch, input_spec.channels, *input_spec.image_size, generator=generator)
            }
        case spec.FeatureMapSpec():  # reads images of any size
            size = (batch, input_spec.backbone.channels, 64 + 37 * batch, 90)
            return {"images": torch.randn(size, generator=generator)}
        case spec.SeriesPatchesSpec():
            size = (batch, input_spec.context_length, input_spec.channels)
            inputs = {"values": 50 * torch.randn(size, generator=generator).cumsum(1) + 300}
            inputs["observed"] = torch.rand(size, generator=generator) > 0.2
            if isinstance(model.spec.head, spec.PatchReconstructSpec):
                inputs["masked_patches"] = (
                    torch.rand(batch, input_spec.channels, input_spec.num_patches, generator=generator) > 0.5
                )
            return inputs


def check_forward(model, folder):
    """Compare all outputs of the head, for three rows and for one."""
    forward = Runtime(exported(model, folder), "model.onnx")
    generator = torch.Generator().manual_seed(1)
    for batch in (3, 1):
        inputs = random_inputs(model, batch, generator)
        kind = {"ids": TextInputs, "images": ImageInputs, "values": SeriesInputs}[next(iter(inputs))]
        ours = named_outputs(model(kind(*inputs.values())))
        outputs = forward(**inputs)
        assert len(outputs) == len(ours)
        for name, theirs in outputs.items():
            expected = ours[name] if len(ours) > 1 else next(iter(ours.values()))
            if expected.shape[:2] == inputs.get("mask", torch.empty(0)).shape:
                expected, theirs = expected[inputs["mask"]], theirs[inputs["mask"]]
            torch.testing.assert_close(theirs, expected.detach(), **TOLERANCE)


TANH = spec.ClassifySpec(num_labels=3, hidden="tanh")
LAYERS = spec.BackboneSpec(layers=(1,), norm=spec.LayerNormSpec(), shared_norm=True)
STAGES = spec.BackboneSpec(layers=(0, 2), norm=spec.LayerNormSpec())
PER_CHANNEL = {"prefix": 1, "embedding": "per_channel", "pool": "mean"}
FORWARD = [  # the first of them have every part once
    ("modernbert", {"num_layers": 2}),
    ("deberta", ONE),
    ("bert", {"head": TANH, "tied": False, **ONE}),
    ("roberta", {"head": spec.TokenClassifySpec(num_labels=4), "tied": False, **ONE}),
    ("sentence", {"pool": "last", **ONE}),
    ("deit", ONE),
    ("dinov2", {"head": LAYERS}),
    ("swinv2", {}),
    ("swin", {"head": STAGES}),
    ("vit", {"head": spec.PixelsSpec(num_labels=3), **ONE}),
    ("yolos", ONE),
    ("detr", {}),
    ("clip", {"tower": "text", "max_len": 40}),
    ("siglip", {"tower": "image"}),
    ("patchtst", {**PER_CHANNEL, "distribution": "student_t", **ONE}),
    ("patchtst", {"head": spec.PatchReconstructSpec(), **ONE}),
    ("gpt2", {"head": spec.ClassifySpec(num_labels=3, pool="last"), "tied": False, **ONE}),
    ("albert", {}),
    ("bert", {"head": spec.FeaturesSpec(pooler=True), "tied": False, **ONE}),
    ("dinov2", {"head": spec.FeaturesSpec(pool="first"), **ONE}),
    ("detr", {"position": "learned"}),
    ("clip", {"tower": "image"}),
    ("siglip", {"tower": "text", "max_len": 40}),
    ("patchtst", {"norm": "layer", **ONE}),
]


@pytest.mark.parametrize(("family", "options"), sample(FORWARD, 17))
def test_forward_matches_onnx_runtime(tmp_path, family, options):
    check_forward(glassformer.tiny(family, **options), tmp_path / "out")


def test_encoder_decoder_classifier_matches_onnx_runtime(tmp_path):
    """It reads its source again as the target, up to the last end token."""
    head = spec.ClassifySpec(num_labels=3, pool="end", end_id=2, hidden="tanh")
    model = glassformer.tiny("bart", head=head, **ONE)
    forward = Runtime(exported(model, tmp_path / "out"), "model.onnx")
    ids, mask = rows(101, 3, 21, "right", torch.Generator().manual_seed(1))
    ids[torch.arange(3), mask.sum(1) - 1] = 2
    inputs = {"ids": ids, "mask": mask, "target": ids.roll(1, 1), "target_mask": mask}
    torch.testing.assert_close(
        forward(**inputs)["logits"],
        model(ids, inputs["target"], Masks(mask, Mask(padding=mask))).detach(),
        **TOLERANCE,
    )


def test_exported_translator_gives_the_same_translations(tmp_path, run):  # noqa: F811
    """Export from the command line, with the tokenizer of the exported folder."""
    done = run("export", reversal_model(), "--format", "onnx", "--out", tmp_path / "out", "--json")
    assert done.code == 0, done.err
    assert {"encoder.onnx", "decoder.onnx", "export.json"} < set(json.loads(done.out)["files"])
    bundle, tokenizer = glassformer.load(reversal_model()), load_tokenizer(tmp_path / "out")
    metadata, translations = json.loads((tmp_path / "out" / "export.json").read_text()), []
    for row in ROWS:
        ids = torch.tensor([tokenizer.encode(row).ids])
        step = OnnxDecoder(tmp_path / "out", ids, torch.ones_like(ids, dtype=torch.bool))
        target = list(metadata["starts"])
        while len(target) == 1 or (target[-1] not in metadata["ends"] and len(target) <= 16):
            mask = torch.ones(1, len(target), dtype=torch.bool)
            target.append(int(step(torch.tensor([target[-1:]]), mask)[0, -1].argmax()))
        translations.append(tokenizer.decode(target[1:]))
    assert translations == bundle.translate(ROWS, num_beams=1, max_new_tokens=16)


def test_shared_weights_are_stored_once_and_large_ones_externally(tmp_path, monkeypatch):
    """Weights keep their names, and the runtime finds the external file."""
    monkeypatch.setattr(onnx, "MAX_EMBEDDED", 100_000)
    model = glassformer.tiny("gpt2", vocab_size=4000)
    out = check_generation(model, tmp_path / "out", longest=20)
    weights = sum(p.nbytes for p in model.parameters())
    assert 0.95 * weights < (out / "model.onnx.data").stat().st_size < 1.1 * weights
    graph = (out / "model.onnx").read_bytes()
    assert len(graph) < 50_000 and b"decoder.blocks.1.self_attn.q_proj.weight" in graph
    assert str(tmp_path.home()).encode() not in graph and b"site-packages" not in graph


def test_towers_of_a_pair_are_exported_one_by_one(tmp_path):
    pair = glassformer.Pipeline(model=randomize_parameters(glassformer.tiny("clip")))
    with pytest.raises(UnsupportedError, match=r"pipeline\.tower"):
        export_onnx(pair, tmp_path / "pair")
    image = pair.tower("image")
    forward = Runtime(export_onnx(image, tmp_path / "image").folder, "model.onnx")
    inputs = random_inputs(image.model, 2, torch.Generator().manual_seed(1))
    expected = named_outputs(image.model(inputs["images"]))
    for name, theirs in forward(**inputs).items():
        torch.testing.assert_close(theirs, expected[name].detach(), **TOLERANCE)


@pytest.mark.parametrize(
    ("family", "named"),
    [
        ("maskformer", "mask classification"),
        ("eomt", "mask classification"),
        ("sam", "promptable"),
        ("vision_encoder_decoder", "text decoder"),
        ("llava", "text decoder"),
        ("vilt", "TokensAndPatches"),
    ],
)
def test_unsupported_segmenters_are_named(tmp_path, family, named):
    with pytest.raises(UnsupportedError, match=named):
        export_onnx(glassformer.Pipeline(model=glassformer.tiny(family)), tmp_path / "out")


def test_unsupported_model_dtype_and_missing_package(tmp_path, run, monkeypatch):  # noqa: F811
    from glassformer.baselines import build_baseline
    from glassformer.baselines import spec as baseline

    lstm = build_baseline(baseline.LSTMEncoderDecoderSpec(src_vocab_size=20, tgt_vocab_size=20, d_model=8))
    with pytest.raises(UnsupportedError):
        export_onnx(glassformer.Pipeline(model=lstm), tmp_path / "out")
    dtype = run("export", "tiny:gpt2", "--format", "onnx", "--dtype", "float16", "--out", tmp_path / "out")
    assert dtype.code == 2 and "float32" in dtype.err
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    absent = run("export", "tiny:gpt2", "--format", "onnx", "--out", tmp_path / "out")
    assert absent.code == 2 and "onnxscript" in absent.err
    assert list(tmp_path.iterdir()) == []
