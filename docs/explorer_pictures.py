"""Take the screenshots of the explorer for the README and the guides: `python docs/explorer_pictures.py`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from PIL import Image
from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).parent / "pictures"
MODELS = ("pocket", "pocket-digits", "pocket-series")
INPUT = f"in={quote('My brother bought a new car yesterday.')}&to=ko"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


class Shot(NamedTuple):
    """A view of a model, and the browser settings to show it with."""

    name: str
    model: str
    view: str
    language: str = "en-US"
    theme: str = "light"
    size: tuple[int, int] = (1320, 860)


SHOTS = (
    Shot("explorer", "pocket", f"model?{INPUT}"),
    Shot("explorer-ko", "pocket", f"model?{INPUT}", "ko-KR"),
    Shot(
        "explorer-scores",
        "pocket",
        f"model?{INPUT}&at=decoder.0.cross&tab=scores&head=5",
        size=(1320, 1120),
    ),
    Shot("explorer-beam", "pocket", f"decoding?{INPUT}&way=beam", size=(1320, 1120)),
    Shot("explorer-image", "pocket-digits", "model", "ko-KR", "dark", (1320, 1000)),
    Shot("explorer-series", "pocket-series", "model", "ko-KR", "light", (1320, 1000)),
)


def reduce_colors(screenshot: bytes) -> Image.Image:
    """Quantize to 256 colors. Maximum coverage keeps rare colors, such as the end of a color scale."""
    return (
        Image.open(BytesIO(screenshot))
        .convert("RGB")
        .quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
    )


def main() -> None:
    command = [sys.executable, "-m", "glassformer", "serve", *MODELS, "--port", "0"]
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
                reduce_colors(page.screenshot()).save(FOLDER / f"{shot.name}.png", optimize=True)
                page.close()
            browser.close()
    finally:
        server.terminate()
        server.wait(60)


if __name__ == "__main__":
    main()
