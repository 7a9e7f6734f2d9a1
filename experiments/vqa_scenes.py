"""Questions about composed scenes in English and Korean, those of `scene_questions`: a small ViLT.

Its patch embedding and first layers start from the image encoder of pocket-captioner, as those of the
published ViLT start from a ViT; the text embedding and the other layers are new. Runs are "vilt/1", and
"question-only/1", the same model and training with a gray image instead of each scene: what the words of a
question give away. Every training step sees new scenes. The figures are the shares of right answers to
questions about test scenes, whose pairs of kinds no training scene of this row has.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from experiments.caption_scenes import FIRST_TEST, MEAN, SIZE, STD, normalize
from experiments.detection_scenes import ARRAYS
from experiments.paths import Workspace
from experiments.scene_questions import LANGUAGES, Question, QuestionComposer, every_question
from experiments.scenes import SceneLayout
from experiments.vision_training import record, train_for
from glassformer.bundle import Bundle, load, save
from glassformer.core.inputs import ImageTextInputs
from glassformer.data.examples import Arrays
from glassformer.data.image_processing import ImageProcessor
from glassformer.data.randomness import uniform
from glassformer.families.registry import preset_spec
from glassformer.families.sidecars import IMAGE_PROCESSOR_FILE, JobInfo
from glassformer.metrics import vqa_metric
from glassformer.pretrained import folder_of
from glassformer.tokenization import Tokenizer, TokenizerPlan, train_tokenizer
from glassformer.training.hardware import device_for
from glassformer.training.learner import Learner, count_examples
from glassformer.training.model_setup import build_initialized
from glassformer.training.recipe import TrainingOptions, parse_section, with_overrides
from glassformer.training.task import TrainingPlan, ValidationResult

ROW, MAX_LEN = "vqa-scenes", 16
SECONDS = 480.0
VALID_SCENES, TEST_SCENES, BATCH = 500, 4000, 500  # in each language
MODEL: dict[str, Any] = {"image_size": SIZE, "patch_size": 8, "d_model": 160}
MODEL |= {"num_heads": 5, "d_ff": 640, "num_layers": 8, "max_len": MAX_LEN}
TRAINING = {"lr": 1e-3, "batch_size": 512, "weight_decay": 0.05, "ema": 0.999, "max_grad_norm": 1.0}


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The tokenizer of the questions, and the answers in both languages."""

    tokenizer: Tokenizer
    answers: tuple[str, ...]


def make_vocabulary() -> Vocabulary:
    """Return a tokenizer with all words of the questions, and all answers."""
    questions = list(every_question())
    plan = TokenizerPlan(kind="word", lowercase=True, vocab_size=4000, min_frequency=1, template="cls_sep")
    tokenizer = train_tokenizer([question.text for question in questions], plan)
    return Vocabulary(tokenizer=tokenizer, answers=tuple(sorted({question.answer for question in questions})))


@torch.no_grad()
def start_from_captioner(model: torch.nn.Module) -> None:
    """Copy the patch embedding and the layers of pocket-captioner's image encoder to the first layers."""
    state = model.state_dict()
    for name, value in load(folder_of("pocket-captioner")).model.state_dict().items():
        module, _, rest = name.partition(".")
        target = {"src_embed": f"embed.image.{rest}", "encoder": name}.get(module, "")
        if target in state and "final_norm" not in name:
            state[target].copy_(value)


def languages_of(seed: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Draw the language of the question about each scene."""
    return np.floor(uniform(seed, 4, rows, 1)[:, 0] * len(LANGUAGES)).astype(np.int64)


class QuestionExamples:
    """Layouts of scenes with a question in a random language."""

    def __init__(self, composer: QuestionComposer, vocabulary: Vocabulary) -> None:
        self.composer, self.tokenizer = composer, vocabulary.tokenizer
        self.classes = {answer: n for n, answer in enumerate(vocabulary.answers)}
        self._known: dict[str, list[int]] = {}  # the ids of questions, which recur

    def __len__(self) -> int:
        return FIRST_TEST

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.ones((len(rows), 1), np.int64)

    def encode(self, texts: list[str]) -> NDArray[np.int64]:
        """Return token ids (B, T), padded."""
        if new := [text for text in dict.fromkeys(texts) if text not in self._known]:
            encoded = (one.ids for one in self.tokenizer.encode_batch(new))
            self._known |= zip(new, encoded, strict=True)
        ids = np.full((len(texts), MAX_LEN), self.tokenizer.pad_id)
        for row, text in enumerate(texts):
            ids[row, : len(self._known[text])] = self._known[text]
        return ids

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
        """Return the arrays of the layouts, ids (B, T) and labels (B,)."""
        layout = self.composer.layout(rows)
        questions = self.composer.questions(rows, languages_of(self.composer.seed, rows))
        arrays = {name: getattr(layout, name) for name in ARRAYS}
        labels = np.array([self.classes[question.answer] for question in questions])
        return {**arrays, "ids": self.encode([question.text for question in questions]), "labels": labels}


class QuestionLearner(Learner):
    """Render a batch of layouts and answer its questions. blind: the images are gray."""

    def __init__(self, model: torch.nn.Module, composer: QuestionComposer, *, blind: bool = False) -> None:
        super().__init__(model)
        self.composer, self.blind = composer, blind

    def images(self, layout: SceneLayout) -> Tensor:
        """Return the normalized images (B, 3, S, S)."""
        images = normalize(self.composer.render(layout).images)
        return torch.zeros_like(images) if self.blind else images

    def forward(self, ids: Tensor, labels: Tensor, **layout: Tensor) -> Tensor:
        images = self.images(SceneLayout(**layout))  # type: ignore[arg-type]
        logits = self.model(ImageTextInputs(ids, images=images))
        return F.cross_entropy(logits.float(), labels, reduction="sum")


def answered(questions: list[Question], answers: list[str], language: str) -> dict[str, float]:
    """Return the accuracy of the answers in percent, of all and of each kind."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for question, answer in zip(questions, answers, strict=True):
        for name in (language, f"{question.kind} {language}"):
            groups.setdefault(name, []).append((answer, question.answer))
    return {
        f"accuracy {name}": vqa_metric(*map(list, zip(*pairs, strict=True)))["accuracy"].score
        for name, pairs in groups.items()
    }


@torch.no_grad()
def measure(learner: QuestionLearner, vocabulary: Vocabulary, scenes: int, first: int) -> dict[str, float]:
    """Return the accuracy on test scenes, of all questions, and by language and kind of question."""
    learner.eval()
    composer, examples = learner.composer, QuestionExamples(learner.composer, vocabulary)
    device = composer.device
    figures: dict[str, float] = {}
    for number, language in enumerate(LANGUAGES):
        questions: list[Question] = []
        answers: list[str] = []
        for start in range(0, scenes, BATCH):
            rows = np.arange(start, min(start + BATCH, scenes)) + first
            asked = composer.questions(rows, np.full(len(rows), number))
            ids = torch.from_numpy(examples.encode([question.text for question in asked])).to(device)
            logits = learner.model(ImageTextInputs(ids, images=learner.images(composer.layout(rows))))
            questions += asked
            answers += [vocabulary.answers[n] for n in logits.argmax(-1).tolist()]
        figures |= answered(questions, answers, language)
    total = sum(figures[f"accuracy {language}"] for language in LANGUAGES)
    return {"accuracy": total / len(LANGUAGES), **figures}


def most_frequent(composer: QuestionComposer, scenes: int) -> dict[str, float]:
    """Return the accuracy of the most frequent answer to each kind of question, on test scenes."""
    right = total = 0
    for number in range(len(LANGUAGES)):
        asked = composer.questions(np.arange(scenes) + FIRST_TEST + VALID_SCENES, np.full(scenes, number))
        for kind in {question.kind for question in asked}:
            counts = Counter(question.answer for question in asked if question.kind == kind)
            right, total = right + max(counts.values()), total + counts.total()
    return {"most frequent answer": 100 * right / total}


def run(workspace: Workspace, name: str) -> None:
    """Train and measure one model; it is saved in float32, and in bfloat16 in the folder model-bf16."""
    kind, _, number = name.partition("/")
    seed, device = int(number), device_for(workspace.device)
    composer = QuestionComposer(workspace.data / "emoji-captions", seed=seed, device=device)
    vocabulary = make_vocabulary()
    tokenizer = vocabulary.tokenizer
    torch.manual_seed(seed)
    settings = with_overrides({"model": MODEL, "training": TRAINING}, workspace.changes)
    fixed = {
        "vocab_size": tokenizer.vocab_size,
        "num_labels": len(vocabulary.answers),
        "pad_id": tokenizer.pad_id,
    }
    model = build_initialized(preset_spec("vilt-mini", **settings["model"], **fixed))
    start_from_captioner(model)
    learner = QuestionLearner(model, composer, blind=kind == "question-only")
    processor = ImageProcessor(
        size={"height": SIZE, "width": SIZE}, resample=2, image_mean=MEAN, image_std=STD
    )
    bundle = Bundle(
        model=model,
        tokenizer=tokenizer,
        job=JobInfo(name="vqa", max_len=MAX_LEN, classes=vocabulary.answers),
        files={IMAGE_PROCESSOR_FILE: processor.to_dict()},
    )
    task = TrainingPlan(
        learner=learner,
        train=QuestionExamples(composer, vocabulary),
        unit="questions",
        count=count_examples,
        metric="accuracy",
        validate=lambda _: ValidationResult(metrics=measure(learner, vocabulary, VALID_SCENES, FIRST_TEST)),
        save=lambda folder: save(bundle, folder),
    )
    options = parse_section(TrainingOptions, settings["training"])
    folder, limit = workspace.run(ROW, name), workspace.seconds or SECONDS
    try:
        trained = train_for(task, options, seconds=limit, seed=seed, device=device, of="accuracy")
    finally:
        task.save(folder / "model")
    scenes = workspace.most or TEST_SCENES
    figures = measure(learner, vocabulary, scenes, FIRST_TEST + VALID_SCENES)
    figures |= most_frequent(composer, scenes)
    figures["scenes per second"] = trained.steps * (options.batch_size or 1) / trained.seconds
    print(figures, flush=True)
    record(workspace, ROW, name, trained, "accuracy", figures)
    model.bfloat16()
    task.save(folder / "model-bf16")
