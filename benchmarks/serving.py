"""Servers with one client and with many, over HTTP: python benchmarks/serving.py [--only gpt --rounds 5]

Output tokens a second of random models that write 40 tokens for every prompt: the base encoder-decoder
through /translate (greedy, and by 4 beams), and a GPT-2 of 12 layers through /v1/completions, there beside
`transformers serve` with the same folder, prompts and bodies, as it comes and with its own batching. Each
server is a process of its own; while one is measured the others wait. First one client asks one thing after
another, then many at once; the figures are medians of the rounds. On a busy machine look at the last
columns: output tokens by the seconds that the server's process had of a processor. They mean something where
threads do not wait for each other, as with OMP_NUM_THREADS=1.
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
from glassformer.tokenization.train import Template, TokenizerPlan, train_tokenizer

VOCAB, LENGTH, CLIENTS = 8000, 40, 32
OURS, THEIRS, THEIRS_BATCHED = "glassformer", "transformers", "transformers, its batching"
STARTING = 120  # seconds that a server may take until it answers


class Question(NamedTuple):
    """How a server is asked, and how many tokens its answer holds."""

    path: str
    body: Callable[[str], dict[str, Any]]
    written: Callable[[dict[str, Any]], int]


class Rate(NamedTuple):
    """Output tokens by seconds, and by the server's own seconds of a processor."""

    wall: float
    cpu: float


class Server(NamedTuple):
    """A server that is running."""

    port: int
    pid: int
    question: Question

    def cpu(self) -> float:
        """The seconds of a processor that its process has had; only Linux tells."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            return float("nan")
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ask(self, prompt: str, line: http.client.HTTPConnection | None = None) -> str:
        """The answer, as it came."""
        line = line or http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        kind = {"Content-Type": "application/json"}
        line.request("POST", self.question.path, json.dumps(self.question.body(prompt)), kind)
        answer = line.getresponse()
        text = answer.read().decode()
        if answer.status != 200:
            raise SystemExit(f"{self.question.path} answered {answer.status}: {text[:500]}")
        if (written := self.question.written(json.loads(text))) != LENGTH:
            raise SystemExit(f"{self.question.path} wrote {written} tokens, not {LENGTH}: {text[:500]}")
        return text

    def rate(self, prompts: list[str], clients: int) -> Rate:
        """While so many clients ask, each on a line of its own."""

        def client(own: list[str]) -> None:
            line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
            for prompt in own:
                self.ask(prompt, line)
            line.close()

        shares = [prompts[n::clients] for n in range(clients)]
        with ThreadPoolExecutor(clients) as pool:
            start, spent = time.perf_counter(), self.cpu()
            for done in [pool.submit(client, own) for own in shares]:
                done.result()
            work = LENGTH * len(prompts)
            return Rate(work / (time.perf_counter() - start), work / max(self.cpu() - spent, 0.01))


@contextmanager
def serving(command: list[str], question: Question, first: str) -> Iterator[Server]:
    """A server in a process of its own, from its first answer on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115
    here = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path(__file__).parent.parent)}
    process = subprocess.Popen([*command, "--port", str(port)], stdout=log, stderr=log, env=here)
    try:
        start, server = time.perf_counter(), Server(port, process.pid, question)
        while True:
            try:
                server.ask(first)
                break
            except OSError:
                if process.poll() is not None or time.perf_counter() - start > STARTING:
                    log.seek(0)
                    raise SystemExit(f"{' '.join(command)} does not serve:\n{log.read()[-2000:]}") from None
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
    """Made-up words, all different."""
    letters = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    found: set[str] = set()
    while len(found) < count:
        found.add("".join(rng.choice(letters) for _ in range(3)))
    return sorted(found)


def save_model(folder: Path, shape: str) -> list[str]:
    """A random model with a tokenizer of whole words, and prompts for it."""
    rng = random.Random(0)
    known = random_words(VOCAB - 10, rng)
    template: Template = "none" if shape == "gpt" else "eos"
    plan = TokenizerPlan(kind="word", vocab_size=VOCAB, min_frequency=1, template=template)
    tokenizer = train_tokenizer([" ".join(known)], plan)
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
    return [" ".join(rng.choices(known, k=rng.randint(12, 24))) for _ in range(CLIENTS)]


def completing(model: str) -> Question:
    return Question(
        "/v1/completions",
        lambda prompt: {"model": model, "prompt": prompt, "max_tokens": LENGTH, "temperature": 0},
        lambda answer: int(answer["usage"]["completion_tokens"]),
    )


def translating(beams: int) -> Question:
    exactly = {"min_new_tokens": LENGTH, "max_new_tokens": LENGTH, "num_beams": beams, "split": "never"}
    return Question(
        "/translate",
        lambda prompt: {"text": prompt, **exactly},
        lambda answer: len(answer["translations"][0]["text"].split()),  # a token is a word
    )


def compare(
    title: str, shape: str, names: tuple[str, ...], asking: Callable[[str], Question], rounds: int, slots: int
) -> None:
    """`asking`: from what a server calls the model to how it is asked."""
    with tempfile.TemporaryDirectory() as place, ExitStack() as running:
        folder = Path(place) / "model"
        prompts = save_model(folder, shape)
        peer = Path(sys.executable).with_name("transformers")
        theirs = [str(peer), "serve", str(folder), "--device", "cpu"]
        commands = {
            OURS: [sys.executable, "-m", "glassformer", "serve", str(folder), "--slots", str(slots)],
            THEIRS: theirs,
            THEIRS_BATCHED: [*theirs, "--continuous-batching"],
        }
        up: dict[str, Server] = {}
        for name in names:
            question = asking("model" if name == OURS else str(folder))
            try:
                up[name] = running.enter_context(serving(commands[name], question, prompts[0]))
            except SystemExit as error:
                if name == OURS:
                    raise
                print(f"{name} is left out: {error}")
        found: dict[str, tuple[list[Rate], list[Rate]]] = {name: ([], []) for name in up}
        for _ in range(rounds):
            for name, server in up.items():
                found[name][0].append(server.rate(prompts[:4], 1))
                found[name][1].append(server.rate(prompts, CLIENTS))
    show(title, {name: (_median(one), _median(many)) for name, (one, many) in found.items()})


def _median(rates: list[Rate]) -> Rate:
    return Rate(*(median(values) for values in zip(*rates, strict=True)))


def show(title: str, rates: dict[str, tuple[Rate, Rate]]) -> None:
    table = Table(title=f"{title}: output tokens a second", title_justify="left")
    columns = ("what", "1 client", f"{CLIENTS} clients", f"{CLIENTS} / 1", "ours / its")
    for column in (*columns, "1, by CPU", f"{CLIENTS}, by CPU", "ours / its"):
        table.add_column(column, justify="left" if column == "what" else "right")
    ours = rates[OURS][1]
    for name, (one, many) in rates.items():
        cells = [name, f"{one.wall:,.1f}", f"{many.wall:,.1f}", f"{many.wall / one.wall:.2f}"]
        cells += [f"{ours.wall / many.wall:.2f}", f"{one.cpu:,.1f}", f"{many.cpu:,.1f}"]
        table.add_row(*cells, f"{ours.cpu / many.cpu:.2f}")
    Console(width=120).print(table)


def gpt(rounds: int) -> None:
    names = (OURS,) if reference_models.is_tiny() else (OURS, THEIRS, THEIRS_BATCHED)
    compare("GPT-2, 12 layers", "gpt", names, completing, rounds, CLIENTS)


def base(beams: int, rounds: int) -> None:
    title = f"base encoder-decoder, {'greedy' if beams == 1 else f'{beams} beams'}"
    compare(title, "base", (OURS,), lambda model: translating(beams), rounds, CLIENTS * beams)


CASES: dict[str, Callable[[int], None]] = {
    "base": lambda rounds: base(1, rounds),
    "base4": lambda rounds: base(4, rounds),
    "gpt": gpt,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Servers with one client and with many.")
    parser.add_argument("--only", help=f"of {', '.join(CASES)}, by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="tiny models: only checks that this runs")
    args = parser.parse_args()
    if args.tiny:
        reference_models.shrink()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no server outlives this
    for name in args.only.split(",") if args.only else CASES:
        CASES[name](args.rounds)


if __name__ == "__main__":
    main()
