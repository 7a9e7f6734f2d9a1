"""OpenAI's client chats about images: the answers are the library's, alone and together."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

import glassformer
from glassformer.tasks.chat import ChatGenerator
from tests.server.harness import serving
from tests.tasks.test_chat_images import ask, folder_of, picture, png

LIMIT = 8


def url(image: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"


def message(*images: bytes, text: str = "What is it?", **detail: str) -> list[dict[str, Any]]:
    parts = [{"type": "image_url", "image_url": {"url": url(image), **detail}} for image in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


@pytest.fixture(scope="module")
def served(tmp_path_factory: Any) -> Any:
    folder = folder_of("idefics3", tmp_path_factory.mktemp("vision") / "vision")
    with serving([folder]) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        yield server, client, ChatGenerator(glassformer.load(folder), max_new_tokens=LIMIT, do_sample=False)


def answer(client: openai.OpenAI, messages: Any, **options: Any) -> Any:
    return client.chat.completions.create(
        model="vision", messages=messages, max_tokens=LIMIT, temperature=0, **options
    )


def test_answers_are_those_of_the_library_alone_and_together(served: Any) -> None:
    _, client, task = served
    first, second = (png(picture(30, 90, seed=n)) for n in range(2))
    rows = [(), (first,), (second,), (first, second), (second, first)]
    expected = [task(ask(*row)).text for row in rows]
    assert len({*expected}) > 2
    assert [answer(client, message(*row)).choices[0].message.content for row in rows] == expected
    with ThreadPoolExecutor(10) as pool:
        together = list(pool.map(lambda row: answer(client, message(*row)), rows * 4))
    assert [one.choices[0].message.content for one in together] == expected * 4
    ((segment,),) = task.preprocess([ask(first, second)])
    assert together[3].usage.prompt_tokens == len(segment.ids)
    pieces = answer(client, message(first), stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == expected[1]


def test_prefix_cache_shares_a_conversation_up_to_the_first_different_image(served: Any) -> None:
    server, client, _ = served
    base = [picture(30, 90, seed=n) for n in range(10, 13)]
    first, second, third = map(png, base)

    def hits(*images: bytes) -> float:
        before = server.gauge("prefix_cache_hits")
        answer(client, message(*images, text="What?"))
        return server.gauge("prefix_cache_hits") - before

    start = hits(first, second)
    assert hits(first, second) > hits(first, third) > start
    assert hits(third, first) <= start + 16


def test_low_detail_reads_one_tile(served: Any) -> None:
    _, client, _ = served
    image = png(picture(30, 90))
    high, low = (answer(client, message(image, detail=name)).usage.prompt_tokens for name in ("high", "low"))
    assert low < high


def linked(url: str) -> Any:
    return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        (message(b"no image"), "image 1"),
        (message(png(picture()), png(picture(1, 5000))), "image 2"),
        (message(*[png(picture())] * 200), "image tokens"),
        (message(text="an <image>"), "belongs to no image"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a.b/c"}}]}],
            "remote",
        ),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "/etc/hosts"}}]}], "data:"),
        ([{"role": "user", "content": [{"type": "image", "path": "/etc/hosts"}]}], "image_url"),
    ],
)
def test_bad_images_are_one_error(served: Any, messages: Any, text: str) -> None:
    _, client, _ = served
    with pytest.raises((openai.UnprocessableEntityError, openai.BadRequestError)) as caught:
        answer(client, messages)
    assert text in caught.value.message


def test_text_models_refuse_images(folders: dict[str, Path], server: Any) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        client.chat.completions.create(model="assistant", messages=message(png(picture())))  # type: ignore[arg-type]
    assert caught.value.code == "unsupported"
