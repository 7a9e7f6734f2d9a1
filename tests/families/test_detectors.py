"""Detectors: image sizes, padded images, backbones in timm's layout, deep supervision, wrong variants."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import glassformer
from glassformer.core import spec
from glassformer.core.build import build_model
from glassformer.core.inputs import ImageInputs, Memory
from glassformer.core.vision.heads import BoxOutput
from glassformer.families.registry import preset_spec
from tests.families import harness
from tests.families.cases import DETR, YOLOS


def loaded(case: Any, folder: Path) -> tuple[Any, Any]:
    """The reference, and our model with its weights."""
    reference = harness.reference(*case)
    return reference, glassformer.load(harness.save_reference(reference, folder)).model


def gap(ours: BoxOutput, theirs: Any) -> float:
    return harness.worst(ours, theirs, None)


@pytest.mark.parametrize("size", [(16, 24), (40, 17), (8, 64)])
@pytest.mark.parametrize("case", YOLOS[:3], ids=["mid", "first", "deeper"])
def test_positions_of_patches_are_interpolated(case: Any, size: tuple[int, int], tmp_path: Path) -> None:
    reference, model = loaded(case, tmp_path)
    pixels = torch.randn(2, 3, *size)
    with torch.no_grad():
        theirs = reference(pixels)
        assert gap(model(pixels), theirs) < 1e-5
        if size != (16, 24):
            tables = model.embed.layer_positions
            if tables is not None:  # without those of the later layers it must differ
                model.embed.layer_positions = None
                assert gap(model(pixels), theirs) > 1e-3
            model.embed.position.zero_()
            assert gap(model(pixels), theirs) > 1e-3


def test_newer_names_are_read(tmp_path: Path) -> None:
    for case in (YOLOS[0], DETR[0]):
        reference = harness.reference(*case)
        folder = harness.save_reference(reference, tmp_path / case[0])
        published = load_file(folder / "model.safetensors")
        save_file(dict(reference.state_dict()), folder / "model.safetensors")
        assert published.keys() != reference.state_dict().keys()
        pixels = torch.randn(1, 3, 40, 56)
        with torch.no_grad():
            assert gap(glassformer.load(folder).model(pixels), reference(pixels)) < 1e-5


def test_padding_and_positions_change_the_result(tmp_path: Path) -> None:
    """Deliberately wrong variants: no mask, no positions on keys, on values too, unshared decoder norm."""
    reference, model = loaded(DETR[0], tmp_path)
    pixels, mask = torch.randn(2, 3, 77, 61), torch.ones(2, 77, 61, dtype=torch.bool)
    mask[1, 50:], mask[1, :, 30:] = False, False
    with torch.no_grad():
        theirs = reference(pixels, pixel_mask=mask.long())
        assert gap(model(ImageInputs(pixels, mask)), theirs) < 1e-5
        assert gap(model(pixels), theirs) > 1e-3
        embedded = model.src_embed(ImageInputs(pixels, mask))
        positions, queries = embedded.position_embeddings, model.tgt_embed(2)

        def detect(x: Any, encoder: Any, keys: Any, places: Any) -> BoxOutput:
            memory = model.encoder(embedded._replace(x=x, position_embeddings=encoder))
            memory = Memory(memory, embedded.mask, keys)
            hidden = model.decoder(queries._replace(position_embeddings=places), memory)
            return model.head(hidden, glassformer.core.heads.HeadContext())

        right = queries.position_embeddings
        assert gap(detect(embedded.x, positions, positions, right), theirs) < 1e-5
        for wrong in (
            (embedded.x, None, positions, right),
            (embedded.x, positions, None, right),
            (embedded.x, positions, positions, None),
            (embedded.x + positions, positions, positions, right),
        ):
            assert gap(detect(*wrong), theirs) > 1e-3


def _other_box_activation(head: Any) -> None:
    head.box.activation = "tanh"


def _unbounded_boxes(head: Any) -> None:
    head._predict = lambda x, predict=head._predict: (predict(x)[0], predict(x)[1].logit())


def _other_tokens(head: Any) -> None:
    head._predict = lambda x, predict=head._predict: predict(x[:, : x.shape[1] - 1])


def _other_class_activation(head: Any) -> None:
    head.out.activation = "tanh"


WRONG_HEADS = [
    *((DETR[0], change) for change in (_other_box_activation, _unbounded_boxes)),
    *((YOLOS[0], change) for change in (_other_box_activation, _other_class_activation, _other_tokens)),
]


@pytest.mark.parametrize(("case", "change"), WRONG_HEADS, ids=lambda value: getattr(value, "__name__", ""))
def test_wrong_box_head_changes_the_result(case: Any, change: Any, tmp_path: Path) -> None:
    reference, model = loaded(case, tmp_path)
    pixels = torch.randn(2, 3, 40, 56)
    with torch.no_grad():
        theirs = reference(pixels)
        assert gap(model(pixels), theirs) < 1e-5
        change(model.head)
        assert gap(model(pixels), theirs) > 1e-3


def test_training_returns_the_outputs_of_earlier_layers(tmp_path: Path) -> None:
    """Each decoder layer's output passes the shared norm and the heads; in evaluation there are none."""
    reference, model = loaded(DETR[4], tmp_path)  # three decoder layers
    pixels = torch.randn(2, 3, 65, 65)
    assert model.eval()(pixels).layers == ()
    dropout = [module for module in model.modules() if hasattr(module, "p")]
    for module in dropout:
        module.p = 0.0
    with torch.no_grad():
        output, hidden = model.train()(pixels), reference(pixels, output_hidden_states=True)
        assert len(output.layers) == 2
        norm = reference.model.decoder.layernorm
        assert gap(output, hidden) < 1e-5
        for layer, states in zip(output.layers, hidden.decoder_hidden_states[1:-1], strict=True):
            logits = reference.class_labels_classifier(norm(states))
            boxes = reference.bbox_predictor(norm(states)).sigmoid()
            assert (layer.logits - logits).abs().max() < 1e-5
            assert (layer.boxes - boxes).abs().max() < 1e-5
            assert (layer.logits - output.logits).abs().max() > 1e-3


TIMM_NAMES = (
    (r"embedder\.embedder\.convolution", "conv1"),
    (r"embedder\.embedder\.normalization", "bn1"),
    (r"encoder\.stages\.(\d)\.layers\.", lambda m: f"layer{int(m[1]) + 1}."),
    (r"shortcut\.convolution", "downsample.0"),
    (r"shortcut\.normalization", "downsample.1"),
    (r"layer\.(\d)\.convolution", lambda m: f"conv{int(m[1]) + 1}"),
    (r"layer\.(\d)\.normalization", lambda m: f"bn{int(m[1]) + 1}"),
)


def timm_folder(folder: Path, *, dilation: bool) -> Any:
    """A reference with the structure of timm's ResNet-18, saved with timm's names and published config."""
    backbone = {"model_type": "resnet", "layer_type": "basic", "depths": [2, 2, 2, 2]}
    backbone["hidden_sizes"] = [64, 128, 256, 512]
    name, settings = DETR[0]
    reference = harness.reference(name, {**settings, "backbone_config": backbone})
    if dilation:  # as timm does for `output_stride=16`
        for n, layer in enumerate(reference.model.backbone.model.encoder.stages[3].layers):
            for m, conv in enumerate(c for c in layer.layer.modules() if isinstance(c, torch.nn.Conv2d)):
                conv.stride = (1, 1)
                if n > 0 or m > 0:
                    conv.dilation = conv.padding = (2, 2)
            if n == 0:
                layer.shortcut.convolution.stride = (1, 1)
    harness.save_reference(reference, folder)
    tensors = {}
    for key, tensor in load_file(folder / "model.safetensors").items():
        if ".backbone." in key:
            for pattern, new in TIMM_NAMES:
                key = re.sub(pattern, new, key)
            if key.endswith("running_var"):
                tensors[key.replace("running_var", "num_batches_tracked")] = torch.tensor(7)
        tensors[key] = tensor
    assert "model.backbone.conv_encoder.model.layer2.0.downsample.1.running_mean" in tensors
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config |= {"backbone_config": None, "backbone": "resnet18", "use_timm_backbone": True}
    labels = {"0": "cat", "1": "dog", "2": "N/A"}
    config |= {"dilation": dilation, "id2label": labels, "label2id": {v: int(k) for k, v in labels.items()}}
    (folder / "config.json").write_text(json.dumps(config))
    return reference


@pytest.mark.parametrize("dilation", [False, True], ids=["stride", "dilation"])
def test_backbone_in_timm_layout(dilation: bool, tmp_path: Path) -> None:
    reference = timm_folder(tmp_path / "timm", dilation=dilation)
    bundle = glassformer.load(tmp_path / "timm")
    pixels = torch.randn(1, 3, 97, 129)
    with torch.no_grad():
        theirs = reference(pixels)
        assert gap(bundle.model(pixels), theirs) < 1e-5
        glassformer.save(bundle, tmp_path / "ours")
        assert gap(glassformer.load(tmp_path / "ours").model(pixels), theirs) < 1e-5
        config = json.loads((tmp_path / "ours" / "config.json").read_text())
        assert config["id2label"] == {"0": "cat", "1": "dog", "2": "N/A"}
        if dilation:  # only timm's config can say it
            names = load_file(tmp_path / "ours" / "model.safetensors")
            assert "model.backbone.conv_encoder.model.layer4.0.conv1.weight" in names and config["dilation"]
            fresh = glassformer.save(glassformer.Pipeline(model=bundle.model), tmp_path / "fresh")
            assert glassformer.load(fresh).spec == bundle.spec
            return
        again, info = type(reference).from_pretrained(tmp_path / "ours", output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"], info
        assert gap(bundle.model(pixels), again.eval()(pixels)) < 1e-5


def test_trained_batch_norm_is_saved_as_frozen_statistics(tmp_path: Path) -> None:
    """A model trained from scratch keeps its spec; transformers reads it with frozen batch norm."""
    options = {"d_model": 32, "num_heads": 4, "d_ff": 48, "num_labels": 2}
    model = build_model(preset_spec("detr-tiny", **options))
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(4, 3, 64, 64) * 2 + 1)  # moves the running statistics
    glassformer.save(model, tmp_path)
    again = glassformer.load(tmp_path)
    assert again.spec == model.spec and again.spec.source.backbone.norm == "batch"
    reference, info = transformers.DetrForObjectDetection.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    pixels = torch.randn(2, 3, 128, 96)
    with torch.no_grad():
        theirs = reference.eval()(pixels)
        assert gap(model.eval()(pixels), theirs) < 1e-5
        assert gap(again.model(pixels), theirs) < 1e-5
        assert gap(model.train()(pixels), theirs) > 1e-3


def test_presets_have_the_shapes_of_transformers() -> None:
    configs: dict[str, Any] = {
        "yolos-small": transformers.YolosConfig(
            hidden_size=384, intermediate_size=1536, num_attention_heads=6, num_labels=91
        ),
        "detr-resnet-50": transformers.DetrConfig(
            backbone_config=transformers.ResNetConfig(out_features=["stage4"]), num_labels=91
        ),
    }
    kinds = {"yolos": "YolosForObjectDetection", "detr": "DetrForObjectDetection"}
    for preset, config in configs.items():
        with torch.device("meta"):
            ours = build_model(preset_spec(preset))
            theirs = getattr(transformers, kinds[config.model_type])(config)
        for tensors in ("parameters", "buffers"):
            mine, other = (sum(t.numel() for t in getattr(m, tensors)()) for m in (ours, theirs))
            assert mine == other, (preset, tensors)


def test_queries_with_trained_content() -> None:
    base = glassformer.tiny("detr").spec
    model = build_model(replace(base, target=spec.ObjectQueriesSpec(num_queries=4, content="learned")))
    pixels = torch.randn(2, 3, 40, 40)
    output = model.eval()(pixels)
    assert output.boxes.shape == (2, 4, 4) and output.boxes.min() > 0 and output.boxes.max() < 1
    with torch.no_grad():
        model.tgt_embed.content.zero_()
    assert (model(pixels).logits - output.logits).abs().max() > 1e-3
