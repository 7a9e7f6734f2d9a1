"""Take the screenshots of the explorer for the README and the guides: `python docs/explorer_pictures.py`.

Those of Swin and CLIP show two small models that are trained first, on drawings of colored shapes.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from base64 import b64encode
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.parse import quote

from PIL import Image, ImageDraw, ImageFont
from playwright.sync_api import Page, sync_playwright

import glassformer
from glassformer.plotting.fonts import find_font

FOLDER = Path(__file__).parent / "pictures"
MODELS = (
    "pocket",
    "pocket-digits",
    "pocket-series",
    "pocket-detector",
    "pocket-captioner",
    "pocket-vqa",
    "pocket-sam",
)
INPUT = f"in={quote('My brother bought a new car yesterday.')}&to=ko"
QUESTION = "pos=3&look=4"  # the word "cars" of the example, in layer 5
FRENCH = f"in={quote('The animal did not cross the street because it was too tired.')}&to=fr"
MOVING = "She opened the window because it was too hot."  # of the animation
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


class Shot(NamedTuple):
    """A view of a model, and the browser settings to show it with.

    part: the element to show instead of the page.
    """

    name: str
    model: str
    view: str
    language: str = "en-US"
    theme: str = "light"
    size: tuple[int, int] = (1320, 860)
    part: str = ""


SHOTS = (
    Shot("explorer", "pocket", f"model?{INPUT}"),
    Shot("explorer-ko", "pocket", f"model?{INPUT}", "ko-KR"),
    Shot("explorer-follow", "pocket", f"model?{FRENCH}&follow=target.7&scene=10", size=(1320, 940)),
    Shot(
        "explorer-scores",
        "pocket",
        f"model?{INPUT}&at=decoder.0.cross&tab=scores&head=5",
        size=(1320, 1120),
    ),
    Shot("explorer-beam", "pocket", f"decoding?{INPUT}&way=beam", size=(1320, 1120)),
    Shot("explorer-image", "pocket-digits", "model", "ko-KR", "dark", (1320, 1000)),
    Shot("explorer-series", "pocket-series", "model", "ko-KR", "light", (1320, 1000)),
    Shot("explorer-windows", "swin", "model?look=1&by=0&pos=119", size=(1320, 1500)),
    Shot("explorer-pairs", "clip", "model?pair=0.0", size=(1320, 1240)),
    Shot("explorer-detection", "pocket-detector", "model", size=(1440, 900), part="[data-detection]"),
    Shot("explorer-caption", "pocket-captioner", "model?n=2", size=(1440, 900), part="[data-caption]"),
    Shot("explorer-question", "pocket-vqa", f"model?{QUESTION}", size=(1440, 1440)),
    Shot(
        "explorer-blocks",
        "pocket-vqa",
        f"model?{QUESTION}",
        size=(1440, 900),
        part="[data-figure=ask-blocks]",
    ),
    Shot("explorer-segment", "pocket-sam", "model", size=(1320, 800), part="[data-segment]"),
)
WORDS = (1, 2, 8, 9)  # of the example caption of pocket-captioner: red, circle, two, butterflies
COLORS = ("red", "blue", "green", "orange", "purple", "black")
SHAPES = ("circle", "square", "triangle")


def draw_shapes(folder: Path, count: int) -> None:
    """Draw colored shapes in folders by shape, and write a table with their captions."""
    chance, rows = random.Random(0), ["image\tcaption"]
    for n in range(count):
        color, shape = chance.choice(COLORS), chance.choice(SHAPES)
        image = Image.new("RGB", (96, 96), "white")
        size = chance.randint(28, 64)
        x, y = chance.randint(4, 92 - size), chance.randint(4, 92 - size)
        box, draw = (x, y, x + size, y + size), ImageDraw.Draw(image)
        if shape == "triangle":
            draw.polygon([(x + size // 2, y), (x, y + size), (x + size, y + size)], fill=color)
        else:
            (draw.ellipse if shape == "circle" else draw.rectangle)(box, fill=color)
        path = folder / "shapes" / shape / f"{n}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
        rows.append(f"{path.relative_to(folder)}\ta {color} {shape}")
    (folder / "captions.tsv").write_text("\n".join(rows) + "\n")


def train_models(folder: Path) -> list[str]:
    """Train a small Swin classifier of shapes, and a small CLIP model of shapes and captions."""
    draw_shapes(folder, 3000)
    training = {"batch_size": 64, "lr": 1e-3, "warmup_steps": 30, "eval_steps": 200, "device": "cpu"}
    sizes = {"image_size": 32, "patch_size": 2, "embed_dim": 32, "depths": (2, 2), "num_heads": (2, 4)}
    tower = {"d_model": 64, "num_heads": 4, "d_ff": 128, "num_layers": 3}
    towers = {**tower, **{f"text_{name}": size for name, size in tower.items()}, "projection_dim": 64}
    recipes = {
        "swin": {
            "job": "classify",
            "data": {
                "input": "image",
                "train": str(folder / "shapes"),
                "valid": 0.05,
                "image_size": [32, 32],
            },
            "model": {"preset": "swin", "window_size": 4, **sizes},
            "training": {**training, "max_steps": 200},
        },
        "clip": {
            "job": "contrastive",
            "data": {"train": str(folder / "captions.tsv"), "valid": 0.05, "image_size": [32, 32]},
            "tokenizer": {"kind": "word"},
            "model": {"preset": "clip", "patch_size": 4, **towers},
            "training": {**training, "max_steps": 400},
        },
    }
    for name, recipe in recipes.items():
        glassformer.train(recipe, folder / name)
    swin = glassformer.load(folder / "swin" / "model")
    image = b64encode(next((folder / "shapes" / "triangle").iterdir()).read_bytes()).decode()
    swin.job = replace(swin.job, example={"image": image})  # what the page shows first
    return [str(glassformer.save(swin, folder / "saved" / "swin")), str(folder / "clip")]


def reduce_colors(screenshot: bytes) -> Image.Image:
    """Quantize to 256 colors. Maximum coverage keeps rare colors, such as the end of a color scale."""
    return (
        Image.open(BytesIO(screenshot))
        .convert("RGB")
        .quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
    )


def main() -> None:
    with TemporaryDirectory() as folder:
        take_screenshots([*MODELS, *train_models(Path(folder))])


def draw_words(page: Page, url: str) -> None:
    """Draw the patches that some words of a caption attended to, for the README."""
    canvas = Image.new("RGB", (440, 440), "white")
    path, caption = find_font(page.locator("[data-outcome=caption] b").inner_text())
    draw = ImageDraw.Draw(canvas)
    for n, word in enumerate(WORDS):
        page.goto(f"{url}/#/pocket-captioner/model?n={word}")
        page.wait_for_timeout(1500)
        figure = page.locator("[data-figure=decoding-looking] [role=slider]")
        tile = Image.open(BytesIO(figure.screenshot())).convert("RGB")
        x, y = 18 + 210 * (n % 2), 22 + 202 * (n // 2)
        canvas.paste(tile.resize((176, 176), Image.Resampling.LANCZOS), (x + 9, y))
        label = page.locator(f"[data-figure=caption] [data-token='{word}'] span").inner_text().strip()
        draw.text((x + 97, y - 10), label, fill="#5b4bd6", font=ImageFont.truetype(path, 15), anchor="mm")
    draw.text((220, 426), caption, fill="#22223b", font=ImageFont.truetype(path, 15), anchor="mm")
    file = BytesIO()
    canvas.save(file, "PNG")
    reduce_colors(file.getvalue()).save(FOLDER / "caption-words.png", optimize=True)


def record_animation(page: Page, url: str) -> None:
    """Type a sentence, translate it, open a head and turn it off: the pronoun of the translation changes."""
    frames: list[tuple[Image.Image, int]] = []  # with milliseconds

    def take(duration: int) -> None:
        picture = Image.open(BytesIO(page.screenshot())).convert("RGB")
        frames.append((picture.resize((960, 600), Image.Resampling.LANCZOS), duration))

    def show(view: str) -> None:
        page.goto(f"{url}/#/pocket/{view}")
        page.wait_for_load_state("networkidle")
        page.wait_for_timeout(3000)

    show(f"model?{INPUT}")
    take(900)
    field = page.locator("[data-input=_a]")
    for end in (4, 11, 18, 26, 35, len(MOVING)):
        field.fill(MOVING[:end])
        take(180)
    with page.expect_response(lambda response: response.url.endswith("/trace"), timeout=120_000):
        field.press("Enter")
    page.wait_for_timeout(2500)
    take(1600)
    moving = f"in={quote(MOVING)}&to=de"
    show(f"model?{moving}&at=decoder.0.cross&head=4")
    take(1800)
    show(f"change?{moving}")
    take(1200)
    page.locator('[data-head="decoder.blocks.0.cross_attn.4"]').click()
    page.wait_for_timeout(3000)
    take(1000)
    page.locator(".chips").evaluate("section => section.scrollIntoView()")
    page.wait_for_timeout(500)
    take(2800)
    pictures = [picture.quantize(64, dither=Image.Dither.NONE) for picture, _ in frames]
    durations = [duration for _, duration in frames]
    options = {"append_images": pictures[1:], "duration": durations, "loop": 0, "optimize": True}
    pictures[0].save(FOLDER / "explorer.gif", save_all=True, **options)


def take_screenshots(models: list[str]) -> None:
    command = [sys.executable, "-m", "glassformer", "serve", *models, "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        banner = "".join(next(server.stdout) for _ in range(3))
        url = re.search(r"(http\S+)/v1", banner)[1]
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            for shot in SHOTS:
                page = browser.new_page(
                    viewport={"width": shot.size[0], "height": shot.size[1]},
                    locale=shot.language,
                    color_scheme=shot.theme,
                    reduced_motion="reduce",
                    device_scale_factor=1.25,
                )
                page.goto(f"{url}/#/{shot.model}/{shot.view}")
                page.wait_for_load_state("networkidle")
                page.wait_for_timeout(1500)
                if shot.model == "pocket-captioner":
                    draw_words(page, url)
                    page.goto(f"{url}/#/{shot.model}/{shot.view}")
                    page.wait_for_timeout(1500)
                picture = page.locator(shot.part).screenshot() if shot.part else page.screenshot()
                reduce_colors(picture).save(FOLDER / f"{shot.name}.png", optimize=True)
                page.close()
            page = browser.new_page(
                viewport={"width": 1280, "height": 800}, locale="en-US", reduced_motion="reduce"
            )
            record_animation(page, url)
            browser.close()
    finally:
        server.terminate()
        server.wait(60)


if __name__ == "__main__":
    main()
