"""BLIP, compared with transformers' BlipForConditionalGeneration and BlipForQuestionAnswering."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import cross_entropy

import glassformer
from glassformer.core.inputs import ImageTextInputs, Memory, TextInputs
from glassformer.core.masks import Mask
from glassformer.errors import GlassformerError
from glassformer.generation import GenerationParams, engine
from glassformer.generation.config import merge_generation_config
from tests.families import harness, values

LOGITS, GRADIENTS = 1e-5, 2e-4
VOCABULARY, START, END, PAD = 61, 3, 5, 60
IMAGE = {
    **{"image_size": 12, "patch_size": 4, "hidden_size": 24, "num_attention_heads": 4},
    **{"num_hidden_layers": 2, "intermediate_size": 37},
}
ODD = {**IMAGE, "image_size": 17, "patch_size": 5}  # the last two rows and columns of pixels are not read
TEXT = {
    **{"vocab_size": VOCABULARY, "hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 2},
    **{"intermediate_size": 35, "max_position_embeddings": 40},
    **{"bos_token_id": START, "sep_token_id": END, "pad_token_id": PAD},
}
UNTIED = {"tie_word_embeddings": False}
CASES: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    (IMAGE, TEXT, {}),
    (ODD, {**TEXT, "hidden_size": 20, "num_attention_heads": 5}, {}),
    ({**ODD, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-2}, TEXT, {}),
    (IMAGE, {**TEXT, "hidden_act": "relu", "layer_norm_eps": 1e-3, **UNTIED}, UNTIED),
    ({**IMAGE, "num_hidden_layers": 3}, {**TEXT, "num_hidden_layers": 1, "pad_token_id": 0}, {}),
    ({**IMAGE, "image_size": 11, "num_attention_heads": 2}, {**TEXT, "hidden_size": 32}, {}),
]


CAPTION, VQA = "BlipForConditionalGeneration", "BlipForQuestionAnswering"


def reference_of(name: str, case: int) -> Any:
    image, text, options = CASES[case]
    if name == VQA:  # the published code needs equal widths
        text = {**text, "hidden_size": image["hidden_size"], "num_attention_heads": 4}
    settings = {"vision_config": image, "text_config": text, **options}
    model: Any = harness.reference(name, settings, case)
    model.text_decoder.cls.predictions.decoder.bias.data[END] += 2  # some texts end before the limit
    return model


@pytest.fixture(
    scope="module",
    params=[(name, case) for name in (CAPTION, VQA) for case in range(len(CASES))],
    ids=lambda param: f"{param[0].removeprefix('BlipFor')}-{param[1]}",
)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The reference, the bundle loaded from its folder, and the folder."""
    reference = reference_of(*request.param)
    folder = harness.save_reference(reference, tmp_path_factory.mktemp("reference"))
    return reference, glassformer.load(folder), folder


def images_of(model: Any, height: int = 0, width: int = 0) -> Tensor:
    torch.manual_seed(3)
    (patches,) = (part for part in model.spec.inputs() if part.modality == "image")
    rows, columns = patches.image_size
    return torch.randn(harness.BATCH, 3, height or rows, width or columns)


def text_of(model: Any, side: str, seed: int = 1) -> TextInputs:
    ids, real = harness.token_batch(VOCABULARY, {0, 1, PAD}, side, seed)
    positions = (real.long().cumsum(-1) - 1).clamp(min=0)
    return TextInputs(ids.masked_fill(~real, model.tgt_embed.pad_id), Mask(padding=real), positions=positions)


def source_of(model: Any, side: str, images: Tensor) -> Tensor | ImageTextInputs:
    """The images, with a question for each if the model reads one."""
    if model.spec.modalities == ("image",):
        return images
    return ImageTextInputs(**vars(text_of(model, side, seed=2)), images=images)


def theirs_of(text: TextInputs) -> dict[str, Tensor]:
    padding, positions = text.mask.padding, text.positions
    assert padding is not None and positions is not None
    return {"input_ids": text.ids, "attention_mask": padding.long(), "position_ids": positions}


def their_outputs(
    reference: Any, source: Any, target: TextInputs, resized: bool = False
) -> dict[str, Tensor]:
    """Run the steps of the reference's forward one by one: it returns no logits for an answer.

    Each question runs alone: the reference's cross-attention ignores the mask of padding.
    """
    pixels = source.images if isinstance(source, ImageTextInputs) else source
    memory = reference.vision_model(pixel_values=pixels, interpolate_pos_encoding=resized).last_hidden_state
    answer = theirs_of(target)
    if not isinstance(source, ImageTextInputs):
        return reference.text_decoder(**answer, encoder_hidden_states=memory)  # type: ignore[no-any-return]
    rows = []
    for row, real in enumerate(source.mask.padding):  # type: ignore[arg-type]
        own = slice(row, row + 1)
        states = reference.text_encoder(source.ids[own, real], encoder_hidden_states=memory[own])
        text = {name: value[own] for name, value in answer.items()}
        rows.append(reference.text_decoder(**text, encoder_hidden_states=states.last_hidden_state).logits)
    return {"logits": torch.cat(rows)}


def run_both(
    reference: Any, model: Any, side: str = "none", *, images: Tensor | None = None, kernel: str = "auto"
) -> tuple[Any, Any, Tensor]:
    pixels = images_of(model) if images is None else images
    source, target = source_of(model, side, pixels), text_of(model, side)
    theirs = their_outputs(reference, source, target, resized=images is not None)
    return model(source, target, kernel=kernel), theirs, target.mask.padding  # type: ignore[return-value]


def gap(reference: Any, model: Any, side: str = "none", **options: Any) -> float:
    with torch.no_grad():
        return harness.worst(*run_both(reference, model, side, **options))


@pytest.mark.parametrize("side", ["none", "right", "left"])
def test_outputs_match_transformers(pair: Any, side: str) -> None:
    reference, bundle, _ = pair
    assert gap(reference, bundle.model, side) < LOGITS
    assert gap(reference, bundle.model, side, kernel="explicit") < LOGITS


@pytest.mark.parametrize("size", [(23, 31), (40, 9), (15, 15)])
def test_positions_are_interpolated_as_in_transformers(pair: Any, size: tuple[int, int]) -> None:
    reference, bundle, _ = pair
    assert gap(reference, bundle.model, images=images_of(bundle.model, *size)) < LOGITS


@pytest.mark.parametrize("side", ["none", "right", "left"])
def test_cached_steps_match_transformers(pair: Any, side: str) -> None:
    reference, bundle, _ = pair
    model = bundle.model
    source, target = source_of(model, side, images_of(model)), text_of(model, "none")
    with torch.no_grad():
        memory = Memory(*model._encode(source, None, "auto", None))
        theirs = their_outputs(reference, source, target)["logits"]
        for pieces in ([1] * harness.LENGTH, [4, 1, 3, 1]):
            cache = glassformer.KVCache.allocate(model.spec, harness.BATCH, harness.LENGTH)
            parts = [model.decode(part, memory, cache=cache) for part in target.ids.split(pieces, 1)]
            assert (torch.cat(parts, 1) - theirs).abs().max() < LOGITS


def test_gradients_match_transformers(pair: Any, tmp_path: Path) -> None:
    reference, bundle, _ = pair
    reference.zero_grad()
    bundle.model.zero_grad()
    ours, theirs, real = run_both(reference, bundle.model, "right")
    ours[real].square().mean().backward()
    theirs["logits"][real].square().mean().backward()
    mine, others = values.gradients(reference, bundle, tmp_path)
    assert mine.keys() == others.keys()
    for name in mine.keys() - unused(reference):
        difference = (mine[name] - others[name]).abs()
        if name.endswith("word_embeddings.weight"):
            difference[bundle.model.tgt_embed.pad_id] = 0  # the reference keeps this row from learning
        assert difference.max() < GRADIENTS, name


def unused(reference: Any) -> set[str]:
    """The second of two biases, if they are not tied; only the first one affects the logits."""
    return set() if reference.config.tie_word_embeddings else {"text_decoder.cls.predictions.bias"}


@pytest.mark.parametrize("fresh", [False, True])
def test_transformers_reads_the_saved_folder(pair: Any, tmp_path: Path, fresh: bool) -> None:
    """With the published config, and with one that was made from the spec: the same tensors and outputs."""
    reference, bundle, folder = pair
    created = glassformer.Pipeline(model=bundle.model, generation={"eos_token_id": END})
    glassformer.save(created if fresh else bundle, tmp_path)
    again, info = type(reference).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    before, after = (load_file(path / "model.safetensors") for path in (folder, tmp_path))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in after.keys() - unused(reference))
    text = again.config.text_config
    assert (text.bos_token_id, text.sep_token_id) == (START, END)
    loaded = glassformer.load(tmp_path)
    assert loaded.spec == bundle.spec and loaded.generation["eos_token_id"] == END
    assert gap(again.eval(), loaded.model, "right") < LOGITS


def test_loss_matches_transformers(pair: Any) -> None:
    """The loss of the reference's own forward."""
    reference, bundle, _ = pair
    model = bundle.model
    source, target = source_of(model, "none", images_of(model)), text_of(model, "right")
    labels = target.ids.masked_fill(~target.mask.padding, -100)  # type: ignore[operator]
    text = theirs_of(target)
    named = {"pixel_values": images_of(model), "labels": labels}
    if isinstance(source, ImageTextInputs):
        named |= {"decoder_input_ids": text["input_ids"], "decoder_attention_mask": text["attention_mask"]}
        text = theirs_of(source)
    with torch.no_grad():
        theirs = reference(input_ids=text["input_ids"], attention_mask=text["attention_mask"], **named).loss
        logits = model(source, target)[:, :-1].flatten(0, 1)
    assert abs(cross_entropy(logits, labels[:, 1:].flatten()) - theirs) < LOGITS


GENERATION: list[dict[str, Any]] = [
    {},
    {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 0.6},
]


@pytest.mark.parametrize("pair", [(CAPTION, n) for n in range(len(CASES))], indirect=True)
@pytest.mark.parametrize("prompt", [[], [7, 9]])
@pytest.mark.parametrize("options", GENERATION)
def test_captions_match_transformers(pair: Any, options: dict[str, Any], prompt: list[int]) -> None:
    """The reference replaces the first token of a prompt by its start token, and drops the last one."""
    reference, bundle, _ = pair
    images = images_of(bundle.model)
    start = {"input_ids": torch.tensor([[1, *prompt, END]] * len(images))} if prompt else {}
    theirs = reference.generate(images, max_new_tokens=7, **start, **options).tolist()
    ours = generate(bundle, images, prompt, options)
    assert ours == [after_start(row, bundle, len(prompt)) for row in theirs]
    assert ours == [ids for image in images for ids in generate(bundle, image[None], prompt, options)]


@pytest.mark.parametrize("pair", [(VQA, n) for n in range(len(CASES))], indirect=True)
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("options", GENERATION)
def test_answers_match_transformers(pair: Any, options: dict[str, Any], side: str) -> None:
    """Each question runs alone in the reference, whose cross-attention ignores the mask of padding."""
    reference, bundle, _ = pair
    images = images_of(bundle.model)
    source: Any = source_of(bundle.model, side, images)
    theirs, alone = [], []
    for ids, real, image in zip(source.ids, source.mask.padding, images, strict=True):
        question = {"input_ids": ids[real][None], "pixel_values": image[None]}
        theirs += reference.generate(**question, max_new_tokens=7, **options).tolist()
        alone += generate(bundle, ImageTextInputs(ids[real][None], images=image[None]), [], options)
    assert alone == [after_start(row, bundle) for row in theirs]
    assert alone == generate(bundle, source, [], options)


def after_start(row: list[int], bundle: Any, prompt: int = 0) -> list[int]:
    """The generated ids before the end token. prompt: its number of tokens."""
    ids = [*row[1 + prompt :], END]
    ids = ids[: ids.index(END)]
    while ids and ids[-1] == bundle.model.tgt_embed.pad_id:
        ids.pop()
    return ids


def test_many_questions_about_an_image_read_it_once(tmp_path: Path) -> None:
    bundle = glassformer.load(harness.save_reference(reference_of(VQA, 1), tmp_path))
    image, embed = images_of(bundle.model)[:1], bundle.model.src_embed
    question = vars(text_of(bundle.model, "left", seed=2))
    with torch.no_grad():
        vectors = embed.encode_images(image).expand(harness.BATCH, -1, -1)
    once, each = (
        generate(bundle, ImageTextInputs(**question, images=images), [], {})
        for images in (vectors, image.expand(harness.BATCH, -1, -1, -1))
    )
    assert once == each


def test_questions_of_another_width_than_images_are_refused(tmp_path: Path) -> None:
    folder = harness.save_reference(reference_of(VQA, 0), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["hidden_size"] = 20
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(GlassformerError, match="hidden_size = 20"):
        glassformer.load(folder)


@pytest.mark.parametrize("name", [CAPTION, VQA])
def test_tensors_of_older_files_are_read(tmp_path: Path, name: str) -> None:
    """They hold the tied weight and bias of the head twice, and position ids."""
    reference = reference_of(name, 0)
    folder = harness.save_reference(reference, tmp_path)
    file = folder / "model.safetensors"
    tensors, head = load_file(file), "text_decoder.cls.predictions"
    tensors[f"{head}.decoder.weight"] = tensors["text_decoder.bert.embeddings.word_embeddings.weight"].clone()
    tensors[f"{head}.decoder.bias"] = tensors[f"{head}.bias"].clone()
    for part in ("text_decoder.bert", "text_encoder")[: 1 + (name == VQA)]:
        tensors[f"{part}.embeddings.position_ids"] = torch.arange(40)[None]
    save_file(tensors, file, {"format": "pt"})
    assert gap(reference, glassformer.load(folder).model) < LOGITS


def test_wrong_variants_fail(tmp_path: Path) -> None:
    """Every part that is new in this family changes the outputs."""
    reference = reference_of(CAPTION, 1)
    folder = harness.save_reference(reference, tmp_path)
    sizes = ((17, 17), (23, 31))
    images = [images_of(glassformer.load(folder).model, *size) for size in sizes]

    def swapped_queries_and_keys(model: Any) -> None:
        attention = model.encoder.blocks[0].self_attn
        attention.q_proj, attention.k_proj = attention.k_proj, attention.q_proj

    def without_final_norm_of_the_encoder(model: Any) -> None:
        model.encoder.final_norm = None

    def without_class_token_position(model: Any) -> None:
        model.src_embed.position.data[:, 0] = 0

    def antialiased_positions(model: Any) -> None:
        model.src_embed.antialias = True

    def without_causal_mask(model: Any) -> None:
        model.decoder.causal = False

    def without_norm_after_cross_attention(model: Any) -> None:
        model.decoder.blocks[1].norm_cross = torch.nn.Identity()

    def without_dense_layer_of_the_head(model: Any) -> None:
        model.head.dense = torch.nn.Identity()

    assert max(gap(reference, glassformer.load(folder).model, images=image) for image in images) < LOGITS
    for change in (
        swapped_queries_and_keys,
        without_final_norm_of_the_encoder,
        without_class_token_position,
        without_causal_mask,
        without_norm_after_cross_attention,
        without_dense_layer_of_the_head,
    ):
        model = glassformer.load(folder, mmap=False).model
        change(model)
        assert gap(reference, model, images=images[1]) > 1e-3, change.__name__
    model = glassformer.load(folder, mmap=False).model
    antialiased_positions(model)
    assert gap(reference, model, images=images_of(model, 10, 10)) > 1e-3


def test_the_head_is_tied_if_one_of_both_configs_says_so(tmp_path: Path) -> None:
    """As in transformers, which ties the head of the model and that of its decoder."""
    folder = harness.save_reference(reference_of(CAPTION, 0), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    for outer, inner in ((True, False), (False, True)):
        config["tie_word_embeddings"] = outer
        config["text_config"]["tie_word_embeddings"] = inner
        (folder / "config.json").write_text(json.dumps(config))
        assert glassformer.load(folder).spec.tied == ("head",)


def test_wrong_variants_of_questions_fail(tmp_path: Path) -> None:
    reference = reference_of(VQA, 1)
    folder = harness.save_reference(reference, tmp_path)

    def without_attention_to_the_image(model: Any) -> None:
        for block in model.encoder.blocks:
            block.cross_attn.out_proj.weight.data.zero_()

    def causal_question(model: Any) -> None:
        model.encoder.causal = True

    def question_with_the_words_of_the_answer(model: Any) -> None:
        model.src_embed.token.weight = model.tgt_embed.token.weight

    assert gap(reference, glassformer.load(folder).model) < LOGITS
    for change in (
        without_attention_to_the_image,
        causal_question,
        question_with_the_words_of_the_answer,
    ):
        model = glassformer.load(folder, mmap=False).model
        change(model)
        assert gap(reference, model) > 1e-3, change.__name__


def generate(
    bundle: Any, source: Tensor | ImageTextInputs, prompt: list[int], options: dict[str, Any]
) -> list[list[int]]:
    """Return the generated ids of every output. prompt: ids that every target starts with."""
    params = GenerationParams(
        config=merge_generation_config({}, {**options, "max_new_tokens": 7}),  # type: ignore[arg-type]
        start_ids=(bundle.spec.start_id, *prompt),
        eos_token_id=bundle.generation["eos_token_id"],
    )
    mask = None
    if isinstance(source, ImageTextInputs):
        mask = torch.ones_like(source.ids) == 1 if source.mask is None else source.mask.padding
    outputs = engine.generate(bundle.inference_model(), source, params, attention_mask=mask)
    return [output.ids for group in outputs for output in group]
