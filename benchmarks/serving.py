"""Measure server throughput over HTTP with one and many clients: python benchmarks/serving.py [--only gpt]

Measures output tokens per second of random models that generate 40 tokens for each prompt: the base
encoder-decoder through /translate (greedy and with 4 beams), and a 12-layer GPT-2 through /v1/completions.
The latter is compared with `transformers serve` on the same folder, prompts and request bodies, with and
without continuous batching. Each server runs in its own process, and only one is measured at a time: first
with one client that sends requests one after another, then with many clients. Results are medians over
rounds.

On a busy machine, use the last columns, output tokens per CPU second of the server process. They are
meaningful only if threads do not busy-wait for each other, e.g. with OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

import glassformer
from benchmarks import reference_models
from benchmarks.recording import add_samples, recorded
from glassformer.tokenization.train import Template, TokenizerPlan, train_tokenizer

VOCAB, LENGTH, CLIENTS = 8000, 40, 32
OURS, THEIRS, THEIRS_BATCHED = "glassformer", "transformers", "transformers, continuous batching"
STARTUP_TIMEOUT = 120  # seconds


class RequestFormat(NamedTuple):
    """Path and body of a request, and a function that counts the tokens in a response."""

    path: str
    body: Callable[[str], dict[str, Any]]
    count_tokens: Callable[[dict[str, Any]], int]


class Rate(NamedTuple):
    """Output tokens per second, and per CPU second of the server process."""

    wall: float
    cpu: float


class Server(NamedTuple):
    """A running server."""

    port: int
    pid: int
    request_format: RequestFormat

    def cpu(self) -> float:
        """Return the CPU seconds of the server process so far; NaN if /proc is missing."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            return float("nan")
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def post(self, prompt: str, connection: http.client.HTTPConnection | None = None) -> str:
        """Send a request, check the number of tokens, and return the response body."""
        connection = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        headers = {"Content-Type": "application/json"}
        connection.request(
            "POST", self.request_format.path, json.dumps(self.request_format.body(prompt)), headers
        )
        response = connection.getresponse()
        text = response.read().decode()
        if response.status != 200:
            raise SystemExit(f"{self.request_format.path} answered {response.status}: {text[:500]}")
        if (tokens := self.request_format.count_tokens(json.loads(text))) != LENGTH:
            raise SystemExit(
                f"{self.request_format.path} generated {tokens} tokens instead of {LENGTH}: {text[:500]}"
            )
        return text

    def rate(self, prompts: list[str], clients: int) -> Rate:
        """Measure the throughput with `clients` concurrent clients, each with its own connection."""

        def client(share: list[str]) -> None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
            for prompt in share:
                self.post(prompt, connection)
            connection.close()

        shares = [prompts[n::clients] for n in range(clients)]
        with ThreadPoolExecutor(clients) as pool:
            start, cpu_start = time.perf_counter(), self.cpu()
            for done in [pool.submit(client, share) for share in shares]:
                done.result()
            work = LENGTH * len(prompts)
            return Rate(work / (time.perf_counter() - start), work / max(self.cpu() - cpu_start, 0.01))


@contextmanager
def start_server(command: list[str], request_format: RequestFormat, first: str) -> Iterator[Server]:
    """Start a server process and wait until it answers the prompt `first`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path(__file__).parent.parent)}
    process = subprocess.Popen([*command, "--port", str(port)], stdout=log, stderr=log, env=environment)
    try:
        start, server = time.perf_counter(), Server(port, process.pid, request_format)
        while True:
            try:
                server.post(first)
                break
            except OSError:
                if process.poll() is not None or time.perf_counter() - start > STARTUP_TIMEOUT:
                    log.seek(0)
                    raise SystemExit(f"{' '.join(command)} did not start:\n{log.read()[-2000:]}") from None
                time.sleep(0.3)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()


def random_words(count: int, rng: random.Random) -> list[str]:
    """Return `count` distinct made-up words."""
    letters = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    words: set[str] = set()
    while len(words) < count:
        words.add("".join(rng.choice(letters) for _ in range(3)))
    return sorted(words)


def save_model(folder: Path, shape: str) -> list[str]:
    """Save a random model with a word-level tokenizer; return prompts for it."""
    rng = random.Random(0)
    words = random_words(VOCAB - 10, rng)
    template: Template = "none" if shape == "gpt" else "eos"
    plan = TokenizerPlan(kind="word", vocab_size=VOCAB, min_frequency=1, template=template)
    tokenizer = train_tokenizer([" ".join(words)], plan)
    torch.manual_seed(0)
    size = tokenizer.vocab_size
    if shape == "gpt":
        model = glassformer.build(
            "gpt2", vocab_size=size, **(reference_models.TINY if reference_models.is_tiny() else {})
        )
    else:
        model = glassformer.build(
            "original", src_vocab_size=size, tgt_vocab_size=size, start_id=1, **reference_models.BASE
        )
    glassformer.save(glassformer.Bundle(model=model.eval(), tokenizer=tokenizer), folder)
    return [" ".join(rng.choices(words, k=rng.randint(12, 24))) for _ in range(CLIENTS)]


def completion_format(model: str) -> RequestFormat:
    return RequestFormat(
        "/v1/completions",
        lambda prompt: {"model": model, "prompt": prompt, "max_tokens": LENGTH, "temperature": 0},
        lambda response: int(response["usage"]["completion_tokens"]),
    )


def translation_format(beams: int) -> RequestFormat:
    options = {"min_new_tokens": LENGTH, "max_new_tokens": LENGTH, "num_beams": beams, "split": "never"}
    return RequestFormat(
        "/translate",
        lambda prompt: {"text": prompt, **options},
        lambda response: len(response["translations"][0]["text"].split()),  # a token is a word
    )


def compare(
    title: str,
    shape: str,
    names: tuple[str, ...],
    make_format: Callable[[str], RequestFormat],
    rounds: int,
    slots: int,
) -> None:
    """Measure the servers `names` in turns. make_format: the request format for a model name."""
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary) / "model"
        prompts = save_model(folder, shape)
        peer = Path(sys.executable).with_name("transformers")
        theirs = [str(peer), "serve", str(folder), "--device", "cpu"]
        commands = {
            OURS: [sys.executable, "-m", "glassformer", "serve", str(folder), "--slots", str(slots)],
            THEIRS: theirs,
            THEIRS_BATCHED: [*theirs, "--continuous-batching"],
        }
        servers: dict[str, Server] = {}
        for name in names:
            request_format = make_format("model" if name == OURS else str(folder))
            try:
                servers[name] = stack.enter_context(start_server(commands[name], request_format, prompts[0]))
            except SystemExit as error:
                if name == OURS:
                    raise
                print(f"{name} is skipped: {error}")
        results: dict[str, tuple[list[Rate], list[Rate]]] = {name: ([], []) for name in servers}
        for _ in range(rounds):
            for name, server in servers.items():
                results[name][0].append(server.rate(prompts[:4], 1))
                results[name][1].append(server.rate(prompts, CLIENTS))
    add_samples({f"{name}, 1 client": [rate[0] for rate in one] for name, (one, _) in results.items()})
    add_samples(
        {f"{name}, {CLIENTS} clients": [rate[0] for rate in many] for name, (_, many) in results.items()}
    )
    show(title, {name: (_median(one), _median(many)) for name, (one, many) in results.items()})


def _median(rates: list[Rate]) -> Rate:
    return Rate(*(median(values) for values in zip(*rates, strict=True)))


def show(title: str, rates: dict[str, tuple[Rate, Rate]]) -> None:
    table = Table(title=f"{title}: output tokens per second", title_justify="left")
    columns = ("what", "1 client", f"{CLIENTS} clients", f"{CLIENTS} / 1", "ours / theirs")
    for column in (*columns, "1, per CPU s", f"{CLIENTS}, per CPU s", "ours / theirs"):
        table.add_column(column, justify="left" if column == "what" else "right")
    ours = rates[OURS][1]
    for name, (one, many) in rates.items():
        cells = [name, f"{one.wall:,.1f}", f"{many.wall:,.1f}", f"{many.wall / one.wall:.2f}"]
        cells += [f"{ours.wall / many.wall:.2f}", f"{one.cpu:,.1f}", f"{many.cpu:,.1f}"]
        table.add_row(*cells, f"{ours.cpu / many.cpu:.2f}")
    Console(width=120).print(table)


def gpt(rounds: int) -> None:
    names = (OURS,) if reference_models.is_tiny() else (OURS, THEIRS, THEIRS_BATCHED)
    compare("GPT-2, 12 layers", "gpt", names, completion_format, rounds, CLIENTS)


def base(beams: int, rounds: int) -> None:
    title = f"base encoder-decoder, {'greedy' if beams == 1 else f'{beams} beams'}"
    compare(title, "base", (OURS,), lambda model: translation_format(beams), rounds, CLIENTS * beams)


CASES: dict[str, Callable[[int], None]] = {
    "base": lambda rounds: base(1, rounds),
    "base4": lambda rounds: base(4, rounds),
    "gpt": gpt,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure server throughput with one and many clients.")
    parser.add_argument("--only", help=f"comma-separated: {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--tiny", action="store_true", help="use tiny models, only to check that the script runs"
    )
    args = parser.parse_args()
    if args.tiny:
        reference_models.shrink()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # run the cleanup, so that no server keeps running
    for name in args.only.split(",") if args.only else CASES:
        CASES[name](args.rounds)


if __name__ == "__main__":
    with recorded():
        main()
