"""Tiny random models of every kind that is served, and a server process for them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import torch

import glassformer
from glassformer.core.spec import ClassifySpec, TokenClassifySpec
from glassformer.tokenization.train import Kind, Template, TokenizerPlan, train_tokenizer

VOCABULARY = "the cat dog sat on a mat glass is where and ran 안녕 세계 naïve 🙂 was".split()
LINES = [" ".join(VOCABULARY[(n * k + k) % len(VOCABULARY)] for n in range(9)) + "." for k in range(1, 60)]
KINDS = (
    "translator",
    "writer",
    "encoder",
    "classifier",
    "pictures",
    "series",
    "polyglot",
    "assistant",
    "tagger",
    "detector",
    "segmenter",
    "prompted",
)
LANGUAGES = ("de", "en")
CHAT_TEMPLATE = """{%- if messages[0].role == "tool" %}{{ raise_exception("a tool cannot begin") }}{% endif %}
{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{%- for message in messages %}
<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}{{ call.function.arguments.city }}{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{{ "<think>" if thinking else "" }}{% endif %}"""
T = TypeVar("T")


def run_async(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in its own thread: the browser tests keep a running loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def make_models(folder: Path) -> dict[str, Path]:
    """Folders of random models, by what they do."""
    torch.manual_seed(5)
    folders = {kind: folder / kind for kind in KINDS}
    translator = _tokenizer("bpe", "eos")
    size = translator.vocab_size
    _save(
        folders["translator"],
        glassformer.tiny("original", src_vocab_size=size, tgt_vocab_size=size, num_layers=1, start_id=2),
        translator,
    )
    writer = _tokenizer("byte", "none")
    _save(folders["writer"], glassformer.tiny("gpt2", vocab_size=writer.vocab_size, max_len=128), writer)
    reader = _tokenizer("bpe", "cls_sep")
    _save(folders["encoder"], glassformer.tiny("sentence", vocab_size=reader.vocab_size), reader)
    _save(
        folders["classifier"],
        glassformer.tiny("bert", vocab_size=reader.vocab_size, head=ClassifySpec(num_labels=3)),
        reader,
    )
    _save(
        folders["tagger"],
        glassformer.tiny("bert", vocab_size=reader.vocab_size, head=TokenClassifySpec(num_labels=3)),
        reader,
    )
    _save(folders["pictures"], glassformer.tiny("vit"), None)
    about = {"size": {"height": 16, "width": 16}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folders["pictures"] / "preprocessor_config.json").write_text(json.dumps(about))
    _save(folders["detector"], glassformer.tiny("detr"), None)
    about = {"image_processor_type": "DetrImageProcessor", "size": {"shortest_edge": 40, "longest_edge": 60}}
    (folders["detector"] / "preprocessor_config.json").write_text(json.dumps(about))
    _save(folders["segmenter"], glassformer.tiny("eomt"), None)
    about = {"image_processor_type": "EomtImageProcessor", "size": {"height": 32, "width": 32}}
    (folders["segmenter"] / "preprocessor_config.json").write_text(json.dumps(about))
    _save(folders["prompted"], glassformer.tiny("sam"), None)
    about = {"image_processor_type": "SamImageProcessor", "size": {"longest_edge": 32}, "pad_size": [32, 32]}
    (folders["prompted"] / "preprocessor_config.json").write_text(json.dumps(about))
    _save(folders["series"], glassformer.tiny("patchtst"), None)
    cut = _tokenizer("bpe", "eos", tags=tuple(f">>{one}<<" for one in LANGUAGES))
    size = cut.vocab_size
    _save(
        folders["polyglot"],
        glassformer.tiny("original", src_vocab_size=size, tgt_vocab_size=size, num_layers=1, start_id=2),
        cut,
    )
    about = {"job": "translate", "languages": list(LANGUAGES)}
    (folders["polyglot"] / "job.json").write_text(json.dumps(about))
    chat = _tokenizer("byte", "none", tags=("<|im_start|>", "<|im_end|>"))
    _save(folders["assistant"], glassformer.tiny("llama", vocab_size=chat.vocab_size, max_len=600), chat)
    (folders["assistant"] / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folders


def _tokenizer(
    kind: Kind, template: Template, *, tags: tuple[str, ...] = ()
) -> glassformer.tokenization.Tokenizer:
    return train_tokenizer(LINES, TokenizerPlan(kind=kind, vocab_size=320, template=template, tags=tags))


def _save(folder: Path, model: torch.nn.Module, tokenizer: object) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # so that outputs differ from prompt to prompt
    glassformer.save(glassformer.Pipeline(model=model.eval(), tokenizer=tokenizer), folder)


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server in a process of its own."""

    process: subprocess.Popen[str]
    port: int
    log_file: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **options: object) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, **options)  # type: ignore[arg-type]

    def send(self, raw: bytes, *, wait: float = 5.0, half: bool = True) -> bytes:
        """Bytes on a fresh connection -> everything received until it closes or falls silent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait) as sock:
            received = b""
            try:
                sock.sendall(raw)
                if half:
                    sock.shutdown(socket.SHUT_WR)
                while chunk := sock.recv(65_536):
                    received += chunk
            except OSError:
                pass
            return received

    def gauge(self, name: str, label: str = "") -> float:
        """The sum of a metric over its labels, or over those that hold `label`."""
        with self.client() as client:
            lines = client.get("/metrics").text.splitlines()
        found = [line for line in lines if re.match(rf"glassformer_{name}[{{ ]", line) and label in line]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)

    def log(self) -> str:
        """What the server wrote to stderr so far."""
        return self.log_file.read_text()

    def alive(self) -> bool:
        return self.process.poll() is None

    def stop(self, number: int = signal.SIGTERM, wait: float = 60) -> int:
        if self.alive():
            self.process.send_signal(number)
        return self.process.wait(wait)


@contextmanager
def serving(folders: Sequence[Path], *options: str, env: dict[str, str] | None = None) -> Iterator[Server]:
    """A server on a free port, stopped at the end of the block."""
    command = [sys.executable, "-m", "glassformer", "serve", *map(str, folders), "--port", "0", *options]
    log = tempfile.NamedTemporaryFile("w", prefix="server-", suffix=".log")  # noqa: SIM115
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    try:
        port = None
        for line in process.stdout:
            if found := re.search(r":(\d+)/v1", line):
                port = int(found.group(1))
                break
        if port is None:
            raise AssertionError(f"the server did not start: {Path(log.name).read_text()}")
        server = Server(process=process, port=port, log_file=Path(log.name))
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with httpx.Client() as client:
                if client.get(f"{server.url}/health").status_code == 200:
                    break
        yield server
    finally:
        process.kill() if process.poll() is None else None
        process.wait()
        process.stdout.close()
        log.close()
