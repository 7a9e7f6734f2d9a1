"""The command `chat`: a pipe, a terminal, and what a model without a chat template answers."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time

import pytest

import glassformer
from glassformer.tasks.chat import ChatGenerator
from tests.tasks.test_chat_images import ask, folder_of, picture
from tests.tasks.tiny_models import save_language_model

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory):
    folder = save_language_model(tmp_path_factory.mktemp("chat") / "model", max_len=3000)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def test_each_line_of_a_pipe_is_a_message(run, chat_model, stdin):
    pipeline = glassformer.load(chat_model)
    messages = [{"role": "system", "content": "sea"}, {"role": "user", "content": "the old"}]
    first = pipeline.chat(messages, max_new_tokens=9)
    more = [*messages, {"role": "assistant", "content": first}, {"role": "user", "content": "바다"}]
    second = pipeline.chat(more, max_new_tokens=9)
    stdin("the old\n바다\n\n/clear\nthe old\n/exit\nnever\n".encode())
    done = run("chat", chat_model, "--system", "sea", "--max-new-tokens", 9)
    assert (done.code, done.out) == (0, f"{first}\n{second}\n{first}\n")


def test_bad_input_is_one_error(run, stdin, tmp_path, folders, chat_model):
    stdin(b"hello\n")
    assert "generate" in run("chat", folders["generate"]).error()
    (tmp_path / "bad.json").write_text('{"type": "vector"}')
    assert "--json-schema" in run("chat", chat_model, "--json-schema", tmp_path / "bad.json").error()
    assert "none.json" in run("chat", chat_model, "--json-schema", tmp_path / "none.json").error()


def test_ctrl_c_stops_the_answer_and_ctrl_d_ends(chat_model):
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "glassformer", "chat", str(chat_model), "--max-new-tokens", "2500"]
    process = subprocess.Popen(
        [*command, "--do-sample", "--seed", "1"], stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)

    def read_until(count: int, text: bytes) -> bytes:
        seen, deadline = b"", time.monotonic() + 90
        while seen.count(text) < count and time.monotonic() < deadline:
            seen += os.read(controller, 65_536)
        return seen

    try:
        read_until(1, b"> ")
        os.write(controller, b"the old\n")
        seen = read_until(1, b"the old\r\n")  # the echo
        while seen.endswith(b"the old\r\n"):
            seen += os.read(controller, 65_536)  # the answer begins
        process.send_signal(signal.SIGINT)
        read_until(1, b"> ")
        os.write(controller, b"\x04")
        assert process.wait(60) == 0
    finally:
        process.kill()
        os.close(controller)


def test_images_of_the_command_line_and_of_the_conversation(run, stdin, tmp_path):
    folder = folder_of("idefics3", tmp_path / "vision")
    picture(30, 90).save(tmp_path / "a.png")
    picture(16, 16, seed=1).save(tmp_path / "b.png")
    task = ChatGenerator(glassformer.load(folder), max_new_tokens=6)
    first = ask(tmp_path / "a.png")
    answer = task(first).text
    second = [*first, {"role": "assistant", "content": answer}, *ask(tmp_path / "b.png", text="And this?")]
    stdin(f"What is it?\n/image {tmp_path / 'b.png'}\nAnd this?\n".encode())
    done = run("chat", folder, "--image", tmp_path / "a.png", "--max-new-tokens", 6)
    assert (done.code, done.out) == (0, f"{answer}\n{task(second).text}\n")
    assert "a.png: 36 tokens (9 tiles of 16 x 16 pixels)" in done.err
    (tmp_path / "c.png").write_text("no image")
    stdin(b"What?\n")
    for image in ("c.png", "none.png"):
        assert image in run("chat", folder, "--image", tmp_path / image).error()
    assert "--max-image-tokens" in run("chat", folder, "--max-image-tokens", 3).error()
