"""Parts of the image and text towers: positions of other image sizes, old configs, and wrong variants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import glassformer
from tests.families import harness, values

SIZES = {"hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 37}
TEXT = {"vocab_size": 61, **SIZES, "max_position_embeddings": 19, "eos_token_id": 60}
IMAGE = {"image_size": 12, "patch_size": 4, **SIZES}
CONFIGS: dict[str, dict[str, Any]] = {
    "CLIPModel": {"text_config": TEXT, "vision_config": IMAGE, "projection_dim": 9},
    "SiglipModel": {"text_config": {**TEXT, "projection_size": 24}, "vision_config": IMAGE},
}


@pytest.fixture(scope="module", params=list(CONFIGS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    reference = harness.reference(request.param, CONFIGS[request.param])
    folder = harness.save_reference(reference, tmp_path_factory.mktemp("reference"))
    return reference, folder


def gap(reference: Any, model: Any) -> float:
    ids, real = harness.text_batch(model.text, "right")
    with torch.no_grad():
        return harness.worst(*values.run_towers(reference, model, ids, real, "auto"), None)


def test_wrong_variants_fail(pair: Any) -> None:
    """Every part of the towers changes the outputs."""
    reference, folder = pair
    assert gap(reference, glassformer.load(folder).model) < 1e-5
    sigmoid = type(reference).__name__ == "SiglipModel"

    def without_norm(model: Any) -> None:
        if sigmoid:
            model.image.head.norm = torch.nn.Identity()
        else:
            model.image.embed.norm = None

    def other_pool(model: Any) -> None:
        model.text.head.pool = "first"

    def other_direction(model: Any) -> None:
        model.text.encoder.causal = not model.text.encoder.causal

    def other_temperature(model: Any) -> None:
        model.head.scale.data.add_(0.1)

    def other_bias(model: Any) -> None:
        if sigmoid:
            model.head.bias.data.add_(0.1)
        else:
            model.text.head.projection.bias = torch.nn.Parameter(torch.full((9,), 0.1))

    def embeddings_of_any_length(model: Any) -> None:
        model.embed_images = lambda images, **options: model.image(images).pooled
        model.embed_texts = lambda texts, mask, **options: model.text(texts, mask).pooled

    def other_probe(model: Any) -> None:
        if sigmoid:
            model.image.head.probe.data.add_(1.0)
        else:
            model.image.head.norm = None

    changes = (without_norm, other_pool, other_direction, other_temperature, other_probe, other_bias)
    for change in (*changes, embeddings_of_any_length):
        model = glassformer.load(folder, mmap=False).model
        change(model)
        assert gap(reference, model) > 1e-3, change.__name__


@pytest.mark.parametrize("size", [(16, 12), (8, 21), (24, 24)])
def test_other_image_sizes_interpolate_positions(pair: Any, size: tuple[int, int]) -> None:
    reference, folder = pair
    model = glassformer.load(folder).model
    images, ids = torch.randn(2, 3, *size), harness.text_batch(model.text, "none")[0]
    with torch.no_grad():
        theirs = reference(pixel_values=images, input_ids=ids, interpolate_pos_encoding=True)
        ours = model(images, ids)
    assert (ours.image_embeds - theirs.image_embeds).abs().max() < 1e-5


def test_published_spellings_load(tmp_path: Path) -> None:
    """Older files have prefixes on a single tower, position ids, and the settings under text_config_dict."""
    reference = harness.reference("CLIPTextModel", TEXT)
    harness.save_reference(reference, tmp_path)
    tensors = {f"text_model.{name}": t for name, t in load_file(tmp_path / "model.safetensors").items()}
    tensors["text_model.embeddings.position_ids"] = torch.arange(19)[None]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model = glassformer.load(tmp_path).model
    ids, _ = harness.text_batch(model, "none")
    with torch.no_grad():
        assert (model(ids).pooled - reference(ids).pooler_output).abs().max() < 1e-5

    reference = harness.reference("CLIPModel", CONFIGS["CLIPModel"])
    harness.save_reference(reference, tmp_path / "clip")
    path = tmp_path / "clip" / "config.json"
    config = json.loads(path.read_text())
    config["text_config_dict"] = {**config["text_config"]}
    config["text_config"]["num_attention_heads"] = 2
    config["vision_config_dict"] = None
    path.write_text(json.dumps(config))
    again = transformers.CLIPModel.from_pretrained(tmp_path / "clip").eval()
    assert again.config.text_config.num_attention_heads == 4
    assert gap(again, glassformer.load(tmp_path / "clip").model) < 1e-5
