"""Put the server under mixed load for minutes, and watch its memory: python benchmarks/soak.py [--minutes 15]

Eight clients send eleven kinds of requests in a random order: translations, completions (greedy, sampled,
streamed, streamed and left, with a JSON schema, and of distinct prompts of 200 words), embeddings, detection
and classification in images of distinct sizes, and invalid bodies. Before, the prefix cache is filled. Prints
the resident memory of the server every minute, its growth from a third of the time to the end, and latencies
by kind. Exits with status 1 if a response has an unexpected status.
"""

from __future__ import annotations

import argparse
import base64
import io
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import httpx
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.recording import add_samples, recorded

CLIENTS = 8
PREFIXES = 80  # prompts of 200 words that fill the prefix cache
MODELS = ("pocket", "pocket-lm", "pocket-detector", "pocket-digits")
WORDS = (
    "the city of a small old river house began in winter and people there wrote letters about rain".split()
)


class Kind(NamedTuple):
    """A kind of request. status: what the server must answer; None: the client leaves before."""

    path: str
    body: Callable[[random.Random], dict[str, Any]]
    status: int | None = 200


def words(draw: random.Random, count: int) -> str:
    return " ".join(draw.choices(WORDS, k=count))


def picture(draw: random.Random) -> str:
    size = draw.randint(100, 500), draw.randint(100, 500)
    buffer = io.BytesIO()
    Image.effect_noise(size, draw.uniform(10, 90)).convert("RGB").save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def completion(**options: Any) -> Callable[[random.Random], dict[str, Any]]:
    return lambda draw: {
        "model": "pocket-lm",
        "prompt": words(draw, draw.randint(1, 20)),
        "max_tokens": draw.randint(5, 60),
        **options,
    }


def with_schema(draw: random.Random) -> dict[str, Any]:
    """A completion that follows a schema which the server has not seen before."""
    names = [f"{draw.choice(WORDS)}{draw.randrange(10_000)}" for _ in range(draw.randint(1, 4))]
    kinds = ({"type": "string", "maxLength": 9}, {"type": "integer"}, {"enum": WORDS})
    schema = {"type": "object", "properties": {name: draw.choice(kinds) for name in names}, "required": names}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return {**completion()(draw), "response_format": form}


def embedded(draw: random.Random) -> dict[str, Any]:
    return {"model": "pocket", "input": words(draw, draw.randint(3, 60))}


KINDS = {
    "translate": Kind("/translate", lambda draw: {"text": words(draw, draw.randint(3, 30)), "to": "de"}),
    "completion": Kind("/v1/completions", completion(temperature=0)),
    "sampled": Kind("/v1/completions", completion(n=2, seed=1)),
    "stream": Kind("/v1/completions", completion(stream=True)),
    "canceled": Kind("/v1/completions", completion(stream=True, max_tokens=200), None),
    "schema": Kind("/v1/completions", with_schema),
    "200 words": Kind("/v1/completions", lambda draw: {**completion()(draw), "prompt": words(draw, 200)}),
    "embed": Kind(
        "/v1/embeddings", lambda draw: {"model": "pocket", "input": words(draw, draw.randint(3, 60))}
    ),
    "detect": Kind("/detect", lambda draw: {"images": [picture(draw)]}),
    "classify": Kind("/classify", lambda draw: {"model": "pocket-digits", "images": [picture(draw)]}),
    "invalid": Kind("/v1/completions", completion(temperature=-1), 422),
}


class Load:
    """Clients that send requests until the time is over."""

    def __init__(self, url: str, seconds: float) -> None:
        self.url, self.end = url, time.monotonic() + seconds
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.unexpected: list[str] = []

    def run_client(self, seed: int) -> None:
        draw = random.Random(seed)
        with httpx.Client(base_url=self.url, timeout=300) as client:
            while time.monotonic() < self.end:
                name = draw.choice(list(KINDS))
                start = time.monotonic()
                status = send(client, KINDS[name], draw)
                self.seconds[name].append(time.monotonic() - start)
                if status != KINDS[name].status:
                    self.unexpected.append(f"{name}: {status}")


def send(client: httpx.Client, kind: Kind, draw: random.Random) -> int | None:
    """Send a request and return the status; None if the client left before the end of the response."""
    with client.stream("POST", kind.path, json=kind.body(draw)) as response:
        if kind.status is None and response.status_code == 200:
            next(response.iter_raw(), None)
            return None
        response.read()
        return response.status_code


def fill_prefix_cache(url: str, clients: int) -> None:
    """Send distinct prompts until the prefix cache is full: its size is a setting, and no leak."""
    draws = [random.Random(1000 + n) for n in range(PREFIXES)]
    bodies = [{**completion(max_tokens=1)(draw), "prompt": words(draw, 200)} for draw in draws]
    with httpx.Client(base_url=url, timeout=300) as client, ThreadPoolExecutor(clients) as pool:
        for response in pool.map(lambda body: client.post("/v1/completions", json=body), bodies):
            response.raise_for_status()


@contextmanager
def serving(models: list[str]) -> Iterator[tuple[str, int]]:
    """Start a server; yield its URL and process id."""
    command = [sys.executable, "-m", "glassformer", "serve", *models, "--port", "0", "--log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if found := re.search(r"OpenAI +(\S+)/v1", line):
                    yield found.group(1), process.pid
                    break
            else:
                raise SystemExit("the server did not start")
        finally:
            process.terminate()


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


def latency(seconds: list[float]) -> dict[str, float]:
    """Return the number of requests, and their median and 99th percentile in seconds."""
    p99 = quantiles(seconds, n=100)[-1] if len(seconds) > 1 else seconds[0]
    return {"requests": len(seconds), "p50": round(median(seconds), 3), "p99": round(p99, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    args = parser.parse_args()
    ticks = max(3, round(args.minutes))
    with serving(args.models) as (url, pid):
        fill_prefix_cache(url, args.clients)
        load = Load(url, 60 * args.minutes)
        threads = [threading.Thread(target=load.run_client, args=(seed,)) for seed in range(args.clients)]
        start = time.monotonic()
        for thread in threads:
            thread.start()
        memory = [resident_mb(pid)]
        for tick in range(1, ticks + 1):
            time.sleep(max(0.0, start + 60 * args.minutes * tick / ticks - time.monotonic()))
            memory.append(resident_mb(pid))
            print(f"{args.minutes * tick / ticks:6.2f} min  {memory[-1]:7.0f} MB", flush=True)
        for thread in threads:
            thread.join()
    growth = memory[-1] / memory[ticks // 3] - 1
    print(f"growth from {args.minutes / 3:g} to {args.minutes:g} min: {growth:+.1%}")
    rows = {"all": latency([value for values in load.seconds.values() for value in values])}
    rows |= {name: latency(load.seconds[name]) for name in KINDS if load.seconds[name]}
    for name, row in rows.items():
        print(f"{name:10s} {row['requests']:6d} requests  p50 {row['p50']:6.2f} s  p99 {row['p99']:6.2f} s")
    add_samples({"memory, MB": memory, **{name: load.seconds[name] for name in KINDS if load.seconds[name]}})
    if load.unexpected:
        raise SystemExit(f"{len(load.unexpected)} unexpected: {', '.join(load.unexpected[:10])}")


if __name__ == "__main__":
    with recorded():
        main()
