"""Measure the explorer on a long input in a real browser: 512 tokens, 12 layers of 12 heads.

python benchmarks/explorer.py [--tokens 512]

Prints the time of a trace beyond its forward pass, the time to open a stage of the diagram, the bytes sent
before the first view, the memory of the page, and the frame rate while the pointer moves over a matrix.
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
from benchmarks.recording import add_samples, recorded
from glassformer.tokenization.train import TokenizerPlan, train_tokenizer

FLAGS = (
    "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync "
    "--no-first-run --enable-precise-memory-info"
).split()
STAGES = ("tokens", "embed", "position", "self", "ffn", "norm_self", "head")


def save_model(folder: Path, tokens: int) -> str:
    """Save a model of GPT-2's size with a word-level tokenizer; return a text of `tokens` tokens."""
    letters = "abcdefghijklmn"
    vocabulary = ["".join(triple) for triple in product(letters, repeat=3)][:2000]
    tokenizer = train_tokenizer(
        [" ".join(vocabulary)], TokenizerPlan(kind="word", vocab_size=2100, template="none")
    )
    torch.manual_seed(0)
    size = reference_models.TINY if reference_models.is_tiny() else {}
    gpt2 = glassformer.build("gpt2", vocab_size=50_257, **size).eval()
    glassformer.save(glassformer.Bundle(model=gpt2, tokenizer=tokenizer, family="gpt2"), folder)
    return " ".join(vocabulary[n * 37 % len(vocabulary)] for n in range(tokens))


def wait_until_ready(page: Page) -> None:
    page.wait_for_load_state("networkidle")
    page.wait_for_function("document.querySelector('[data-stage]') !== null")


def time_to_open(page: Page, stage: str) -> float:
    """Return the milliseconds from the click to the first frame that shows the figures of the stage."""
    return page.evaluate(
        """async (id) => {
          const element = document.querySelector(`[data-stage="${id}"]`);
          const start = performance.now();
          element.dispatchEvent(new MouseEvent('click', { bubbles: true }));
          while (!document.querySelector(`[data-open="${id}"] [data-figure]`))
            await new Promise(requestAnimationFrame);
          await new Promise(requestAnimationFrame);
          return performance.now() - start;
        }""",
        stage,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument(
        "--tiny", action="store_true", help="use tiny models, only to check that the script runs"
    )
    args = parser.parse_args()
    if args.tiny:
        reference_models.shrink()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "long"
        text = save_model(folder, args.tokens)
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
                match.group(1) for line in server.stdout if (match := re.search(r"(http\S+)/v1", line))
            )
            measure(url, text)
        finally:
            server.terminate()
            server.wait(60)


def measure(url: str, text: str) -> None:
    import httpx

    with httpx.Client(base_url=url, timeout=120) as client:
        client.post("/trace", json={"model": "long", "text": text[:200]})  # warm up
        overheads = []
        for n in range(5):
            start = time.perf_counter()
            trace = client.post("/trace", json={"model": "long", "text": text + " ." * n}).json()
            forward = trace["forward_seconds"]
            overheads.append(time.perf_counter() - start - forward)
        print(f"tokens                       {len(trace['sequences'][-1]['tokens'])}")
        print(f"forward                      {forward:8.3f} s")
        add_samples({"trace beyond the forward": overheads})
        print(f"trace beyond the forward     {statistics.median(overheads):8.3f} s   (bound 1 s)")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        session = page.context.new_cdp_session(page)
        session.send("Network.enable")
        sent = [0]
        session.on(
            "Network.loadingFinished", lambda event: sent.__setitem__(0, sent[0] + event["encodedDataLength"])
        )
        page.goto(f"{url}/#/long/model?in={text.replace(' ', '%20')}")
        wait_until_ready(page)
        painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        print(f"first paint                  {painted:8.0f} ms  (bound 1000 ms)")
        print(f"sent before the first view   {sum(sent) / 1e6:8.2f} MB  (bound 2 MB)")
        ids = page.evaluate("[...document.querySelectorAll('[data-stage]')].map(e => e.dataset.stage)")
        for kind in STAGES:
            of_kind = [stage for stage in ids if stage.endswith(f".{kind}") or stage == kind][:3]
            if not of_kind:
                continue
            times = [time_to_open(page, stage) for stage in of_kind]
            page.wait_for_load_state("networkidle")
            add_samples({f"stage {kind}, ms": times})
            print(f"stage {kind:<14} opens in  {statistics.median(times):8.0f} ms  (bound 100 ms)")
        frames = measure_frame_rate(page)
        print(f"frames while scrubbing       {frames:8.0f} per second (bound 60)")
        heap = page.evaluate("performance.memory.usedJSHeapSize") / 2**20
        print(
            f"page: JavaScript heap        {heap:8.0f} MB, renderer {renderer_memory():.0f} MB (bound 300 MB)"
        )
        browser.close()


def measure_frame_rate(page: Page) -> float:
    """Return the frames per second while the pointer moves over the first matrix on the page."""
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
    seconds = time.perf_counter() - start
    painted = page.evaluate("() => { window.going = false; return window.painted; }")
    return painted / seconds


def renderer_memory() -> float:
    """Return the private memory of the largest renderer process, in MB."""
    sizes = [
        process.memory_full_info().uss
        for process in psutil.process_iter(["cmdline"])
        if "--type=renderer" in " ".join(process.info["cmdline"] or ())
    ]
    return max(sizes, default=0) / 2**20


if __name__ == "__main__":
    with recorded():
        main()
