"""No request runs away: expensive schemas and masks end in time and memory, and with their client."""

from __future__ import annotations

import base64
import io
import json
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from PIL import Image

from tests.faults.scale import trials
from tests.server.harness import Server, serving

FACTORS = (9973, 9967, 9949, 9941)
RUNAWAY = {"allOf": [{"type": "integer", "multipleOf": factor} for factor in FACTORS]}
QUICK = {"model": "writer", "prompt": "the cat sat", "max_tokens": 2}
COMPILE_SECONDS = 5.0  # in which a schema is refused, if the machine is not too busy
SLACK = 5.0  # seconds, for a busy machine


@pytest.fixture(scope="module")
def serving_all(folders) -> Iterator[Server]:
    """A server with a language model and all vision models."""
    names = ("writer", "prompted", "segmenter", "detector", "pictures")
    with serving([folders[name] for name in names]) as running:
        yield running


def with_schema(schema: object, **options: object) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return {**QUICK, "response_format": form, **options}


def post(server: Server, path: str, body: object, timeout: float = 120) -> httpx.Response:
    with server.client() as client:
        headers = {"Content-Type": "application/json"}
        return client.post(path, content=json.dumps(body), headers=headers, timeout=timeout)


@contextmanager
def asking(server: Server, path: str, bodies: list[Any]) -> Iterator[list[tuple[int, float]]]:
    """Send requests at once; after the block, the list has the status and seconds of each."""
    found: list[tuple[int, float]] = []

    def ask(body: object) -> None:
        start = time.monotonic()
        with suppress(httpx.HTTPError):  # the server may stop first
            found.append((post(server, path, body).status_code, time.monotonic() - start))

    threads = [threading.Thread(target=ask, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    yield found
    for thread in threads:
        thread.join()


def memory(server: Server, kind: str) -> int:
    if not sys.platform.startswith("linux"):
        pytest.skip("needs /proc")
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(kind))


def cpu_seconds(server: Server) -> float:
    """Return the CPU time of the server and its children so far."""
    process = psutil.Process(server.process.pid)
    return sum(one.cpu_times().user + one.cpu_times().system for one in (process, *process.children()))


def idle_within(server: Server, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while server.gauge("requests_active") and time.monotonic() < end:
        time.sleep(0.05)
    return server.gauge("requests_active") == 0


def picture(width: int, height: int) -> str:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 30)).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


SMALL = picture(16, 16)


def test_a_schema_that_never_compiles_is_refused_while_others_are_served(serving_all):
    server = serving_all
    post(server, "/v1/completions", with_schema({"type": "integer"}))  # starts the compiler
    with asking(server, "/v1/completions", [with_schema(RUNAWAY)] * 4) as refused:
        for _ in range(5):
            start = time.monotonic()
            assert post(server, "/v1/completions", QUICK).status_code == 200
            assert time.monotonic() - start < COMPILE_SECONDS
    assert [status for status, _ in refused] == [422] * 4
    assert max(seconds for _, seconds in refused) < COMPILE_SECONDS + SLACK
    assert post(server, "/v1/completions", with_schema({"enum": [1, 2]})).status_code == 200


def test_a_compilation_ends_with_its_client(serving_all):
    with pytest.raises(httpx.ReadTimeout):
        post(serving_all, "/v1/completions", with_schema(RUNAWAY), timeout=0.7)
    assert idle_within(serving_all, 1.5)
    before = cpu_seconds(serving_all)
    time.sleep(3)
    assert cpu_seconds(serving_all) - before < 0.1


def test_large_masks_take_little_memory_and_end_with_their_client(serving_all):
    server, image = serving_all, picture(8000, 8000)
    boxes = [[100 * n, 50 * n, 100 * n + 1500, 50 * n + 2500] for n in range(64)]
    small = {"image": picture(90, 90), "boxes": [[10, 10, 50, 50]]}
    assert post(server, "/segment", small).status_code == 200
    before = memory(server, "VmRSS")
    count = trials(20)  # with three masks each, which the others leave no memory for
    body = {"image": image, "boxes": boxes[:count], "multimask_output": True}
    answer = post(server, "/segment", body, timeout=600)
    assert answer.status_code == 200 and len(answer.json()["results"]) <= 3 * count
    with pytest.raises(httpx.ReadTimeout):
        post(server, "/segment", {"image": image, "boxes": boxes}, timeout=8)
    start = time.monotonic()
    assert post(server, "/segment", small).status_code == 200
    assert time.monotonic() - start < 5 + SLACK  # one mask may still have been decoded
    assert memory(server, "VmHWM") - before < 1 << 30


@pytest.mark.parametrize("path", ["/classify", "/detect"])
def test_large_images_end_with_their_client(serving_all, path):
    model = "detector" if path == "/detect" else "pictures"
    many, small = ({"model": model, "images": images} for images in ([picture(8000, 8000)] * 32, [SMALL]))
    assert post(serving_all, path, small).status_code == 200
    with pytest.raises(httpx.ReadTimeout):
        post(serving_all, path, many, timeout=3)
    start = time.monotonic()
    assert post(serving_all, path, small).status_code == 200
    assert time.monotonic() - start < 5 + SLACK  # one image may still have been decoded


@pytest.mark.parametrize("seed", range(trials(10)))
def test_sigterm_ends_the_server_whatever_runs(folders, seed):
    draw = random.Random(seed)
    image = picture(8000, 8000)
    boxes = [[n, n, 3000 + n, 3000 + n] for n in range(64)]
    expensive = [
        ("/v1/completions", [with_schema(RUNAWAY)] * 4),
        ("/segment", [{"image": image, "boxes": boxes}]),
        ("/segment", [{"image": image, "everything": True, "points_per_side": 64}]),
        ("/segment", [{"model": "segmenter", "image": image, "mode": "semantic"}]),
    ]
    path, bodies = expensive[seed % len(expensive)]
    names = ("writer", "prompted", "segmenter")
    with serving([folders[name] for name in names]) as server, asking(server, path, bodies):
        time.sleep(draw.uniform(0.5, 4))
        start = time.monotonic()
        assert server.stop(signal.SIGTERM, wait=60) == 0
        assert time.monotonic() - start < 30 + SLACK


LEAVES: list[Any] = [
    {"type": "integer", "multipleOf": 7},
    {"type": "number", "minimum": -1e308, "exclusiveMaximum": 1e308},
    {"type": "string", "pattern": "^(a|b)*(ab){3,900}$"},
    {"type": "string", "pattern": "(.*a.{300}|.*b.{300})"},
    {"type": "string", "pattern": "(("},
    {"type": "string", "minLength": 9**9, "maxLength": 9**10},
    {"type": "string", "format": "date-time"},
    {"const": "\ud800"},
    {"const": [[[[[[1e300, None, True, "x" * 5000]]]]]]},
    {"enum": [f"value {n}" for n in range(5000)]},
    {"type": ["string", "null", "array"]},
    {"$ref": "#/$defs/a"},
    {"$ref": "file:///etc/passwd"},
    {"type": "array", "uniqueItems": True},
    {"x-guidance": {"lenient": True}},
    {},
    False,
]


def random_schema(draw: random.Random, depth: int) -> Any:
    """Return a schema that may be invalid, contradictory, recursive or far too large."""
    if depth == 0 or draw.random() < 0.2:
        return draw.choice(LEAVES)
    parts = [random_schema(draw, depth - 1) for _ in range(draw.randint(1, 4))]
    match draw.randrange(6):
        case 0:
            factors = draw.sample(range(2, 1200), draw.randint(1, 4))
            return {"allOf": [{"type": "integer", "multipleOf": factor} for factor in factors]}
        case 1:
            return {draw.choice(["allOf", "anyOf", "oneOf"]): parts}
        case 2:
            bounds = {"minItems": draw.choice([0, 3, 10**6]), "maxItems": draw.choice([2, 10**9])}
            return {"type": "array", "items": parts[0], "prefixItems": parts, **bounds}
        case 3:
            names = [
                draw.choice(["a", "x-guidance", "\x00", "長", "k" * 500]) + str(n) for n in range(len(parts))
            ]
            properties = dict(zip(names, parts, strict=True))
            return {"type": "object", "properties": properties, "required": names[:2]}
        case 4:
            return {"type": "string", "pattern": "(" * depth + f"a{{1,{10**depth}}}" + ")*" * depth}
    for _ in range(draw.choice([3, 40, 150])):
        parts = [{"items": parts[0], "type": "array"}]
    return parts[0]


def test_random_schemas_are_answered_or_refused(serving_all, report):
    draw, failures, tried = random.Random(11), [], trials(300)
    for number in range(tried):
        schema = random_schema(draw, draw.randint(0, 5))
        schema = schema if isinstance(schema, dict) else {"not": schema}
        schema = {**schema, "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}}
        start = time.monotonic()
        answer = post(serving_all, "/v1/completions", with_schema(schema, max_tokens=draw.choice([1, 50])))
        if answer.status_code not in (200, 422) or time.monotonic() - start > 2 * COMPILE_SECONDS + SLACK:
            failures.append(
                f"{number}: {answer.status_code}, {time.monotonic() - start:.1f} s: {answer.text[:300]}"
            )
    if memory(serving_all, "VmHWM") > 3 << 30:
        failures.append(f"peak memory {memory(serving_all, 'VmHWM') >> 20} MiB")
    report("random schemas", tried, failures)


MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "F")
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")


def random_image(draw: random.Random) -> bytes:
    """Return an image file of any mode, format and shape, or a damaged one."""
    size = draw.choice([(1, 1), (1, 3000), (3000, 1), (33, 17), (640, 480), (4000, 4000), (9000, 9000)])
    buffer = io.BytesIO()
    try:
        Image.new(draw.choice(MODES), size).save(buffer, draw.choice(FORMATS))
    except (OSError, ValueError):  # the format has no such mode
        Image.new("RGB", size).save(buffer, "PNG")
    content = bytearray(buffer.getvalue())
    if draw.random() < 0.4:
        for _ in range(draw.randint(1, 8)):
            content[draw.randrange(len(content))] = draw.randrange(256)
    if draw.random() < 0.2:
        del content[draw.randrange(len(content)) :]
    return bytes(content)


def test_random_images_are_answered_or_refused(serving_all, report):
    draw, failures, tried = random.Random(12), [], trials(200)
    before = memory(serving_all, "VmRSS")
    for number in range(tried):
        image = base64.b64encode(random_image(draw)).decode()
        x = draw.choice([-1.0, 0.0, 5.0, 1e9])
        path, body = draw.choice(
            [
                ("/detect", {"images": [image]}),
                ("/classify", {"model": "pictures", "images": [image]}),
                ("/embed", {"model": "pictures", "images": [image]}),
                ("/segment", {"model": "segmenter", "image": image, "mode": "semantic"}),
                ("/segment", {"image": image, "points": [[x, 1]], "multimask_output": True}),
                ("/segment", {"image": image, "boxes": [[0, 0, x, 10]] * 3}),
            ]
        )
        answer = post(serving_all, path, body)
        if answer.status_code not in (200, 413, 422):
            failures.append(f"{number}: {path}: {answer.status_code}: {answer.text[:300]}")
    if memory(serving_all, "VmHWM") - before > 3 << 29:
        failures.append(f"memory grew to {memory(serving_all, 'VmHWM') >> 20} MiB")
    report("random images", tried, failures)
