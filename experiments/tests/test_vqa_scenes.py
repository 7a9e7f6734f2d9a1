"""Examples of questions about scenes: what is learned is the answer to the question, and nothing else."""

import numpy as np
import pytest
import torch

from experiments.caption_scenes import FIRST_TEST
from experiments.paths import data_folder
from experiments.scene_questions import LANGUAGES, QuestionComposer
from experiments.vlm_scenes import IMAGE_TOKENS, ChatExamples, ChatLearner, connected, train_part
from experiments.vqa_scenes import (
    MODEL,
    QuestionExamples,
    languages_of,
    make_vocabulary,
    start_from_captioner,
)
from glassformer.bundle import load
from glassformer.core.build import build_model
from glassformer.data.examples import IGNORE_INDEX
from glassformer.families.registry import preset_spec
from glassformer.pretrained import folder_of
from glassformer.training.vision_language import IMAGE

EMOJI = data_folder() / "emoji-captions"
pytestmark = pytest.mark.skipif(not EMOJI.is_dir(), reason="the emoji are not there")
ROWS = np.arange(24)


@pytest.fixture(scope="module")
def composer():
    return QuestionComposer(EMOJI, seed=1)


def test_labels_are_the_answers_in_the_language_of_the_question(composer):
    vocabulary = make_vocabulary()
    batch = QuestionExamples(composer, vocabulary).batch(ROWS, epoch=0)
    languages = languages_of(composer.seed, ROWS)
    assert {*languages} == {*range(len(LANGUAGES))}
    for question, ids, label in zip(
        composer.questions(ROWS, languages), batch["ids"], batch["labels"], strict=True
    ):
        assert vocabulary.answers[label] == question.answer
        assert vocabulary.tokenizer.unknown_ids.isdisjoint(ids.tolist())
        assert vocabulary.tokenizer.decode(ids.tolist()) == question.text.lower()


def test_the_first_layers_start_from_the_captioner():
    sizes = {"vocab_size": 50, "num_labels": 5, "pad_id": 0}
    model = build_model(preset_spec("vilt-mini", **{**MODEL, **sizes}))
    last = model.encoder.blocks[-1].self_attn.q_proj.weight.clone()
    start_from_captioner(model)
    captioner = load(folder_of("pocket-captioner")).model
    images = torch.randn(2, 3, 96, 96)
    patches = model.embed.image(images).x
    torch.testing.assert_close(patches, captioner.src_embed(images).x)
    for ours, theirs in zip(model.encoder.blocks, captioner.encoder.blocks, strict=False):
        assert torch.equal(ours.ffn.up.weight, theirs.ffn.up.weight)
    assert torch.equal(model.encoder.blocks[-1].self_attn.q_proj.weight, last)


def test_chats_have_an_image_and_learn_the_answer(composer):
    tokenizer = connected().tokenizer
    examples = ChatExamples(composer, tokenizer)
    batch = examples.batch(ROWS + FIRST_TEST, epoch=0)
    for question, ids, labels in zip(
        examples.questions(ROWS + FIRST_TEST), batch["ids"], batch["labels"], strict=True
    ):
        learned = labels != IGNORE_INDEX
        assert tokenizer.decode(labels[learned].tolist()).strip() == question.answer
        assert (ids == tokenizer.token_id(IMAGE)).sum() == IMAGE_TOKENS
        text = tokenizer.decode(ids[: np.flatnonzero(learned)[0] + 1].tolist())
        assert text == f"Question: {question.text}\nAnswer:"


@pytest.mark.parametrize(("kind", "trained"), [("connector", {"embed"}), ("lora", {"embed", "decoder"})])
def test_encoder_and_decoder_are_frozen(composer, kind, trained):
    bundle = connected()
    model, tokenizer = bundle.model, bundle.tokenizer
    train_part(model, kind)
    learner = ChatLearner(model, composer)
    batch = ChatExamples(composer, tokenizer).batch(ROWS[:4], epoch=0)
    learner(**{name: torch.from_numpy(array) for name, array in batch.items()}).backward()
    with_gradient = {name for name, p in model.named_parameters() if p.grad is not None}
    assert {name.partition(".")[0] for name in with_gradient} == trained
    assert all("connector" in name or "lora_" in name for name in with_gradient)
