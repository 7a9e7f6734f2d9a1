"""What ONNX's own runtime makes of our export is what we make: padded, from a cache, of any size."""

from __future__ import annotations

import json
import sys
from functools import cache

import numpy as np
import pytest
import torch

import glassformer
from glassformer.core import spec
from glassformer.core.positions import RelativeBias
from glassformer.errors import UnsupportedError
from glassformer.export import onnx as exporting
from glassformer.export.onnx import export_onnx
from glassformer.generation import GenerationConfig, GenerationParams, generate
from glassformer.tokenization import load_tokenizer
from tests.cli.conftest import run  # noqa: F401 (a fixture)
from tests.export.shaken import shaken
from tests.tasks.reversing import ROWS, reverser

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

WITHIN = {"atol": 1e-4, "rtol": 1e-4}
START, EOS, MOST = 1, 2, 12


class Runtime:
    """A file of an export in ONNX's runtime, by the names that its JSON tells."""

    def __init__(self, folder, name):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            folder / name, options, providers=["CPUExecutionProvider"]
        )
        self.told = json.loads((folder / "export.json").read_text())["files"][name]
        assert [port["name"] for port in self.told["inputs"]] == [i.name for i in self.session.get_inputs()]

    def __call__(self, **given):
        given = {name: np.asarray(value) for name, value in given.items()}
        names = [port["name"] for port in self.told["outputs"]]
        return dict(zip(names, map(torch.from_numpy, self.session.run(names, given)), strict=True))


@cache
def runtime(folder, name):
    """Read once for all texts that go through it."""
    return Runtime(folder, name)


class Stepping:
    """Their model as a function of the next ids and of all real positions so far; it keeps the cache."""

    def __init__(self, folder, source=None, real=None):
        self.past, self.fixed = {}, {}
        self.step = runtime(folder, "model.onnx" if source is None else "decoder.onnx")
        if source is not None:
            found = runtime(folder, "encoder.onnx")(ids=source, mask=real)
            self.fixed = {name: value for name, value in found.items() if name.startswith("cross")}
            self.fixed["memory_mask"] = real

    def __call__(self, ids, mask):
        for port in self.step.told["inputs"]:
            if port["name"].startswith("past") and port["name"] not in self.past:
                shape = [len(ids), port["shape"][1], 0, port["shape"][3]]
                self.past[port["name"]] = np.zeros(shape, np.float32)
        found = self.step(ids=ids, mask=mask, **self.fixed, **self.past)
        self.past = {n.replace("present", "past"): v for n, v in found.items() if n != "logits"}
        return found["logits"]


def exported(model, folder):
    """The folder of an export that leaves the model as it was."""
    bundle = glassformer.Pipeline(model=shaken(model))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    parts = [type(part) for part in model.modules()]
    out = export_onnx(bundle, folder).folder
    after = model.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert parts == [type(part) for part in model.modules()]
    return out


def rows(size, batch, length, side, draw):
    """Random ids (B, T) of unequal lengths, and which are real."""
    ids = torch.randint(3, size, (batch, length), generator=draw)
    real = torch.ones(batch, length, dtype=torch.bool)
    for row in range(1, batch):
        short = row * length // (batch + 1)
        real[row, slice(0, short) if side == "left" else slice(length - short, length)] = False
    return ids.masked_fill(~real, 0), real


def greedy(folder, source, real, starts):
    """Their greedy tokens, each row's before its end token; `starts` (B, 1) for a model with a source."""
    if starts is None:
        step, ids, mask = Stepping(folder), source, real
    else:
        step, ids, mask = Stepping(folder, source, real), starts, torch.ones_like(starts, dtype=torch.bool)
    written = []
    for _ in range(MOST):
        ids = step(ids, mask)[:, -1].argmax(-1, keepdim=True)
        mask = torch.cat((mask, torch.ones_like(ids, dtype=torch.bool)), 1)
        written.append(ids)
    texts = torch.cat(written, 1).tolist()
    return [text[: text.index(EOS)] if EOS in text else text for text in texts]


def check_writing(model, folder, longest):
    """Logits in uneven steps from an empty cache, padded; greedy tokens; one row; against ours at once."""
    out = exported(model, folder)
    two = isinstance(model.spec, spec.EncoderDecoderSpec)
    draw = torch.Generator().manual_seed(1)
    head = model.spec.head.vocab_size
    for batch in (3, 1):
        source, real = None, None
        if two:
            source, real = rows(model.spec.source.vocab_size, batch, longest, "right", draw)
        ids, mask = rows(head, batch, longest - 4, "right" if two else "left", draw)
        with torch.no_grad():
            expected = model(source, ids, real, mask) if two else model(ids, mask)
        step, done, found = Stepping(out, source, real), 0, []
        for size in (5, 1, 1, 7, ids.shape[1]):
            found.append(step(ids[:, done : done + size], mask[:, : done + size]))
            done += size
        torch.testing.assert_close(torch.cat(found, 1)[mask], expected[mask], **WITHIN)
    prompt, seen = (source, real) if two else (ids, mask)
    prompt, seen = prompt[:, -9:], seen[:, -9:]
    prompt = torch.cat((prompt, prompt.flip(1)))
    seen = torch.ones_like(prompt, dtype=torch.bool)
    seen[1, slice(6, 9) if two else slice(0, 3)] = False
    settings = GenerationConfig(max_new_tokens=MOST)
    ours = generate(
        model,
        prompt,
        GenerationParams(config=settings, eos_token_id=EOS, pad_token_id=0, start_ids=START if two else None),
        attention_mask=seen,
    )
    starts = torch.full((2, 1), START) if two else None
    theirs = greedy(out, prompt, seen, starts)
    assert theirs == [text[0].ids for text in ours] and theirs[0] != theirs[1]
    return out


ONE = {"num_layers": 1}


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("original", {}),
        ("t5", {"gated": True, "activation": "gelu_tanh", "tied": False, **ONE}),
        ("marian", {"decoder_heads": 8, **ONE}),
        ("llama", ONE),
        ("mistral", ONE),
        ("falcon", {"position": "alibi", "wiring": "parallel_split", **ONE}),
        ("palm", ONE),
    ],
)
def test_models_that_write_from_a_cache(tmp_path, family, words):
    """Relative positions also beyond their last bucket, and where a logarithm may round to either side.

    The first is of two blocks, and so is GPT-2 below.
    """
    longest = 150 if family == "t5" else 23
    check_writing(glassformer.tiny(family, **words), tmp_path / "out", longest)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_buckets_looked_up_are_those_worked_out(bidirectional):
    own = RelativeBias(4, buckets=32, max_distance=128, bidirectional=bidirectional)
    torch.nn.init.normal_(own.weight)
    places = torch.arange(300)[None]
    looked_up = exporting.LookedUp(own)(places, places).bias
    assert torch.equal(looked_up, own(places, places).bias)


def given_to(model, batch, draw):
    """Inputs by their names in the export, padded, with types, gaps and hidden patches if there are any."""
    what = model.spec.source if isinstance(model.spec, spec.EncoderDecoderSpec) else model.spec.input
    match what:
        case spec.TokensSpec():
            ids, mask = rows(what.vocab_size, batch, 11 + 6 * batch, "right", draw)
            given = {"ids": ids, "mask": mask}
            if what.types is not None:
                given["types"] = torch.randint(what.types, ids.shape, generator=draw)
            return given
        case spec.ImagePatchesSpec():
            return {"images": torch.randn(batch, what.channels, *what.image_size, generator=draw)}
        case spec.SeriesPatchesSpec():
            size = (batch, what.context_length, what.channels)
            given = {"values": 50 * torch.randn(size, generator=draw).cumsum(1) + 300}
            given["observed"] = torch.rand(size, generator=draw) > 0.2
            if isinstance(model.spec.head, spec.PatchReconstructSpec):
                given["masked_patches"] = (
                    torch.rand(batch, what.channels, what.num_patches, generator=draw) > 0.5
                )
            return given


def check_reading(model, folder):
    """Everything the head gives, for three rows and for one."""
    reading = Runtime(exported(model, folder), "model.onnx")
    draw = torch.Generator().manual_seed(1)
    for batch in (3, 1):
        given = given_to(model, batch, draw)
        first, *others = given
        plain = [given[name] for name in others if name == "mask"]
        ours = model(given[first], *plain, **{name: given[name] for name in others if name != "mask"})
        ours = ours._asdict() if hasattr(ours, "_asdict") else {None: ours}
        found = reading(**given)
        assert len(found) == len(ours)
        for name, theirs in found.items():
            mine = ours[name] if len(ours) > 1 else ours[None]
            if mine.shape[:2] == given.get("mask", torch.empty(0)).shape:
                mine, theirs = mine[given["mask"]], theirs[given["mask"]]
            torch.testing.assert_close(theirs, mine.detach(), **WITHIN)


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("bert", {}),
        ("bert", {"head": spec.ClassifySpec(num_labels=3, hidden="tanh"), "tied": False, **ONE}),
        ("bert", {"head": spec.FeaturesSpec(pooler=True), "tied": False, **ONE}),
        ("roberta", {"head": spec.TokenClassifySpec(num_labels=4), "tied": False, **ONE}),
        ("sentence", {"pool": "last", **ONE}),
        ("vit", ONE),
        ("deit", ONE),
        ("patchtst", {"norm": "layer", **ONE}),
        (
            "patchtst",
            {"prefix": 1, "embedding": "per_channel", "distribution": "student_t", "pool": "mean", **ONE},
        ),
        ("patchtst", {"head": spec.PatchReconstructSpec(), **ONE}),
        ("gpt2", {"head": spec.ClassifySpec(num_labels=3, pool="last"), "tied": False, **ONE}),
    ],
)
def test_models_that_read_all_at_once(tmp_path, family, words):
    check_reading(glassformer.tiny(family, **words), tmp_path / "out")


def test_labels_read_off_a_decoder(tmp_path):
    """An encoder-decoder that classifies reads its source again as the target, up to the last end token."""
    head = spec.ClassifySpec(num_labels=3, pool="end", end_id=2, hidden="tanh")
    model = glassformer.tiny("bart", head=head, **ONE)
    found = Runtime(exported(model, tmp_path / "out"), "model.onnx")
    ids, mask = rows(101, 3, 21, "right", torch.Generator().manual_seed(1))
    ids[torch.arange(3), mask.sum(1) - 1] = 2
    given = {"ids": ids, "mask": mask, "target": ids.roll(1, 1), "target_mask": mask}
    torch.testing.assert_close(
        found(**given)["logits"], model(ids, given["target"], mask, mask).detach(), **WITHIN
    )


def test_a_trained_folder_translates_the_same(tmp_path, run):  # noqa: F811
    """From a job's folder by the command line; the tokenizer that lies in the export spells its tokens."""
    done = run("export", reverser(), "--format", "onnx", "--out", tmp_path / "out", "--json")
    assert done.code == 0, done.err
    assert {"encoder.onnx", "decoder.onnx", "export.json"} < set(json.loads(done.out)["files"])
    bundle, tokenizer = glassformer.load(reverser()), load_tokenizer(tmp_path / "out")
    told, found = json.loads((tmp_path / "out" / "export.json").read_text()), []
    for row in ROWS:
        ids = torch.tensor([tokenizer.encode(row).ids])
        step = Stepping(tmp_path / "out", ids, torch.ones_like(ids, dtype=torch.bool))
        written = list(told["starts"])
        while len(written) == 1 or (written[-1] not in told["ends"] and len(written) <= 16):
            mask = torch.ones(1, len(written), dtype=torch.bool)
            written.append(int(step(torch.tensor([written[-1:]]), mask)[0, -1].argmax()))
        found.append(tokenizer.decode(written[1:]))
    assert found == bundle.translate(ROWS, num_beams=1, max_new_tokens=16)


def test_a_shared_matrix_is_stored_once_and_large_ones_beside(tmp_path, monkeypatch):
    """Weights under their own names; from a size on in a file of their own, which the runtime finds."""
    monkeypatch.setattr(exporting, "LARGE", 100_000)
    model = glassformer.tiny("gpt2", vocab_size=4000)
    out = check_writing(model, tmp_path / "out", longest=20)
    weights = sum(p.nbytes for p in model.parameters())
    assert 0.95 * weights < (out / "model.onnx.data").stat().st_size < 1.1 * weights
    graph = (out / "model.onnx").read_bytes()
    assert len(graph) < 50_000 and b"decoder.blocks.1.self_attn.q_proj.weight" in graph
    assert str(tmp_path.home()).encode() not in graph and b"site-packages" not in graph


def test_unsupported_model_dtype_and_missing_package_are_refused(tmp_path, run, monkeypatch):  # noqa: F811
    from glassformer.baselines import build_baseline
    from glassformer.baselines import spec as baseline

    lstm = build_baseline(baseline.LSTMEncoderDecoderSpec(src_vocab_size=20, tgt_vocab_size=20, d_model=8))
    with pytest.raises(UnsupportedError):
        export_onnx(glassformer.Pipeline(model=lstm), tmp_path / "out")
    dtype = run("export", "tiny:gpt2", "--format", "onnx", "--dtype", "int8", "--out", tmp_path / "out")
    assert dtype.code == 2 and "float32" in dtype.err
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    absent = run("export", "tiny:gpt2", "--format", "onnx", "--out", tmp_path / "out")
    assert absent.code == 2 and "[export]" in absent.err
    assert list(tmp_path.iterdir()) == []
