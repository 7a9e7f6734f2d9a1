"""python docs/explorer_pictures.py: draws the explorer's pictures for README and docs/guides/explore.md."""

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

HERE = Path(__file__).parent / "pictures"
MODELS = ("pocket", "pocket-digits", "pocket-series")
READ = f"in={quote('My brother bought a new car yesterday.')}&to=ko"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


class Shot(NamedTuple):
    """A view: the model, its address, how it is looked at."""

    name: str
    model: str
    view: str
    language: str = "en-US"
    theme: str = "light"
    size: tuple[int, int] = (1320, 860)


SHOTS = (
    Shot("explorer", "pocket", f"model?{READ}"),
    Shot(
        "explorer-scores",
        "pocket",
        f"model?{READ}&at=decoder.0.cross&tab=scores&head=5",
        size=(1320, 1120),
    ),
    Shot("explorer-beam", "pocket", f"decoding?{READ}&way=beam", size=(1320, 1120)),
    Shot("explorer-image", "pocket-digits", "model", "ko-KR", "dark", (1320, 1000)),
    Shot("explorer-series", "pocket-series", "model", "ko-KR", "light", (1320, 1000)),
)


def fewer_colours(picture: bytes) -> Image.Image:
    """256 colours, spread so that a rare one, as the end of a scale, is not taken for another."""
    return (
        Image.open(BytesIO(picture))
        .convert("RGB")
        .quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
    )


def main() -> None:
    words = [sys.executable, "-m", "glassformer", "serve", *MODELS, "--port", "0"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        told = "".join(next(server.stdout) for _ in range(3))
        url = re.search(r"(http\S+)/v1", told)[1]
        with sync_playwright() as playing:
            browser = playing.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            for shot in SHOTS:
                wide, high = shot.size
                page = browser.new_page(
                    viewport={"width": wide, "height": high},
                    locale=shot.language,
                    color_scheme=shot.theme,
                    reduced_motion="reduce",
                    device_scale_factor=1.25,
                )
                page.goto(f"{url}/#/{shot.model}/{shot.view}")
                page.wait_for_load_state("networkidle")
                page.wait_for_timeout(1500)
                fewer_colours(page.screenshot()).save(HERE / f"{shot.name}.png", optimize=True)
                page.close()
            browser.close()
    finally:
        server.terminate()
        server.wait(60)


if __name__ == "__main__":
    main()
