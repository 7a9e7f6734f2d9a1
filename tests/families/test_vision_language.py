"""Image encoders in front of a decoder, compared with transformers' LLaVA, SmolVLM and Idefics3."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import glassformer
from glassformer.core.inputs import ImageTextInputs
from glassformer.core.kv_cache import KVCache
from glassformer.core.masks import Mask
from glassformer.errors import GlassformerError
from glassformer.generation.config import merge_generation_config
from glassformer.generation.engine import generate
from glassformer.generation.params import GenerationParams
from glassformer.generation.prompt import Prompt
from tests.families import harness, values

LOGITS, GRADIENTS = 2e-5, 2e-4
IMAGE_ID, VOCABULARY = 60, 61
SIZES = {"hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 3, "intermediate_size": 37}
CLIP = {"model_type": "clip_vision_model", **SIZES, "image_size": 14, "patch_size": 4, "projection_dim": 9}
SIGLIP = {"model_type": "siglip_vision_model", **SIZES, "image_size": 13, "patch_size": 5}
TEXT = {"model_type": "llama", **SIZES, "hidden_size": 32, "vocab_size": VOCABULARY, "pad_token_id": 0}
TEXT |= {"num_hidden_layers": 2}
SMALL = {**SIZES, "image_size": 16, "patch_size": 4}
LLAVA = {"image_token_index": IMAGE_ID}
GROUPED = {"num_key_value_heads": 2}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("Llava", {**LLAVA, "vision_config": CLIP, "text_config": TEXT}),
    (
        "Llava",
        {
            **{"vision_config": {**CLIP, "num_channels": 1, "hidden_act": "gelu"}, "text_config": TEXT},
            **{**LLAVA, "vision_feature_layer": -1, "projector_hidden_act": "relu"},
            **{"vision_feature_select_strategy": "full", "multimodal_projector_bias": False},
        },
    ),
    (
        "Llava",
        {
            **{"vision_config": SIGLIP, "text_config": {**TEXT, "model_type": "mistral", **GROUPED}},
            **{**LLAVA, "vision_feature_select_strategy": "full", "vision_feature_layer": -3},
        },
    ),
    (
        "Llava",
        {
            **{"vision_config": {**SIGLIP, "vision_use_head": False}, **LLAVA},
            **{"text_config": {**TEXT, "model_type": "qwen2", "tie_word_embeddings": True, **GROUPED}},
            **{"vision_feature_select_strategy": "full", "vision_feature_layer": -4},
        },
    ),
    ("SmolVLM", {"vision_config": SMALL, "text_config": {**TEXT, **GROUPED}}),
    (
        "SmolVLM",
        {
            **{"vision_config": {**SMALL, "image_size": 27, "patch_size": 3}, "scale_factor": 3},
            **{"text_config": {**TEXT, "tie_word_embeddings": True}, "tie_word_embeddings": True},
        },
    ),
    (
        "Idefics3",
        {
            **{"vision_config": {**SMALL, "image_size": 21, "patch_size": 4, "hidden_act": "gelu"}},
            **{"text_config": {**TEXT, "attention_bias": True}, "scale_factor": 5},
        },
    ),
    ("Idefics3", {"vision_config": {**SMALL, "image_size": 38, "patch_size": 2}, "text_config": TEXT}),
]
CASES = [
    (name, settings if name == "Llava" else {"image_token_id": IMAGE_ID, **settings})
    for name, settings in CASES
]
CASES[-1][1]["scale_factor"] = 19


def reference_of(case: tuple[str, dict[str, Any]], seed: int = 0) -> Any:
    stem, settings = case
    return harness.reference(f"{stem}ForConditionalGeneration", settings, seed)


@pytest.fixture(scope="module", params=CASES, ids=[f"{n}-{case[0]}" for n, case in enumerate(CASES)])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The reference, the bundle loaded from its folder, and the folder."""
    reference = reference_of(request.param, CASES.index(request.param))
    folder = harness.save_reference(reference, tmp_path_factory.mktemp("reference"))
    return reference, glassformer.load(folder), folder


def images_of(model: Any, count: int, factor: float = 1.0) -> Tensor:
    torch.manual_seed(3)
    patches = model.embed.image.embed
    height, width = (int(side * factor) for side in patches.image_size)
    return torch.randn(count, patches.channels, height, width)


ROWS = ((0,), (), (1, 2))  # images of each row: one, none, several


def batch_of(model: Any, images: Tensor, side: str) -> tuple[Tensor, Tensor]:
    """ids (B, T), padded on `side`, and the mask of real tokens."""
    torch.manual_seed(4)
    count = model.spec.input.num_image_tokens(images.shape[2:])
    rows = []
    for own, words in zip(ROWS, (5, 9, 4), strict=True):
        ids = torch.randint(1, IMAGE_ID, (words,)).tolist()
        for number, _ in enumerate(own):
            ids[2 + number * (count + 1) : 2 + number * (count + 1)] = [IMAGE_ID] * count
        rows.append(ids)
    longest = max(map(len, rows))
    padded = torch.zeros(len(rows), longest, dtype=torch.long)
    real = torch.zeros_like(padded, dtype=torch.bool)
    for row, ids in enumerate(rows):
        place = slice(longest - len(ids), None) if side == "left" else slice(len(ids))
        padded[row, place], real[row, place] = torch.tensor(ids), True
    return padded, real


def pixels_for(reference: Any, images: Tensor) -> Tensor:
    """The images as the reference takes them: SmolVLM by row, with empty images as padding."""
    if reference.config.model_type == "llava":
        return images
    rows = images.new_zeros(len(ROWS), max(map(len, ROWS)), *images.shape[1:])
    for row, own in enumerate(ROWS):
        rows[row, : len(own)] = images[list(own)]
    return rows


def run_both(reference: Any, model: Any, side: str, kernel: str = "auto", factor: float = 1.0) -> Any:
    images = images_of(model, 3, factor)
    ids, real = batch_of(model, images, side)
    positions = (real.long().cumsum(-1) - 1).clamp(min=0)
    ours = model(ImageTextInputs(ids, Mask(padding=real), images=images), kernel=kernel)
    theirs = reference(
        input_ids=ids,
        pixel_values=pixels_for(reference, images),
        attention_mask=real.long(),
        position_ids=positions,
    )
    return ours, theirs, real


def generated(model: Any, prompts: list[Prompt], **options: Any) -> list[list[int]]:
    config = merge_generation_config({}, options)
    outputs = generate(model, prompts, GenerationParams(config=config, pad_token_id=0))
    return [group[0].ids for group in outputs]


def gap(reference: Any, model: Any, side: str = "right", **options: Any) -> float:
    with torch.no_grad():
        return harness.worst(*run_both(reference, model, side, **options))


@pytest.mark.parametrize("side", ["right", "left"])
def test_outputs_match_transformers(pair: Any, side: str) -> None:
    reference, bundle, _ = pair
    assert gap(reference, bundle.model, side) < LOGITS
    assert gap(reference, bundle.model, side, kernel="explicit") < LOGITS


def test_other_image_sizes_match_transformers(pair: Any) -> None:
    """The positions of SmolVLM's patches are looked up by their share of the image."""
    reference, bundle, _ = pair
    if reference.config.model_type == "llava":
        pytest.skip("the reference takes images of one size")
    for factor in (2.0, 3.0):
        assert gap(reference, bundle.model, factor=factor) < LOGITS


def test_cached_steps_match_transformers(pair: Any) -> None:
    reference, bundle, _ = pair
    model = bundle.model
    with torch.no_grad():
        images = images_of(model, 3)[1:]
        ids, real = batch_of(model, images_of(model, 3), "left")
        ids = ids[2:, real[2]]
        theirs = reference(
            input_ids=ids, pixel_values=images if reference.config.model_type == "llava" else images[None]
        )
        vectors = model.embed.encode_images(images)
        count = vectors.shape[1]
        pieces, per_image = [2, count, 1, count], iter(vectors)
        pieces += [1] * (ids.shape[1] - sum(pieces))
        cache = KVCache.allocate(model.spec, 1, ids.shape[1])
        parts = []
        for part in ids.split(pieces, 1):
            own = next(per_image)[None] if (part == IMAGE_ID).any() else None
            parts.append(model(ImageTextInputs(part, images=own), cache=cache))
    torch.testing.assert_close(torch.cat(parts, 1), theirs.logits, atol=LOGITS, rtol=0)


def test_gradients_match_transformers(pair: Any, tmp_path: Path) -> None:
    reference, bundle, _ = pair
    reference.zero_grad()
    bundle.model.zero_grad()
    ours, theirs, real = run_both(reference, bundle.model, "right")
    ours[real].square().mean().backward()
    theirs.logits[real].square().mean().backward()
    mine, others = values.gradients(reference, bundle, tmp_path)
    mine = {name.replace("vision_tower.vision_model.", "vision_tower."): t for name, t in mine.items()}
    assert mine.keys() == others.keys()
    for name in mine:
        difference = (mine[name] - others[name]).abs()
        if name.endswith("embed_tokens.weight"):
            difference[0] = 0  # padding, from which the reference keeps gradients away
        assert difference.max() < GRADIENTS, name


@pytest.mark.parametrize("fresh", [False, True])
def test_transformers_reads_the_saved_folder(pair: Any, tmp_path: Path, fresh: bool) -> None:
    """With the published config, and with one that was made from the spec."""
    reference, bundle, _ = pair
    glassformer.save(glassformer.Pipeline(model=bundle.model) if fresh else bundle, tmp_path)
    again, info = type(reference).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    before, after = reference.state_dict(), again.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in after)
    loaded = glassformer.load(tmp_path)
    assert loaded.spec == bundle.spec
    assert gap(again.eval(), loaded.model) < LOGITS


def test_files_of_all_layouts_of_llava_load(tmp_path: Path) -> None:
    reference = reference_of(CASES[0])
    folder = harness.save_reference(reference, tmp_path)
    expected = glassformer.load(folder)
    tensors = load_file(folder / "model.safetensors")
    for tower in ("vision_tower.vision_model.", "vision_tower."):
        for base, text, head in (
            ("", "language_model.model.", "language_model."),
            ("model.", "model.language_model.", ""),
        ):

            def renamed(name: str, base=base, text=text, head=head, tower=tower) -> str:
                if name.startswith("language_model.model."):
                    return text + name.removeprefix("language_model.model.")
                if name.startswith("language_model."):
                    return head + name.removeprefix("language_model.")
                return base + name.replace("vision_tower.vision_model.", "vision_tower.").replace(
                    "vision_tower.", tower
                )

            save_file({renamed(k): v.clone() for k, v in tensors.items()}, folder / "model.safetensors")
            state = glassformer.load(folder).model.state_dict()
            assert all(torch.equal(state[k], v) for k, v in expected.model.state_dict().items())


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}])
def test_generated_ids_match_transformers(pair: Any, options: dict[str, Any]) -> None:
    """Rows with one, no and several images, together and each alone."""
    reference, bundle, _ = pair
    model, images = bundle.model, images_of(bundle.model, 3)
    ids, real = batch_of(model, images, "left")
    limits = {"max_new_tokens": 6, "do_sample": False, "suppress_tokens": [0, IMAGE_ID], **options}
    with torch.no_grad():
        theirs = reference.generate(
            input_ids=ids,
            pixel_values=pixels_for(reference, images),
            attention_mask=real.long(),
            pad_token_id=0,
            eos_token_id=None,
            **limits,
        )[:, ids.shape[1] :].tolist()
        vectors = model.embed.encode_images(images)
    prompts = [
        Prompt.with_images(row[keep].tolist(), vectors[list(own)], IMAGE_ID)
        for row, keep, own in zip(ids, real, ROWS, strict=True)
    ]
    assert generated(model, prompts, **limits) == theirs
    assert [generated(model, [prompt], **limits)[0] for prompt in prompts] == theirs


def test_wrong_variants_fail(tmp_path: Path) -> None:
    """Every part that is new in these families changes the outputs."""

    def transposed_squares(model: Any) -> None:
        shuffle = model.embed.connector.shuffle_patches
        model.embed.connector.shuffle_patches = lambda x, grid: shuffle(
            x.unflatten(1, grid).transpose(1, 2).flatten(1, 2), grid
        )

    def bicubic_positions(model: Any) -> None:
        model.embed.image.embed.interpolation = "bicubic"

    def last_layer(model: Any) -> None:
        model.embed.layer = -1

    def with_final_norm(model: Any) -> None:
        model.embed.layer = None
        model.embed.image.encoder.final_norm = model.embed.image.head.norm

    def with_class_token_for_the_last_patch(model: Any) -> None:
        encode = model.embed.encode_images
        model.embed.keeps_prefix = True
        model.embed.encode_images = lambda images, obs=None: encode(images, obs=obs)[:, :-1]

    def without_activation(model: Any) -> None:
        model.embed.connector.activation = torch.nn.Identity()

    def images_in_reverse(model: Any) -> None:
        encode = model.embed.encode_images
        model.embed.encode_images = lambda images, obs=None: encode(images, obs=obs).flip(0)

    wrong = {
        0: [last_layer, with_final_norm, with_class_token_for_the_last_patch, without_activation],
        4: [transposed_squares, bicubic_positions, images_in_reverse],
    }
    for case, variants in wrong.items():
        reference = reference_of(CASES[case])
        folder = harness.save_reference(reference, tmp_path / str(case))
        factor = 3.0 if case else 1.0
        assert gap(reference, glassformer.load(folder).model, factor=factor) < LOGITS
        for change in variants:
            model = glassformer.load(folder).model
            change(model)
            assert gap(reference, model, factor=factor) > 20 * LOGITS, change.__name__


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"vision_feature_select_strategy": "cls"}, "vision_feature_select_strategy"),
        ({"vision_feature_layer": [-2, -1]}, "vision_feature_layer"),
        ({"vision_config": {"model_type": "pixtral"}}, "model_type"),
        ({"projector_hidden_act": "mish"}, "projector_hidden_act"),
    ],
)
def test_unsupported_configs_are_errors(tmp_path: Path, change: dict[str, Any], key: str) -> None:
    folder = harness.save_reference(reference_of(CASES[0]), tmp_path)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(GlassformerError) as caught:
        glassformer.load(folder)
    assert key in str(caught.value.fields)
