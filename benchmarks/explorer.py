"""The explorer on a long input: 512 tokens through 12 layers of 12 heads, in a real browser.

python benchmarks/explorer.py [--tokens 512]

Prints what a trace costs beyond its forward, how long stations take to open, what is sent before the first
view, the memory of the page, and how many frames a second are painted while the pointer moves over a matrix.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

import psutil
import torch
from playwright.sync_api import Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parent.parent))

import glassformer
from benchmarks import reference_models
from glassformer.tokenization.train import TokenizerPlan, train_tokenizer

FLAGS = (
    "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync "
    "--no-first-run --enable-precise-memory-info"
).split()
STAGES = ("tokens", "embed", "position", "self", "ffn", "norm_self", "head")


def model(folder: Path, tokens: int) -> str:
    """A model of GPT-2's size with a vocabulary of whole words, and a text of so many tokens."""
    letters = "abcdefghijklmn"
    words = ["".join(three) for three in product(letters, repeat=3)][:2000]
    tokenizer = train_tokenizer(
        [" ".join(words)], TokenizerPlan(kind="word", vocab_size=2100, template="none")
    )
    torch.manual_seed(0)
    size = reference_models.TINY if reference_models.is_tiny() else {}
    gpt2 = glassformer.build("gpt2", vocab_size=50_257, **size).eval()
    glassformer.save(glassformer.Bundle(model=gpt2, tokenizer=tokenizer, family="gpt2"), folder)
    return " ".join(words[n * 37 % len(words)] for n in range(tokens))


def ready(page: Page) -> None:
    page.wait_for_load_state("networkidle")
    page.wait_for_function("document.querySelector('[data-station]') !== null")


def opening(page: Page, station: str) -> float:
    """Milliseconds from the click to the first frame in which the station's own figures are painted."""
    return page.evaluate(
        """async (id) => {
          const element = document.querySelector(`[data-station="${id}"]`);
          const start = performance.now();
          element.dispatchEvent(new MouseEvent('click', { bubbles: true }));
          while (!document.querySelector(`[data-open="${id}"] [data-figure]`))
            await new Promise(requestAnimationFrame);
          await new Promise(requestAnimationFrame);
          return performance.now() - start;
        }""",
        station,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--tiny", action="store_true", help="tiny models: only checks that this runs")
    args = parser.parse_args()
    if args.tiny:
        reference_models.shrink()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "long"
        text = model(folder, args.tokens)
        server = subprocess.Popen(
            [sys.executable, "-m", "glassformer", "serve", str(folder), "--port", "0"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
            env=dict(os.environ),
        )
        try:
            assert server.stdout is not None
            url = next(
                found.group(1) for line in server.stdout if (found := re.search(r"(http\S+)/v1", line))
            )
            measure(url, text)
        finally:
            server.terminate()
            server.wait(60)


def measure(url: str, text: str) -> None:
    import httpx

    with httpx.Client(base_url=url, timeout=120) as client:
        client.post("/trace", json={"model": "long", "text": text[:200]})  # first calls set things up
        beyond = []
        for n in range(5):
            started = time.perf_counter()
            found = client.post("/trace", json={"model": "long", "text": text + " ." * n}).json()
            forward = found["forward_seconds"]
            beyond.append(time.perf_counter() - started - forward)
        print(f"tokens                       {len(found['sequences'][-1]['tokens'])}")
        print(f"forward                      {forward:8.3f} s")
        print(f"trace beyond the forward     {statistics.median(beyond):8.3f} s   (bound 1 s)")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playing:
        browser = playing.chromium.launch(executable_path=program, args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        session = page.context.new_cdp_session(page)
        session.send("Network.enable")
        sent = [0]
        session.on(
            "Network.loadingFinished", lambda got: sent.__setitem__(0, sent[0] + got["encodedDataLength"])
        )
        page.goto(f"{url}/#/long/model?in={text.replace(' ', '%20')}")
        ready(page)
        painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        print(f"first paint                  {painted:8.0f} ms  (bound 1000 ms)")
        print(f"sent before the first view   {sum(sent) / 1e6:8.2f} MB  (bound 2 MB)")
        ids = page.evaluate("[...document.querySelectorAll('[data-station]')].map(e => e.dataset.station)")
        for kind in STAGES:
            of_kind = [one for one in ids if one.endswith(f".{kind}") or one == kind][:3]
            if not of_kind:
                continue
            times = [opening(page, one) for one in of_kind for _ in (0,)]
            page.wait_for_load_state("networkidle")
            print(f"station {kind:<12} opens in  {statistics.median(times):8.0f} ms  (bound 100 ms)")
        frames = scrubbing(page)
        print(f"frames while scrubbing       {frames:8.0f} a second (bound 60)")
        heap = page.evaluate("performance.memory.usedJSHeapSize") / 2**20
        print(f"page: script's memory        {heap:8.0f} MB, renderer {renderer():.0f} MB (bound 300 MB)")
        browser.close()


def scrubbing(page: Page) -> float:
    """Frames a second while the pointer moves over the first matrix there is."""
    box = page.locator("[data-figure] canvas").first.bounding_box()
    if box is None:
        return float("nan")
    page.evaluate(
        """() => { window.painted = 0; window.going = true;
          const count = () => { window.painted++; if (window.going) requestAnimationFrame(count); };
          requestAnimationFrame(count); }"""
    )
    start = time.perf_counter()
    for n in range(120):
        page.mouse.move(
            box["x"] + 4 + n * (box["width"] - 8) / 120, box["y"] + 4 + n * (box["height"] - 8) / 120
        )
    took = time.perf_counter() - start
    painted = page.evaluate("() => { window.going = false; return window.painted; }")
    return painted / took


def renderer() -> float:
    """The memory that the largest renderer process has for itself, in MB."""
    found = [
        one.memory_full_info().uss
        for one in psutil.process_iter(["cmdline"])
        if "--type=renderer" in " ".join(one.info["cmdline"] or ())
    ]
    return max(found, default=0) / 2**20


if __name__ == "__main__":
    main()
