"""The job vqa: its losses beside transformers, and runs on questions about colored shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import glassformer
from glassformer.core.spec import FeaturesSpec
from glassformer.data.captions import ImageQuestionSource
from glassformer.data.image_processing import ImageProcessor
from glassformer.data.row_errors import RowErrors
from glassformer.errors import GlassformerError, InvalidValueError, MissingValueError, UnsupportedError
from glassformer.training.evaluation import evaluate_files
from glassformer.training.image_answers import ChosenAnswers, GeneratedAnswers, ImageQuestionLearner
from glassformer.training.job import SAVE_SECONDS
from glassformer.training.model_setup import max_input_length
from glassformer.training.recipe import parse_recipe
from glassformer.training.run import prepare_job
from glassformer.training.vision_language import connect
from tests.tasks.folders import blip, vilt
from tests.tasks.tiny_models import save_language_model
from tests.training.test_jobs_contrastive import COLORS, make_shapes

PAD = 0


def questions_about_shapes(folder: Path, count: int = 64) -> Path:
    """A table of pictures of one colored shape with two questions each; every tenth answer occurs once."""
    lines = ["image\tquestion\tanswer"]
    for n, line in enumerate(make_shapes(folder, count).read_text().splitlines()[1:]):
        image, _, caption = line.partition("\t")
        _, color, _ = caption.split()
        lines += [f"{image}\twhat color is it?\t{color if n % 10 else f'rare{n}'}"]
        lines += [f"{image}\tis it {COLORS[n % 4 | 1]}?\t{'yes' if n % 2 else 'no'}"]
    path = folder / "questions.tsv"
    path.write_text("\n".join(lines) + "\n")
    return path


def recipe_of(table: Path, **training: Any) -> dict[str, Any]:
    size = {"d_model": 32, "num_heads": 4, "d_ff": 64, "num_layers": 2, "patch_size": 4}
    data = {"train": [str(table)], "valid": [str(table)], "image_size": [16, 16], "min_count": 2}
    return {
        "job": "vqa",
        "data": {**data, "max_len": 12},
        "tokenizer": {"kind": "word", "vocab_size": 60},
        "model": {"preset": "vilt-mini", **size},
        "training": {"batch_size": 32, "lr": 0.004, "warmup_steps": 5, "device": "cpu", **training},
    }


def quiet(_: str) -> None:
    pass


def test_loss_of_chosen_answers_matches_transformers(tmp_path: Path) -> None:
    """Questions of different lengths; the last answer is not among those to choose from."""
    reference, folder = vilt(tmp_path)
    bundle = glassformer.load(folder)
    learner = ImageQuestionLearner(bundle.model, answers=ChosenAnswers(bundle, 12, PAD))
    ids, images = torch.tensor([[2, 20, 21, 3], [2, 25, 3, PAD], [2, 26, 3, PAD]]), torch.randn(3, 3, 16, 16)
    labels = torch.tensor([1, 3, -100])
    with torch.no_grad():
        logits = reference(input_ids=ids, attention_mask=(ids != PAD).long(), pixel_values=images).logits
        ours = learner(images, ids, labels)
    assert (ours - cross_entropy(logits[:2], labels[:2], reduction="sum")).abs() < 1e-5


def test_loss_of_generated_answers_matches_transformers(tmp_path: Path) -> None:
    reference, folder = blip("BlipForQuestionAnswering", tmp_path)
    bundle = glassformer.load(folder)
    learner = ImageQuestionLearner(bundle.model, answers=GeneratedAnswers(bundle, 12, PAD))
    ids, images = torch.tensor([[2, 20, 21, 3]] * 2), torch.randn(2, 3, 17, 17)
    tgt, labels = torch.tensor([[4, 30, 31], [4, 32, 33]]), torch.tensor([[30, 31, 3], [32, 33, 3]])
    with torch.no_grad():
        memory = reference.vision_model(images).last_hidden_state
        mask = torch.ones(memory.shape[:2], dtype=torch.long)
        question = reference.text_encoder(
            input_ids=ids, encoder_hidden_states=memory, encoder_attention_mask=mask
        ).last_hidden_state
        logits = reference.text_decoder(input_ids=tgt, encoder_hidden_states=question).logits
        ours = learner(images, ids, labels, tgt=tgt)
    assert (ours - cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")).abs() < 1e-4


def test_training_answers_questions_about_shapes(tmp_path: Path) -> None:
    """A short run learns both questions; the saved model is evaluated, and fine-tuned on the same answers."""
    table, logged = questions_about_shapes(tmp_path), list[str]()
    pipeline = glassformer.train(
        recipe_of(table, max_steps=150, eval_steps=75), tmp_path / "run", log=logged.append
    )
    assert pipeline.family == "vilt" and pipeline.job.name == "vqa"
    assert pipeline.job.classes == ("blue", "green", "no", "red", "white", "yes")
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert config["id2label"]["1"] == "green"
    scores = evaluate_files(tmp_path / "run", [str(table)], device="cpu", log=quiet).validation
    assert scores.metrics["vqa_accuracy"] > 80
    assert scores.metrics["question_only"] < 60, "answers are equally frequent"
    assert scores.signatures["vqa_accuracy"] == "VQA accuracy|questions:128|refs:1"
    right = sum(sample.got == sample.expected for sample in scores.samples)
    assert 100 * right / len(scores.samples) == pytest.approx(scores.metrics["vqa_accuracy"])

    tuned = {**recipe_of(table, max_steps=2, lr=1e-5), "model": {"folder": str(tmp_path / "run")}}
    again = glassformer.train(tuned, tmp_path / "tuned", log=logged.append)
    assert again.spec == pipeline.spec and again.job.classes == pipeline.job.classes


@pytest.mark.parametrize("name", ["vilt", "blip"])
def test_published_models_are_fine_tuned(name: str, tmp_path: Path) -> None:
    """ViLT gets a head for the new answers, BLIP generates them; both learn two questions by heart."""
    folder = (vilt(tmp_path / name) if name == "vilt" else blip("BlipForQuestionAnswering", tmp_path / name))[
        1
    ]
    table = questions_about_shapes(tmp_path, 8)
    recipe = recipe_of(table, max_steps=60, batch_size=16, lr=0.003)
    recipe["data"] |= {"min_count": 1, "max_len": None}
    del recipe["tokenizer"]
    recipe["model"] = {"folder": str(folder)}
    pipeline = glassformer.train(recipe, tmp_path / "run", log=quiet)
    assert (pipeline.job.classes is not None) == (name == "vilt") and pipeline.family == name
    metrics = evaluate_files(tmp_path / "run", [str(table)], device="cpu", log=quiet).validation.metrics
    assert metrics["vqa_accuracy"] > 70


def test_several_answers_to_a_question_are_references(tmp_path: Path) -> None:
    table = questions_about_shapes(tmp_path, 8)
    first = table.read_text().splitlines()[2]
    assert first.endswith("no")
    table.write_text(table.read_text() + f"{first.removesuffix('no')}yes\n")
    recipe = recipe_of(table, max_steps=1)
    glassformer.train(recipe, tmp_path / "run", log=quiet)
    validation = evaluate_files(tmp_path / "run", [str(table)], device="cpu", log=quiet).validation
    assert validation.signatures["vqa_accuracy"] == "VQA accuracy|questions:16|refs:1-2"
    assert len(validation.samples) == 16


def test_resume_within_an_epoch_is_bit_identical(tmp_path: Path) -> None:
    long = recipe_of(questions_about_shapes(tmp_path, 20), max_steps=8, eval_steps=4, report_to=[])
    long["training"] |= {"lr_scheduler": "constant", "batch_size": 16}
    long["data"]["max_shift"] = 2
    short = {**long, "training": {**long["training"], "max_steps": 4}}
    glassformer.train(short, tmp_path / "resumed", log=quiet)
    resumed = glassformer.train(long, tmp_path / "resumed", log=quiet)
    straight = glassformer.train(long, tmp_path / "straight", log=quiet)
    pairs = zip(resumed.model.state_dict().items(), straight.model.state_dict().items(), strict=True)
    assert all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


def test_unusable_models_and_data_are_rejected(tmp_path: Path) -> None:
    table = questions_about_shapes(tmp_path, 8)
    recipe = recipe_of(table, max_steps=1)
    with pytest.raises(UnsupportedError, match="vilt-mini"):
        glassformer.train({**recipe, "model": {"preset": "vit"}}, tmp_path / "vit", log=quiet)
    recipe["data"]["min_count"] = 100
    with pytest.raises(InvalidValueError, match=r"answers to learn is 0; .* lower data\.min_count"):
        glassformer.train(recipe, tmp_path / "rare", log=quiet)
    recipe["data"] |= {"min_count": 1, "train": [str(tmp_path / "one.tsv")], "valid": 0.1}
    lines = table.read_text().splitlines()
    (tmp_path / "one.tsv").write_text("\n".join(lines[:3]) + "\n")  # two questions about an image
    with pytest.raises(InvalidValueError, match=r"images is 1; expected at least 2, .* data\.valid"):
        glassformer.train(recipe, tmp_path / "single", log=quiet)
    (tmp_path / "coco.json").write_text("{}")
    with pytest.raises(GlassformerError, match="columns image, question and answer"):
        ImageQuestionSource(tmp_path / "coco.json")
    (tmp_path / "other.tsv").write_text("picture\tq\ta\n")
    with pytest.raises(GlassformerError, match="image and the question and the answer"):
        list(ImageQuestionSource(tmp_path / "other.tsv").rows(RowErrors()))


def image_encoder(folder: Path) -> Path:
    """A tiny ViT with the processor of its images."""
    torch.manual_seed(0)
    model = glassformer.tiny("vit", head=FeaturesSpec())
    processor = ImageProcessor(size={"height": 16, "width": 16})
    files = {"preprocessor_config.json": processor.to_dict()}
    return glassformer.save(glassformer.Pipeline(model=model, files=files), folder)


@pytest.mark.parametrize("lora_r", [None, 2])
def test_connector_is_trained_between_a_frozen_encoder_and_a_frozen_decoder(
    tmp_path: Path, lora_r: int | None
) -> None:
    """With LoRA, the decoder is adapted. The answers are those of the chat."""
    language_model = save_language_model(tmp_path / "lm", max_len=128)
    table = questions_about_shapes(tmp_path, 8)
    recipe = recipe_of(table, max_steps=5, batch_size=16, lr=0.01, lora_r=lora_r)
    recipe["data"] |= {"min_count": 1, "max_len": None}
    del recipe["tokenizer"]
    vision = image_encoder(tmp_path / "vit")
    recipe["model"] = {"folder": str(language_model), "image_encoder": str(vision)}
    pipeline = glassformer.train(recipe, tmp_path / "run", log=quiet)
    assert pipeline.spec.modalities == ("text", "image")
    state, before = pipeline.model.state_dict(), glassformer.load(vision).model.state_dict()
    for name in ("embed.patch.weight", "encoder.blocks.1.ffn.up.weight"):
        assert torch.equal(state[f"embed.image.{name}"], before[name])
    decoder = glassformer.load(language_model).model.state_dict()
    name = "decoder.blocks.1.self_attn.q_proj.weight"
    assert torch.equal(state[name], decoder[name]) == (lora_r is None)
    tokens = decoder["embed.token.weight"]
    assert torch.equal(state["embed.token.weight"][: len(tokens)], tokens)
    validation = evaluate_files(tmp_path / "run", [str(table)], device="cpu", log=quiet).validation
    sample = validation.samples[0]
    path, _, question = sample.source.partition(" ")
    content = [{"type": "image", "path": path}, {"type": "text", "text": question}]
    chat = pipeline.chat([{"role": "user", "content": content}], max_new_tokens=16, do_sample=False)
    assert chat.strip() == sample.got
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": chat}]
    written = pipeline.tokenizer.apply_chat_template(turns, tokenize=False)
    assert written.endswith(
        f"Answer: {sample.got}{pipeline.tokenizer.decode([pipeline.tokenizer.eos_id], skip_special=False)}\n"
    )


def test_vision_language_model_learns_answers_by_heart(tmp_path: Path) -> None:
    bundle = connect(
        glassformer.load(image_encoder(tmp_path / "vit")),
        glassformer.load(save_language_model(tmp_path / "lm", max_len=128)),
    )
    glassformer.save(bundle, tmp_path / "model")
    table = questions_about_shapes(tmp_path, 8)
    recipe = recipe_of(table, max_steps=200, batch_size=16, lr=0.006, eval_steps=100)
    recipe["data"] |= {"min_count": 1, "max_len": None}
    del recipe["tokenizer"]
    recipe["model"] = {"folder": str(tmp_path / "model")}
    glassformer.train(recipe, tmp_path / "run", log=quiet)
    metrics = evaluate_files(tmp_path / "run", [str(table)], device="cpu", log=quiet).validation.metrics
    assert metrics["vqa_accuracy"] > 70 > metrics["question_only"]


def test_models_that_cannot_be_connected_are_rejected(tmp_path: Path) -> None:
    table = questions_about_shapes(tmp_path, 8)
    recipe = recipe_of(table, max_steps=1)
    vision, language_model = (
        image_encoder(tmp_path / "vit"),
        save_language_model(tmp_path / "lm", max_len=128),
    )
    for model, error in (
        ({"image_encoder": str(vision)}, MissingValueError),
        ({"folder": str(vision), "image_encoder": str(vision)}, UnsupportedError),
        ({"folder": str(language_model), "image_encoder": str(language_model)}, UnsupportedError),
        ({"folder": str(language_model)}, UnsupportedError),
    ):
        with pytest.raises(error):
            glassformer.train({**recipe, "model": model}, tmp_path / "run", log=quiet)
    recipe["data"]["max_len"] = 10
    model = {"folder": str(language_model), "image_encoder": str(vision)}
    with pytest.raises(InvalidValueError) as caught:
        glassformer.train({**recipe, "model": model}, tmp_path / "short", log=quiet)
    assert caught.value.name == "data.max_len"


def test_questions_are_not_longer_than_the_position_table(tmp_path: Path) -> None:
    _, folder = vilt(tmp_path)
    spec = glassformer.load(folder).spec
    assert max_input_length(spec) == spec.inputs()[0].position.max_len  # type: ignore[attr-defined]


def test_estimates_of_a_run_include_validations_and_saves(tmp_path: Path) -> None:
    recipe = recipe_of(questions_about_shapes(tmp_path), max_steps=8, eval_steps=4, save_steps=8)
    job = prepare_job(parse_recipe(recipe), tmp_path / "run", torch.device("cpu"), quiet)
    assert len(job.train_examples()) == len(job.valid_examples()) == 128  # 4 steps an epoch
    # 8 steps, and 2 validations of 128 examples, which are run three times without a backward pass
    assert job.run_seconds(1.0) - job.run_seconds(0.0) == pytest.approx(8 + 2 * 4)
    # saves after both validations, and one at the end
    assert job.run_seconds(0.0) == pytest.approx(3 * SAVE_SECONDS)
    assert job.run_seconds(0.0, 10**9) > 30
