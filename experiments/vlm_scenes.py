"""A vision-language model of 14 million parameters: pocket-lm answers questions about composed scenes.

Between the image encoder of pocket-captioner and pocket-lm, both frozen, stands a connector: it joins squares
of 2 x 2 patches and projects them to 36 vectors, which take the place of `<image>` in a chat. "connector/1"
trains the connector alone, "lora/1" also low-rank adapters of pocket-lm, which are merged when it is saved.
The questions are the English ones of `scene_questions`, since pocket-lm reads English.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

import glassformer
from experiments.caption_scenes import FIRST_TEST, normalize
from experiments.detection_scenes import ARRAYS
from experiments.paths import Workspace
from experiments.scene_questions import Question, QuestionComposer
from experiments.scenes import SceneLayout
from experiments.vision_training import record, train_for
from experiments.vqa_scenes import answered
from glassformer.bundle import Bundle, load, save
from glassformer.core.backend import Dropout
from glassformer.core.inputs import ImageTextInputs
from glassformer.core.lora import add_lora
from glassformer.data.examples import IGNORE_INDEX, Arrays
from glassformer.families.sidecars import JobInfo
from glassformer.generation import GenerationParams
from glassformer.generation.config import GenerationConfig
from glassformer.generation.engine import generate
from glassformer.generation.inference_model import prepare_for_inference
from glassformer.generation.prompt import Prompt
from glassformer.pretrained import folder_of
from glassformer.processors.text import require_tokenizer
from glassformer.tokenization import Tokenizer
from glassformer.training.hardware import device_for
from glassformer.training.learner import TextLearner, count_labels, vocabulary_loss
from glassformer.training.recipe import TrainingOptions, parse_section, with_overrides
from glassformer.training.task import TrainingPlan, ValidationResult
from glassformer.training.vision_language import IMAGE, connect

ROW, SECONDS = "vlm-scenes", 480.0
IMAGE_TOKENS, MAX_LEN, MAX_ANSWER = 36, 64, 6
VALID_SCENES, TEST_SCENES, CHATS, BATCH = 250, 2000, 200, 250
TRAINING = {"lr": 1e-3, "batch_size": 256, "weight_decay": 0.01, "ema": 0.999, "max_grad_norm": 1.0}
LORA = {"r": 16, "lora_alpha": 32.0, "lora_dropout": 0.0, "target_modules": ["all-linear"]}


def connected() -> Bundle:
    """Return the image encoder of pocket-captioner and pocket-lm, without its dropout, and a connector."""
    bundle = connect(*(load(folder_of(name)) for name in ("pocket-captioner", "pocket-lm")))
    for module in bundle.model.modules():
        if isinstance(module, Dropout):
            module.p = 0.0
    return replace(bundle, generation={**bundle.generation, "max_new_tokens": 16}, job=JobInfo(name="vqa"))


def train_part(model: Any, kind: str) -> None:
    """Freeze the image encoder and the decoder, but neither the connector nor the adapters."""
    model.requires_grad_(False)
    if kind == "lora":
        add_lora(model.decoder, **LORA)  # type: ignore[arg-type]
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("lora_" in name)
    model.embed.connector.requires_grad_(True)


class ChatExamples:
    """Layouts of scenes with a chat of one question and its answer, which is learned."""

    def __init__(self, composer: QuestionComposer, tokenizer: Tokenizer) -> None:
        self.composer, self.tokenizer = composer, tokenizer
        self._known: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return FIRST_TEST

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.ones((len(rows), 1), np.int64)

    def prompt(self, question: str) -> list[int]:
        """Return the ids of a chat that asks a question about an image."""
        if question not in self._known:
            content = [{"type": "image"}, {"type": "text", "text": question}]
            message = {"role": "user", "content": content}
            ids = self.tokenizer.apply_chat_template([message], add_generation_prompt=True)
            image = self.tokenizer.token_id(IMAGE)
            self._known[question] = [
                one for token in ids for one in [token] * (IMAGE_TOKENS if token == image else 1)
            ]
        return self._known[question]

    def answer(self, text: str) -> list[int]:
        """Return the ids of an answer."""
        if f" {text}" not in self._known:
            ids = self.tokenizer.encode(f" {text}", special=False).ids
            self._known[f" {text}"] = [*ids, self.tokenizer.eos_id]  # type: ignore[list-item]
        return self._known[f" {text}"]

    def questions(self, rows: NDArray[np.int64]) -> list[Question]:
        return self.composer.questions(rows, np.zeros(len(rows), np.int64))

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
        """Return the arrays of the layouts, ids (B, T) and labels (B, T)."""
        layout = self.composer.layout(rows)
        ids = np.full((len(rows), MAX_LEN), self.tokenizer.pad_id)
        labels = np.full((len(rows), MAX_LEN), IGNORE_INDEX)
        for row, question in enumerate(self.questions(rows)):
            prompt, answer = self.prompt(question.text), self.answer(question.answer)
            end = len(prompt) + len(answer)
            ids[row, : end - 1] = [*prompt, *answer[:-1]]
            labels[row, len(prompt) - 1 : end - 1] = answer
        return {**{name: getattr(layout, name) for name in ARRAYS}, "ids": ids, "labels": labels}


class ChatLearner(TextLearner):
    """Render a batch of layouts and learn the answers of its chats."""

    def __init__(self, model: torch.nn.Module, composer: QuestionComposer) -> None:
        super().__init__(model)
        self.composer = composer

    def forward(self, ids: Tensor, labels: Tensor, **layout: Tensor) -> Tensor:  # type: ignore[override]
        images = normalize(self.composer.render(SceneLayout(**layout)).images)  # type: ignore[arg-type]
        x, context = self.model.hidden_states(ImageTextInputs(ids, images=images))
        return vocabulary_loss(self.model, x, context, labels, 0.0)


@torch.no_grad()
def measure(learner: ChatLearner, examples: ChatExamples, scenes: int, first: int) -> dict[str, float]:
    """Return the accuracy of greedy answers on test scenes."""
    learner.eval()
    composer, tokenizer = learner.composer, examples.tokenizer
    model = prepare_for_inference(learner.model)
    config = GenerationConfig(max_new_tokens=MAX_ANSWER)
    params = GenerationParams(config=config, eos_token_id=tokenizer.eos_id, pad_token_id=tokenizer.pad_id)
    image_id = tokenizer.token_id(IMAGE)
    assert image_id is not None
    questions: list[Question] = []
    answers: list[str] = []
    for start in range(0, scenes, BATCH):
        rows = np.arange(start, min(start + BATCH, scenes)) + first
        asked = examples.questions(rows)
        vectors = learner.model.embed.encode_images(normalize(composer.batch(rows).images))
        prompts = [
            Prompt.with_images(examples.prompt(question.text), one[None], image_id)
            for question, one in zip(asked, vectors, strict=True)
        ]
        questions += asked
        answers += [tokenizer.decode(best.ids).strip() for best, *_ in generate(model, prompts, params)]
    figures = answered(questions, answers, "en")
    return {"accuracy": figures.pop("accuracy en"), **figures}


def measure_chat(model: Path, examples: ChatExamples, scenes: int, first: int) -> dict[str, float]:
    """Return the accuracy of a saved model, asked in `chat` about one image after the other."""
    pipeline, rows = glassformer.load(model), np.arange(scenes) + first
    pixels = (examples.composer.batch(rows).images * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    questions, answers = examples.questions(rows), []
    for question, image in zip(questions, pixels, strict=True):
        content = [
            {"type": "image", "image": Image.fromarray(image)},
            {"type": "text", "text": question.text},
        ]
        answers.append(
            pipeline.chat([{"role": "user", "content": content}], max_new_tokens=MAX_ANSWER).strip()
        )
    return {"accuracy in chat": answered(questions, answers, "en")["accuracy en"]}


def run(workspace: Workspace, name: str) -> None:
    """Train and measure one model; trained.safetensors has the connector and the adapters alone."""
    kind, _, number = name.partition("/")
    seed, device = int(number), device_for(workspace.device)
    composer = QuestionComposer(workspace.data / "emoji-captions", seed=seed, device=device)
    torch.manual_seed(seed)
    bundle = connected()
    model, tokenizer = bundle.model, require_tokenizer(bundle)
    train_part(model, kind)
    learner, examples = ChatLearner(model, composer), ChatExamples(composer, tokenizer)
    task = TrainingPlan(
        learner=learner,
        train=examples,
        unit="tokens",
        count=count_labels,
        metric="accuracy",
        validate=lambda _: ValidationResult(metrics=measure(learner, examples, VALID_SCENES, FIRST_TEST)),
        save=lambda folder: save(bundle, folder),
    )
    settings = with_overrides({"training": TRAINING}, workspace.changes)
    options = parse_section(TrainingOptions, settings["training"])
    folder, limit = workspace.run(ROW, name), workspace.seconds or SECONDS
    try:
        trained = train_for(task, options, seconds=limit, seed=seed, device=device, of="accuracy")
    finally:
        task.save(folder / "model")
        new = {key: p.detach().cpu() for key, p in model.named_parameters() if p.requires_grad}
        save_file(new, folder / "trained.safetensors")
    scenes = workspace.most or TEST_SCENES
    figures = measure(learner, examples, scenes, FIRST_TEST + VALID_SCENES)
    chats = min(scenes, CHATS)
    figures |= measure_chat(folder / "model", examples, chats, FIRST_TEST + VALID_SCENES)
    figures["trained parameters"] = sum(p.numel() for p in model.parameters() if p.requires_grad)
    figures["scenes per second"] = trained.steps * (options.batch_size or 1) / trained.seconds
    print(figures, flush=True)
    record(workspace, ROW, name, trained, "accuracy", figures)
