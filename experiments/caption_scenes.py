"""Sentences about composed scenes in English, German, French and Korean: a captioner from scratch.

python -m experiments.caption_scenes --out scenes --count 20000     a table for the recipe caption-scenes

A scene has one or two groups of one to three equal things: emoji, or plain shapes in one of six colors. Two
groups stand side by side, or one above the other. A tenth of all pairs of kinds and relations is held out:
no training scene has them, and test scenes have no others. The figures are the shares of groups and of whole
sentences that are right.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from experiments.detection_scenes import ARRAYS
from experiments.paths import Workspace, data_folder
from experiments.scenes import (
    CUTOUT_SIDE,
    LANGUAGES,
    NO_LABEL,
    CutOuts,
    SceneComposer,
    SceneLayout,
    SceneOptions,
    read_emoji,
)
from experiments.vision_training import record, train_for
from glassformer.bundle import Bundle, save
from glassformer.data.examples import IGNORE_INDEX, Arrays
from glassformer.data.image_processing import ImageProcessor
from glassformer.data.randomness import uniform
from glassformer.families.registry import preset_spec
from glassformer.families.sidecars import IMAGE_PROCESSOR_FILE, JobInfo
from glassformer.generation import GenerationParams
from glassformer.generation.engine import generate
from glassformer.generation.inference_model import prepare_for_inference
from glassformer.tokenization import Tokenizer, TokenizerPlan, tag_ids, train_tokenizer
from glassformer.training.hardware import device_for
from glassformer.training.learner import PairLearner, count_labels
from glassformer.training.model_setup import build_initialized
from glassformer.training.recipe import TrainingOptions, parse_section
from glassformer.training.seq2seq_job import TAG
from glassformer.training.task import TrainingPlan, ValidationResult

ROW, SIZE, MAX_COUNT, MAX_LEN = "caption-scenes", 96, 3, 32
SECONDS = 440.0
FIRST_TEST = 1 << 40  # numbers of test scenes; training scenes have smaller ones
VALID_SCENES, TEST_SCENES, BATCH = 200, 2000, 250  # in each language
MEAN, STD = (0.5,) * 3, (0.5,) * 3
MODEL: dict[str, Any] = {"preset": "vit-gpt2-mini", "image_size": SIZE, "patch_size": 8, "d_model": 160}
MODEL |= {"num_heads": 5, "d_ff": 640, "num_layers": 4, "decoder_layers": 2, "decoder_dropout": 0.0}
TRAINING = {"lr": 1e-3, "batch_size": 512, "weight_decay": 0.05, "ema": 0.999, "max_grad_norm": 1.0}

# English singular and plural; German article, singular and plural; French likewise; Korean and its counter
THINGS: dict[str, str] = {  # by the English name of the emoji
    "goat": "goat goats eine Ziege Ziegen une chèvre chèvres 염소 마리",
    "cow": "cow cows eine Kuh Kühe une vache vaches 젖소 마리",
    "pig": "pig pigs ein Schwein Schweine un cochon cochons 돼지 마리",
    "horse": "horse horses ein Pferd Pferde un cheval chevaux 말 마리",
    "monkey": "monkey monkeys ein Affe Affen un singe singes 원숭이 마리",
    "penguin": "penguin penguins ein Pinguin Pinguine un pingouin pingouins 펭귄 마리",
    "duck": "duck ducks eine Ente Enten un canard canards 오리 마리",
    "owl": "owl owls eine Eule Eulen une chouette chouettes 부엉이 마리",
    "fish": "fish fish ein Fisch Fische un poisson poissons 물고기 마리",
    "octopus": "octopus octopuses ein Oktopus Oktopusse une pieuvre pieuvres 문어 마리",
    "butterfly": "butterfly butterflies ein Schmetterling Schmetterlinge un papillon papillons 나비 마리",
    "turtle": "turtle turtles eine Schildkröte Schildkröten une tortue tortues 거북이 마리",
    "elephant": "elephant elephants ein Elefant Elefanten un éléphant éléphants 코끼리 마리",
    "red apple": "apple apples ein Apfel Äpfel une pomme pommes 사과 개",
    "banana": "banana bananas eine Banane Bananen une banane bananes 바나나 개",
    "strawberry": "strawberry strawberries eine Erdbeere Erdbeeren une fraise fraises 딸기 개",
    "carrot": "carrot carrots eine Karotte Karotten une carotte carottes 당근 개",
    "mushroom": "mushroom mushrooms ein Pilz Pilze un champignon champignons 버섯 개",
    "hamburger": "hamburger hamburgers ein Hamburger Hamburger un hamburger hamburgers 햄버거 개",
    "house": "house houses ein Haus Häuser une maison maisons 집 채",
    "automobile": "car cars ein Auto Autos une voiture voitures 자동차 대",
    "bicycle": "bicycle bicycles ein Fahrrad Fahrräder un vélo vélos 자전거 대",
    "rocket": "rocket rockets eine Rakete Raketen une fusée fusées 로켓 대",
    "guitar": "guitar guitars eine Gitarre Gitarren une guitare guitares 기타 대",
    "key": "key keys ein Schlüssel Schlüssel une clé clés 열쇠 개",
    "tulip": "tulip tulips eine Tulpe Tulpen une tulipe tulipes 튤립 송이",
    "palm tree": "palm palms eine Palme Palmen un palmier palmiers 야자수 그루",
    "cactus": "cactus cactuses ein Kaktus Kakteen un cactus cactus 선인장 그루",
    "robot": "robot robots ein Roboter Roboter un robot robots 로봇 대",
    "candle": "candle candles eine Kerze Kerzen une bougie bougies 양초 개",
}
SHAPES: dict[str, str] = {  # with the gender of German, which colors agree with
    "circle": "circle circles ein Kreis Kreise un cercle cercles 원 개 m",
    "square": "square squares ein Quadrat Quadrate un carré carrés 사각형 개 n",
    "triangle": "triangle triangles ein Dreieck Dreiecke un triangle triangles 삼각형 개 n",
    "star": "star stars ein Stern Sterne une étoile étoiles 별 개 m",
    "heart": "heart hearts ein Herz Herzen un cœur cœurs 하트 개 n",
}
COLORS: dict[str, str] = {  # German stem, French forms (masculine, feminine; plural with s), Korean
    "red": "rot rouge rouge 빨간",
    "green": "grün vert verte 초록",
    "blue": "blau bleu bleue 파란",
    "yellow": "gelb jaune jaune 노란",
    "purple": "violett violet violette 보라",
    "white": "weiß blanc blanche 하얀",
}
KINDS = (*THINGS, *SHAPES)
NO_COLOR = len(COLORS)  # of an emoji, whose pixels stay as they are
NUMBERS = {
    "en": ("two", "three"),
    "de": ("zwei", "drei"),
    "fr": ("deux", "trois"),
    "ko": ("한", "두", "세"),
}


class Group(NamedTuple):
    """Equal things of a scene. kind: number in `KINDS`; color: in `COLORS`."""

    kind: int
    color: int
    count: int


def phrase(group: Group, language: str) -> str:
    """Return a group in words.

    >>> [phrase(Group(KINDS.index("star"), 0, 2), language) for language in LANGUAGES]
    ['two red stars', 'zwei rote Sterne', 'deux étoiles rouges', '빨간 별 두 개']
    """
    kind, several = KINDS[group.kind], group.count > 1
    words = (THINGS | SHAPES)[kind].split()
    color = None if group.color == NO_COLOR else [*COLORS][group.color]
    german, french_m, french_f, korean = (COLORS[color] if color else "- - - -").split()
    if language == "en":
        noun = f"{color} {words[several]}" if color else words[several]
        article = "an" if noun[0] in "aeiou" else "a"
        return f"{NUMBERS['en'][group.count - 2] if several else article} {noun}"
    if language == "de":
        article, noun = words[2], words[3 + several]
        ending = "e" if several else {"m": "er", "n": "es"}[words[-1]] if color else ""
        adjective = f"{german}{ending} " if color else ""
        return f"{NUMBERS['de'][group.count - 2] if several else article} {adjective}{noun}"
    if language == "fr":
        article, noun = words[5], words[6 + several]
        adjective = f" {french_f if article == 'une' else french_m}{'s' * several}" if color else ""
        return f"{NUMBERS['fr'][group.count - 2] if several else article} {noun}{adjective}"
    noun = f"{korean} {words[8]}" if color else words[8]
    return f"{noun} {NUMBERS['ko'][group.count - 1]} {words[9]}"


def sentence(groups: Sequence[Group], vertical: bool, language: str) -> str:
    """Return what a scene shows; of two groups, the first is on the left or above.

    >>> groups = [Group(KINDS.index("goat"), NO_COLOR, 1), Group(KINDS.index("heart"), 2, 3)]
    >>> for language in LANGUAGES:
    ...     print(sentence(groups, False, language))
    A goat is to the left of three blue hearts.
    Links ist eine Ziege, rechts sind drei blaue Herzen.
    À gauche une chèvre, à droite trois cœurs bleus.
    왼쪽에 염소 한 마리, 오른쪽에 파란 하트 세 개가 있습니다.
    """
    a, *rest = (phrase(group, language) for group in groups)
    plural = [group.count > 1 for group in groups]
    if not rest:
        forms = {
            "en": f"There {'are' if plural[0] else 'is'} {a}.",
            "de": f"Da {'sind' if plural[0] else 'ist'} {a}.",
            "fr": f"Il y a {a}.",
            "ko": f"{a}{_subject(a)} 있습니다.",
        }
        return forms[language]
    (b,) = rest
    if language == "en":
        relation = "above" if vertical else "to the left of"
        return f"{a[0].upper()}{a[1:]} {'are' if plural[0] else 'is'} {relation} {b}."
    if language == "de":
        first, second = ("Oben", "unten") if vertical else ("Links", "rechts")
        verbs = ["sind" if one else "ist" for one in plural]
        return f"{first} {verbs[0]} {a}, {second} {verbs[1]} {b}."
    if language == "fr":
        first, second = ("En haut", "en bas") if vertical else ("À gauche", "à droite")
        return f"{first} {a}, {second} {b}."
    first, second = ("위쪽에", "아래쪽에") if vertical else ("왼쪽에", "오른쪽에")
    return f"{first} {a}, {second} {b}{_subject(b)} 있습니다."


def _subject(text: str) -> str:
    """Return the subject particle after a Korean word, which depends on its last sound."""
    return "이" if (ord(text[-1]) - 0xAC00) % 28 else "가"


def shape_pictures() -> NDArray[np.uint8]:
    """Draw the shapes in white with a dark border, RGBA (N, 64, 64, 4)."""
    big, turns = 4 * CUTOUT_SIDE, np.deg2rad(np.arange(10) * 36 - 90)
    radius = np.where(np.arange(10) % 2, 0.2, 0.48)
    star = [
        (big * (0.5 + r * np.cos(t)), big * (0.52 + r * np.sin(t)))
        for r, t in zip(radius, turns, strict=True)
    ]
    t = np.linspace(0, 2 * np.pi, 60)
    x = 16 * np.sin(t) ** 3 / 36 + 0.5
    y = 0.47 - (13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)) / 36
    corners: dict[str, list[tuple[float, float]]] = {
        "square": [(big * u, big * v) for u, v in ((0.1, 0.1), (0.9, 0.1), (0.9, 0.9), (0.1, 0.9))],
        "triangle": [(big * 0.5, big * 0.06), (big * 0.95, big * 0.9), (big * 0.05, big * 0.9)],
        "star": star,
        "heart": list(zip(big * x, big * y, strict=True)),
    }
    pictures = []
    for name in SHAPES:
        picture = Image.new("RGBA", (big, big), (60, 60, 60, 0))
        draw = ImageDraw.Draw(picture)
        if name == "circle":
            draw.ellipse((big * 0.06, big * 0.06, big * 0.94, big * 0.94), "white", (60, 60, 60, 255), 10)
        else:
            draw.polygon(corners[name], "white")
            draw.line([*corners[name], corners[name][0]], (60, 60, 60, 255), 10, "curve")
        pictures.append(np.asarray(picture.resize((CUTOUT_SIDE, CUTOUT_SIDE), Image.Resampling.BOX)))
    return np.stack(pictures)


class SentenceComposer(SceneComposer):
    """Compose scenes of one or two groups, and describe them. max_count: largest number of equal things."""

    max_count = MAX_COUNT

    def __init__(self, emoji: Path, *, seed: int, device: torch.device | str = "cpu") -> None:
        pictures = read_emoji(emoji, kinds=[*THINGS])
        images = np.concatenate([pictures.images, shape_pictures()])
        names = tuple(dict.fromkeys(LANGUAGES, kind) for kind in KINDS)
        cutouts = CutOuts(images=images, labels=np.arange(len(KINDS)), names=names, tinted=True)
        options = SceneOptions(size=SIZE, max_objects=2 * self.max_count, max_rotation=12.0)
        super().__init__(cutouts, options, seed=seed, device=device)
        self._palette = torch.cat((self._palette[: len(COLORS)], self._palette.new_ones(1, 3)))

    def groups(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return kind, color and count (B, 2, 3), whose count is 0 without a second group, and the axis."""
        draws, kinds = uniform(self.seed, 2, rows, 8), len(KINDS)
        first = np.floor(draws[:, 0] * kinds).astype(np.int64)
        shift = 1 + np.floor(draws[:, 1] * (kinds - 1)).astype(np.int64)
        vertical, test = draws[:, 2] < 0.5, rows >= FIRST_TEST
        alone = (draws[:, 3] < 0.15) & ~test
        second = (first + shift) % kinds
        for _ in range(4 * kinds):  # to the next pair that belongs to this part
            wrong = (held_out(first, second, vertical) != test) | (second == first)
            second = np.where(wrong, (second + 1) % kinds, second)
        counts = 1 + np.floor(draws[:, 4:6] * self.max_count).astype(np.int64)
        counts[:, 1] *= ~alone
        colors = np.floor(draws[:, 6:8] * len(COLORS)).astype(np.int64)
        both = np.stack((first, second), 1)
        colors = np.where(both < len(THINGS), NO_COLOR, colors)
        return np.stack((both, colors, counts), -1), vertical

    def layout(self, indices: NDArray[np.int64] | Sequence[int]) -> SceneLayout:
        """Draw the layouts of the scenes with these numbers."""
        rows = np.asarray(indices, np.int64)
        (groups, vertical), batch = self.groups(rows), len(rows)
        most = self.max_count
        draws = uniform(self.seed, 3, rows, 2 * most * 5).reshape(batch, 2, most, 5)
        counts = groups[..., 2:]  # (B, 2, 1)
        alone = (groups[:, 1, 2] == 0)[:, None, None]
        number = np.arange(most)
        band = 1 / np.maximum(counts, 1)  # a group of n has n bands across its half of the scene
        room = np.where(alone, 1.0, 0.5)
        scale = np.minimum(0.42, 0.95 * band) * (0.75 + 0.25 * draws[..., 0])
        scale = np.minimum(scale, 0.92 * room)
        along = np.arange(2)[:, None] * 0.5 * ~alone + scale / 2 + draws[..., 1] * np.maximum(room - scale, 0)
        across = band * number + scale / 2 + draws[..., 2] * np.maximum(band - scale, 0)
        swap = vertical[:, None, None]
        center = np.stack((np.where(swap, across, along), np.where(swap, along, across)), -1)
        shown = number < counts
        background = uniform(self.seed, 0, rows, 120)[:, 1:]

        def flat(array: NDArray[Any], kind: Any = np.float32) -> NDArray[Any]:
            return np.broadcast_to(array, shown.shape).reshape(batch, -1).astype(kind)

        return SceneLayout(
            cutout=flat(np.where(shown, groups[..., :1], NO_LABEL), np.int64),
            center=center.reshape(batch, -1, 2).astype(np.float32),
            scale=flat(scale),
            angle=flat(np.deg2rad((2 * draws[..., 3] - 1) * self.options.max_rotation)),
            mirror=flat(draws[..., 4] < 0.5, np.bool_),
            color=flat(groups[..., 1:2], np.int64),
            background=background.astype(np.float32),
        )

    def described(self, rows: NDArray[np.int64]) -> list[tuple[list[Group], bool]]:
        """Return the groups of scenes, and whether one is above the other."""
        groups, vertical = self.groups(rows)
        return [
            ([Group(*one) for one in scene if one[2]], bool(axis))
            for scene, axis in zip(groups.tolist(), vertical, strict=True)
        ]


def held_out(
    first: NDArray[np.int64], second: NDArray[np.int64], vertical: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return which pairs of kinds and relations only test scenes have: every tenth."""
    return (first * 7 + second * 3 + vertical * 5) % 10 == 0


def make_tokenizer() -> Tokenizer:
    """A tokenizer with all words of the sentences."""
    texts = []
    for language in LANGUAGES:
        for kind in range(len(KINDS)):
            for color in range(len(COLORS)) if kind >= len(THINGS) else (NO_COLOR,):
                for count in range(1, MAX_COUNT + 1):
                    group = Group(kind, color, count)
                    texts += [sentence([group], False, language)]
                    texts += [sentence([group, group], vertical, language) for vertical in (False, True)]
    tags = tuple(TAG.format(language) for language in LANGUAGES)
    return train_tokenizer(texts, TokenizerPlan(kind="word", vocab_size=4000, min_frequency=1, tags=tags))


class SentenceExamples:
    """Layouts of scenes with a sentence in a random language."""

    def __init__(self, composer: SentenceComposer, tokenizer: Tokenizer) -> None:
        self.composer, self.tokenizer = composer, tokenizer
        self.tags = tag_ids(tokenizer, map(TAG.format, LANGUAGES))

    def __len__(self) -> int:
        return FIRST_TEST

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.ones((len(rows), 1), np.int64)

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
        """Return the arrays of the layouts, tgt (B, T) and labels (B, T); the language is given."""
        layout = self.composer.layout(rows)
        spoken = np.floor(uniform(self.composer.seed, 4, rows, 1)[:, 0] * len(LANGUAGES)).astype(int)
        texts = [
            sentence(*scene, LANGUAGES[n])
            for scene, n in zip(self.composer.described(rows), spoken, strict=True)
        ]
        end = self.tokenizer.eos_id
        assert end is not None
        tgt, labels = np.full((len(rows), MAX_LEN), end), np.full((len(rows), MAX_LEN), IGNORE_INDEX)
        for row, ids in enumerate(self.tokenizer.encode_ids(texts)):
            tgt[row, 1] = self.tags[spoken[row]]
            tgt[row, 2 : 1 + len(ids)] = ids[:-1]
            labels[row, 1 : 1 + len(ids)] = ids
        arrays = {name: getattr(layout, name) for name in ARRAYS}
        return {**arrays, "tgt": tgt, "labels": labels}


class SentenceLearner(PairLearner):
    """Render a batch of layouts and learn its sentences."""

    def __init__(self, model: torch.nn.Module, composer: SentenceComposer) -> None:
        super().__init__(model)
        self.composer = composer

    def forward(self, tgt: Tensor, labels: Tensor, **layout: Tensor) -> Tensor:  # type: ignore[override]
        scenes = self.composer.render(SceneLayout(**layout))  # type: ignore[arg-type]
        return super().forward(normalize(scenes.images), tgt, labels)


def normalize(images: Tensor) -> Tensor:
    """Do what the image processor of the model does."""
    return (images - MEAN[0]) / STD[0]


@torch.no_grad()
def measure(learner: SentenceLearner, tokenizer: Tokenizer, scenes: int, first: int) -> dict[str, float]:
    """Return the shares of groups and of whole sentences that are right, by language."""
    learner.eval()
    composer, model, end = learner.composer, prepare_for_inference(learner.model), tokenizer.eos_id
    figures: dict[str, float] = {}
    for language in LANGUAGES:
        groups_right, groups_total, right = 0, 0, 0
        starts = (end, *tag_ids(tokenizer, [TAG.format(language)]))
        params = GenerationParams(start_ids=starts, eos_token_id=end, max_new_tokens=MAX_LEN - 2)
        for start in range(0, scenes, BATCH):
            rows = np.arange(start, min(start + BATCH, scenes)) + first
            images = normalize(composer.batch(rows).images)
            for (best, *_), scene in zip(
                generate(model, images, params), composer.described(rows), strict=True
            ):
                found, wanted = tokenizer.decode(best.ids), sentence(*scene, language)
                right += found == wanted
                phrases = [phrase(group, language) for group in scene[0]]
                groups_right += sum(one in found.lower() for one in map(str.lower, phrases))
                groups_total += len(phrases)
        figures[f"sentences {language}"] = right / scenes
        figures[f"objects {language}"] = groups_right / groups_total
    for name in ("sentences", "objects"):
        figures[name] = sum(figures[f"{name} {language}"] for language in LANGUAGES) / len(LANGUAGES)
    return figures


def run(workspace: Workspace, name: str) -> None:
    """Train and measure one model; it is saved in float32, and in bfloat16 in the folder model-bf16."""
    seed, device = int(name), device_for(workspace.device)
    composer = SentenceComposer(workspace.data / "emoji-captions", seed=seed, device=device)
    tokenizer = make_tokenizer()
    end, pad = tokenizer.eos_id, tokenizer.pad_id
    torch.manual_seed(seed)
    changes = dict(change.split("=", 1) for change in workspace.changes)
    settings = {
        **MODEL,
        "vocab_size": tokenizer.vocab_size,
        "max_len": MAX_LEN,
        "start_id": end,
        "pad_id": None,
    }
    settings |= {key.removeprefix("model."): int(v) for key, v in changes.items() if key.startswith("model.")}
    learner = SentenceLearner(build_initialized(preset_spec(settings.pop("preset"), **settings)), composer)
    processor = ImageProcessor(
        size={"height": SIZE, "width": SIZE}, resample=2, image_mean=MEAN, image_std=STD
    )
    bundle = Bundle(
        model=learner.model,
        tokenizer=tokenizer,
        generation={"decoder_start_token_id": end, "eos_token_id": end, "pad_token_id": pad},
        job=JobInfo(name="caption", max_len=MAX_LEN - 1, languages=tuple(sorted(LANGUAGES)), to="language"),
        files={IMAGE_PROCESSOR_FILE: processor.to_dict()},
    )
    task = TrainingPlan(
        learner=learner,
        train=SentenceExamples(composer, tokenizer),
        unit="tokens",
        count=count_labels,
        metric="sentences",
        validate=lambda _: ValidationResult(metrics=measure(learner, tokenizer, VALID_SCENES, FIRST_TEST)),
        save=lambda folder: save(bundle, folder),
    )
    training = {key.removeprefix("training."): v for key, v in changes.items() if key.startswith("training.")}
    numbers = {key: int(v) if v.isdigit() else float(v) for key, v in training.items()}
    options = parse_section(TrainingOptions, {**TRAINING, **numbers})
    folder, limit = workspace.run(ROW, name), workspace.seconds or SECONDS
    try:
        trained = train_for(task, options, seconds=limit, seed=seed, device=device, of="sentences")
    finally:
        task.save(folder / "model")
    figures = measure(learner, tokenizer, workspace.most or TEST_SCENES, FIRST_TEST + VALID_SCENES)
    figures["scenes per second"] = trained.steps * (options.batch_size or 1) / trained.seconds
    print(figures, flush=True)
    record(workspace, ROW, name, trained, "sentences", figures)
    learner.model.bfloat16()
    task.save(folder / "model-bf16")


def write_table(composer: SentenceComposer, count: int, test: int, folder: Path) -> None:
    """Write images and captions.tsv and valid.tsv, with every sentence in all languages."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for name, rows in (("captions", np.arange(count)), ("valid", np.arange(test) + FIRST_TEST)):
        with (folder / f"{name}.tsv").open("w", encoding="utf-8") as file:
            file.write("image\tcaption\tlanguage\n")
            for start in range(0, len(rows), BATCH):
                part = rows[start : start + BATCH]
                pixels = (composer.batch(part).images * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
                for row, image, scene in zip(part.tolist(), pixels, composer.described(part), strict=True):
                    path = f"images/{name}-{row % FIRST_TEST}.png"
                    Image.fromarray(image).save(folder / path)
                    for language in LANGUAGES:
                        file.write(f"{path}\t{sentence(*scene, language)}\t{language}\n")


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.caption_scenes", description=__doc__)
    parser.add_argument("--emoji", type=Path, default=data_folder() / "emoji-captions", help="emoji folder")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--count", type=int, default=20_000, help="number of training scenes")
    parser.add_argument("--test", type=int, default=500, help="number of scenes with held-out pairs")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(args)
    composer = SentenceComposer(options.emoji, seed=options.seed)
    write_table(composer, options.count, options.test, options.out)


if __name__ == "__main__":
    main()
