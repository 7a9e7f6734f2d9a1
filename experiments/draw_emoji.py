"""Draw emoji from texts in English and Korean: the data, the judge, and scores of any model that draws.

    python -m experiments draw-emoji --only data         images and tables for the training of the generators
    python -m experiments draw-emoji --only judge wide   train the judges
    python -m experiments draw-emoji --only vq tokens    train image codes and a decoder of them, and score it
    python -m experiments draw-emoji --only dit          train DiT with a text encoder on the same latents
    python -m experiments.draw_emoji MODEL --name dit/1  score any model folder, e.g. a pipeline of diffusers

A caption is a name, some keywords, and one of four styles: "red apple, blob style", "빨간 사과, 블롭 스타일".
The names of the splits val and test are never trained in any style. 300 of the other names are never trained
in one of their four styles, which their prompts ask for; drawings that nearly equal one in another style are
not taken for that.

The judge is a small CLIP model of the recipe contrastive-captions. It learns all names, but only from two
other styles, and is never used to train, select or rank a generator. A drawing agrees if its own name is the
most similar of 300; the same is measured for the real drawings that the prompts describe, which is the best
that a generator can expect. For unseen names, the 300 are completed with names of the training. A second
judge, `--judge wide/1`, also learns the four drawn styles, but only from names that no score is about.

A drawing that differs from a training drawing by less than 0.05 (root mean square, 26 dB) is a copy. Copies
of real drawings, which are not among the training drawings, are counted too: some emoji are nearly equal.

Licenses of the drawings: noto and noto-blob Apache-2.0 (Google), fluent-flat MIT (Microsoft), twemoji CC BY
4.0 (Twitter and contributors), emojione CC BY 4.0, openmoji CC BY-SA 4.0. The four drawn styles may therefore
be used for a model that is shipped, with these notices on its card: `SHIPPED`. OpenMoji's share-alike terms
are why it is only seen by the judge, which is not shipped.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from experiments.contrastive_emoji import augment, on_white
from experiments.drawings import save_nearest, save_sheet
from experiments.paths import FIGURES, Workspace, data_folder
from experiments.records import note
from experiments.training_runs import Trained, read, train
from experiments.vision_training import record, train_recipe
from glassformer.api import load
from glassformer.errors import FileMissingError, GlassformerError
from glassformer.metrics.images import nearest_neighbors
from glassformer.recipes import recipe_path
from glassformer.tasks.drawing import to_images
from glassformer.training.hardware import device_for
from glassformer.training.recipe import read_recipe_dict
from glassformer.weights.atomic_write import atomic_folder

ROW = "draw-emoji"
# the styles that are drawn, in captions
STYLES: Mapping[str, Mapping[str, str]] = {
    "noto": {"en": "noto style", "ko": "노토 스타일"},
    "twemoji": {"en": "twemoji style", "ko": "트위모지 스타일"},
    "fluent-flat": {"en": "fluent style", "ko": "플루언트 스타일"},
    "noto-blob": {"en": "blob style", "ko": "블롭 스타일"},
}
SHIPPED = {
    "noto": "Apache-2.0",
    "noto-blob": "Apache-2.0",
    "fluent-flat": "MIT",
    "twemoji": "CC-BY-4.0",
}
JUDGE_STYLES = ("openmoji", "emojione")
LANGUAGES = ("en", "ko")
SECONDS = 600.0  # of training, of a model that draws
HELD_OUT = 300  # names without one of their styles; also the number of names that the judge chooses from
VARIANTS = 5  # of each drawing for the judge: as it is, and on colored backgrounds
COPY_DISTANCE = 0.05
GUIDANCE = (1.0, 3.0, 6.0)
JUDGE = (
    *("data.image_size=[64,64]", "data.flip_prob=0", "data.max_shift=4", "model.patch_size=8"),
    *("model.d_model=256", "model.num_heads=4", "model.num_layers=6", "model.text_d_model=256"),
    *("model.text_num_heads=4", "model.text_num_layers=4", "training.epochs=40", "training.batch_size=512"),
    "training.load_best_model_at_end=false",
)
GALLERY = {
    "a red apple with a crown": "왕관을 쓴 빨간 사과",
    "a blue cat": "파란 고양이",
    "a robot with a heart": "하트를 든 로봇",
    "a green rocket": "초록색 로켓",
    "a pizza with sunglasses": "선글라스를 쓴 피자",
    "a sleeping moon": "잠자는 달",
    "a house on fire": "불타는 집",
    "two strawberries": "딸기 두 개",
    "a purple octopus": "보라색 문어",
    "a snowman with flowers": "꽃을 든 눈사람",
}
Draw = Callable[[Sequence[str]], Tensor]  # texts -> images (N, 3, 64, 64) from 0 to 1
Embed = Callable[[Sequence[Any]], Tensor]  # images or texts -> vectors (N, D) of length 1


@dataclass(frozen=True)
class EmojiTable:
    """Names and drawings. lines: the table; pictures: RGBA bytes (64, 64, 4) by style and row."""

    lines: list[dict[str, str]]
    pictures: dict[str, dict[int, Tensor]]

    @classmethod
    def read(cls, folder: Path) -> EmojiTable:
        with gzip.open(folder / "emoji.tsv.gz", "rt", encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        pictures = {}
        for style in (*STYLES, *JUDGE_STYLES):
            with np.load(folder / f"{style}.npz") as arrays:
                pictures[style] = dict(
                    zip(arrays["row"].tolist(), torch.from_numpy(arrays["images"]), strict=True)
                )
        return cls(lines, pictures)

    def drawings(self, pairs: Sequence[tuple[int, str]]) -> Tensor:
        """Return drawings on white (N, 3, 64, 64) from 0 to 1, of rows in a style."""
        return on_white(torch.stack([self.pictures[style][row] for row, style in pairs]))

    def unseen(self) -> list[int]:
        """Return the rows that are never trained and have prompts."""
        return [row for row, line in enumerate(self.lines) if line["split"] == "test"]

    def trained(self, held_out: Mapping[int, str]) -> list[tuple[int, str]]:
        """Return the rows and styles that generators are trained on."""
        return [
            (row, style)
            for row, line in enumerate(self.lines)
            for style in STYLES
            if line["split"] == "train" and row in self.pictures[style] and held_out.get(row) != style
        ]

    @cached_property
    def held_out(self) -> dict[int, str]:
        """The style that is held out of each of up to 300 rows."""
        every, styles = self.trained({}), list(STYLES)
        place = {pair: n for n, pair in enumerate(every)}
        complete = [row for row, _ in every if all((row, style) in place for style in styles)]
        rows = np.random.default_rng(0).permutation(np.unique(complete))[: 2 * HELD_OUT].tolist()
        pairs = [(row, styles[n % len(styles)]) for n, row in enumerate(rows)]
        own = torch.tensor([place[pair] for pair in pairs])
        images = self.drawings(every).flatten(1)
        distances = torch.cdist(images[own], images) / images.shape[1] ** 0.5
        distances[torch.arange(len(own)), own] = torch.inf
        # a nearly equal drawing in another style would give it away
        far = (distances.amin(1) > COPY_DISTANCE).tolist()
        return dict([pair for pair, good in zip(pairs, far, strict=True) if good][:HELD_OUT])


def caption(line: Mapping[str, str], language: str, style: str | None, keywords: Sequence[str] = ()) -> str:
    """Return the name, keywords and style of an emoji as a text.

    >>> caption({"name_en": "red apple"}, "en", "noto-blob", ["fruit"])
    'red apple, fruit, blob style'
    """
    ends = [] if style is None else [STYLES[style][language]]
    return ", ".join([line[f"name_{language}"], *keywords, *ends])


def captions(line: Mapping[str, str], style: str, rng: np.random.Generator) -> Iterator[str]:
    """Yield the texts of a drawing: its name, with the style, and with random keywords."""
    for language in LANGUAGES:
        words = [word for word in line[f"keywords_{language}"].split(" | ") if word]
        some = list(rng.permutation(words)[: rng.integers(1, 5)]) if words else []
        yield caption(line, language, None)
        yield caption(line, language, None, some)
        if style in STYLES:
            yield caption(line, language, style)


def prepare(workspace: Workspace, part: str) -> Path:
    """Write images and tables of captions for "generator" or "judge", once; return their folder."""
    folder = workspace.prepared(ROW) / part
    if folder.exists():
        return folder
    table, rng = EmojiTable.read(workspace.data / "emoji-captions"), np.random.default_rng(0)
    torch.manual_seed(0)
    held_out = table.held_out
    with atomic_folder(folder) as unfinished:
        if part == "generator":
            _write(unfinished, "train", table, table.trained(held_out), rng)
            valid = [row for row, line in enumerate(table.lines) if line["split"] == "val"]
            pairs = [(row, "noto") for row in valid if row in table.pictures["noto"]]
            _write(unfinished, "valid", table, pairs, rng)
            named = {table.lines[row]["codepoints"]: style for row, style in held_out.items()}
            (unfinished / "held-out.json").write_text(json.dumps(named, indent=1), encoding="utf-8")
        else:
            seen = [(row, style) for style in JUDGE_STYLES for row in table.pictures[style]]
            _write(unfinished, "train", table, seen, rng, variants=VARIANTS)
            others = [pair for pair in table.trained(held_out) if pair[0] not in held_out]
            _write(unfinished, "others", table, others, rng, variants=2)
            _write(unfinished, "valid", table, list(held_out.items()), rng, names=True)
    return folder


def _write(
    folder: Path,
    name: str,
    table: EmojiTable,
    pairs: Sequence[tuple[int, str]],
    rng: np.random.Generator,
    *,
    variants: int = 1,
    names: bool = False,
) -> None:
    """Write NAME.tsv with image and caption, and the images. names: only the English name of each image."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.tsv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, delimiter="\t", lineterminator="\n")
        rows.writerow(("image", "caption"))
        for row, style in pairs:
            line = table.lines[row]
            images = table.drawings([(row, style)])
            if variants > 1:
                repeated = table.pictures[style][row].expand(variants - 1, -1, -1, -1)
                images = torch.cat([images, augment(repeated)])
            for number, image in enumerate(to_images(images * 2 - 1)):
                path = folder / "images" / f"{style}-{line['codepoints']}-{number}.png"
                image.save(path)
                texts = [line["name_en"]] if names else captions(line, style, rng)
                rows.writerows((f"images/{path.name}", text) for text in dict.fromkeys(texts))


# --- scores


def agreement(images: Tensor, owners: Sequence[int], names: Sequence[str], embed: Embed) -> float:
    """Return the share of images whose own name, by number, is the most similar one."""
    vectors, texts = embed(to_images(images * 2 - 1)), embed(list(names))
    return float(((vectors @ texts.T).argmax(1) == torch.tensor(owners)).double().mean())


def score(
    table: EmojiTable, draw: Draw, embed: Embed, device: torch.device, most: int | None = None
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Return the scores of a generator from 0 to 1, and its drawings by kind of prompt and language.

    most: maximum number of prompts of each kind and language.
    """
    held_out = table.held_out
    train = table.drawings(table.trained(held_out)).to(device)
    unseen = table.unseen()
    filled = [*unseen, *(row for row in held_out if row not in unseen)][: max(HELD_OUT, len(unseen))]
    parts = {
        "held-out styles": (list(held_out.items()), list(held_out)),
        "unseen names": ([(row, s) for row in unseen for s in STYLES if row in table.pictures[s]], filled),
    }
    figures: dict[str, float] = {}
    drawings: dict[str, Tensor] = {}
    for part, (every_pair, candidates) in parts.items():
        pairs = every_pair[:most]
        real, number = table.drawings(pairs), {row: n for n, row in enumerate(candidates)}
        owners = [number[row] for row, _ in pairs]
        every = {"real": real}
        for lang in LANGUAGES:
            drawn = draw([caption(table.lines[row], lang, style) for row, style in pairs])
            drawings[f"{part} {lang}"] = every[lang] = drawn
            names = [table.lines[row][f"name_{lang}"] for row in candidates]
            figures[f"{part} {lang}"] = agreement(drawn, owners, names, embed)
            figures[f"{part} {lang}, real"] = agreement(real, owners, names, embed)
        drawings[f"{part} real"] = real
        for kind, images in every.items():
            nearest = nearest_neighbors(images.to(device), train).distances
            figures[f"{part} {kind}, nearest"] = float(nearest.median())
            figures[f"{part} {kind}, copies"] = float((nearest < COPY_DISTANCE).double().mean())
    for lang in LANGUAGES:
        best = figures[f"unseen names {lang}, real"]
        figures[f"unseen names {lang}, share of real"] = (
            figures[f"unseen names {lang}"] / best if best else 0.0
        )
    return figures, drawings


def drawer(folder: str | Path, device: str, **options: Any) -> Draw:
    """Return a function that draws with a model folder, one image for each text."""
    pipeline: Any = load(folder, device=device)

    def draw(texts: Sequence[str]) -> Tensor:
        drawn = pipeline.draw(list(texts), batch_size=256, **options)
        pixels = [np.array(image.convert("RGB").resize((64, 64))) for image in drawn]
        return torch.from_numpy(np.stack(pixels)).movedim(-1, 1).float() / 255

    return draw


def judge_of(workspace: Workspace, name: str) -> Embed:
    """Return the embeddings of a trained judge."""
    folder = workspace.run(ROW, name) / "model"
    if not folder.exists():
        raise FileMissingError(folder, f"judge; run `python -m experiments {ROW} --only {name}` first")
    pipeline: Any = load(folder, device=str(device_for(workspace.device)))
    return lambda items: F.normalize(torch.stack(list(pipeline.embed(items))).float(), dim=-1)


def measure(workspace: Workspace, folder: Path, name: str, judge: str, **options: Any) -> dict[str, float]:
    """Return the scores of a model folder with each strength of guidance, and write sheets."""
    table = EmojiTable.read(workspace.data / "emoji-captions")
    embed, device = judge_of(workspace, judge), device_for(workspace.device)
    figures: dict[str, float] = {}
    for guidance in GUIDANCE:
        draw = drawer(folder, str(device), guidance_scale=guidance, **options)
        scores, drawings = score(table, draw, embed, device, workspace.most)
        if guidance != GUIDANCE[1]:
            drawn = {key: value for key, value in scores.items() if "real" not in key}
            figures |= {f"{key}, guidance {guidance:g}": value for key, value in drawn.items()}
        else:
            figures |= scores
            save_sheets(workspace.figures / ROW / name.replace("/", "-"), table, draw, drawings, device)
    return figures


def save_sheets(
    stem: Path, table: EmojiTable, draw: Draw, drawings: Mapping[str, Tensor], device: torch.device
) -> None:
    """Save real and drawn emoji one above the other, the gallery, and those nearest to a training drawing."""
    for part in ("held-out styles", "unseen names"):
        rows = [drawings[f"{part} {kind}"] for kind in ("real", *LANGUAGES)]
        chosen = np.random.default_rng(0).permutation(len(rows[0]))[:36]
        picked = [images[torch.from_numpy(chosen)].split(12) for images in rows]
        sheet = [images for group in zip(*picked, strict=True) for images in group if len(images) == 12]
        if sheet:
            save_sheet(stem.with_name(f"{stem.name}-{part.replace(' ', '-')}.png"), sheet, scale=1)
    texts = [*GALLERY, *GALLERY.values()]
    styled = [f"{text}, {STYLES['noto']['en' if text in GALLERY else 'ko']}" for text in texts]
    rows = [row for kind in (texts, styled) for row in draw(kind).split(len(GALLERY))]
    save_sheet(stem.with_name(f"{stem.name}-gallery.png"), rows, scale=1)
    train = table.drawings(table.trained(table.held_out))
    save_nearest(stem.with_name(f"{stem.name}-nearest.png"), drawings["held-out styles en"], train, device)


def run(workspace: Workspace, name: str) -> None:
    """Prepare the data, or train a model; judges and generators are measured too."""
    kind = name.partition("/")[0]
    if kind in ("judge", "wide"):
        train_judge(workspace, name, prepare(workspace, "judge"))
        return
    folder = prepare(workspace, "generator")
    if kind == "data":
        print(f"the generators train on {folder / 'train.tsv'}", flush=True)
        return
    if kind == "vq":
        changes = (f"data.train=[{folder / 'images'}]",)
        trained = train(workspace, ROW, name, "vq-emoji", seed=1, of="psnr", changes=changes)
        figures = {of: read(trained.folder, of).curve[-1][1] for of in ("psnr", "codes_used")}
        note(workspace, ROW, name, seed=1, trained=trained, figures=figures)
        return
    recipe = read_recipe_dict(recipe_path({"dit": "diffusion-emoji", "tokens": "image-tokens-emoji"}[kind]))
    recipe["data"] |= {part: [str(folder / f"{part}.tsv")] for part in ("train", "valid")}
    recipe["model"] |= {"autoencoder": str(workspace.run(ROW, "vq/1") / "model")}
    recipe["training"] |= {"log_samples": 0}
    timed = train_recipe(workspace, ROW, name, recipe, of="loss", seconds=workspace.seconds or SECONDS).run
    figures = measure(workspace, workspace.run(ROW, name) / "model", name, "judge/1")
    record(workspace, ROW, name, timed, "loss", figures)


def train_judge(workspace: Workspace, name: str, data: Path) -> None:
    """Train a judge, and measure it on the real drawings of held-out styles."""
    tables = [data / "train.tsv", *([data / "others.tsv"] if name.startswith("wide") else [])]
    files = ",".join(map(str, tables))
    changes = (f"data.train=[{files}]", f"data.valid=[{data / 'valid.tsv'}]", *JUDGE)
    of, recipe = "image_to_text_recall_at_1", "contrastive-captions"
    trained = train(workspace, ROW, name, recipe, seed=1, of=of, changes=changes)
    table, embed = EmojiTable.read(workspace.data / "emoji-captions"), judge_of(workspace, name)
    pairs = list(table.held_out.items())
    images = table.drawings(pairs)
    figures = {
        f"real drawings {lang}": agreement(
            images, range(len(pairs)), [table.lines[row][f"name_{lang}"] for row, _ in pairs], embed
        )
        for lang in LANGUAGES
    }
    note(workspace, ROW, name, seed=1, trained=trained, figures=figures)


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.draw_emoji", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("model", type=Path, help="model folder")
    parser.add_argument("--name", default="model/1", help="name of the recorded run, which ends with a seed")
    parser.add_argument("--judge", default="judge/1", help="run of the judge, judge/1 or wide/1")
    parser.add_argument("--data", type=Path, default=data_folder(), help="the folder of data sets")
    parser.add_argument("--work", type=Path, default=Path("runs/results"), help="where the judge was trained")
    parser.add_argument("--figures", type=Path, default=FIGURES)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--most", type=int, help="maximum number of prompts of each kind and language")
    parser.add_argument("--steps", type=int, help="denoising steps of a diffusion model")
    options = parser.parse_args(args)
    places = {"data": options.data, "work": options.work, "figures": options.figures}
    workspace = Workspace(**places, device=options.device, most=options.most)
    steps = {} if options.steps is None else {"num_inference_steps": options.steps}
    try:
        figures = measure(workspace, options.model, options.name, options.judge, **steps)
        count = sum(parameter.numel() for parameter in load(options.model, device="cpu").model.parameters())
        scored = Trained(folder=options.model, seconds=0.0, parameters=count, of="", curve=[])
        seed = int(options.name.rpartition("/")[2])
        note(workspace, ROW, options.name, seed=seed, trained=scored, figures=figures)
    except GlassformerError as error:
        parser.exit(2, f"error: {error}\n")


if __name__ == "__main__":
    main()
