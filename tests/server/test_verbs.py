"""The routes beside OpenAI's: their numbers are the library's, and what they tell of themselves is true."""

from __future__ import annotations

import base64
import io
import math
import re
import socket
import threading
import time
from contextlib import suppress

import numpy as np
import pytest
from PIL import Image

import glassformer
from glassformer.errors import GlassformerError
from glassformer.server.app import app
from glassformer.server.guard import Address
from glassformer.server.limits import Limits
from glassformer.server.models import check_writes, opened
from glassformer.server.page import File
from glassformer.server.run import listening, server
from tests.server.made import KINDS, LINES


def test_translate_is_the_librarys(server, bundles):
    texts = [LINES[3], "", "a cat\n\nthe dog 안녕"]
    for words in ({}, {"num_beams": 1}, {"num_beams": 3, "length_penalty": 0.5, "max_new_tokens": 9}):
        wanted = bundles["translator"].translate(texts, details=True, **words)
        with server.client() as client:
            found = client.post("/translate", json={"texts": texts, **words}).json()
        assert found["model"] == "translator"
        assert [one["text"] for one in found["translations"]] == [one.text for one in wanted]
        assert [one["score"] for one in found["translations"]] == pytest.approx(
            [one.score for one in wanted], abs=1e-4
        )
        assert [one["ended"] for one in found["translations"]] == [one.ended for one in wanted]
        assert [tuple(one["doubts"]) for one in found["translations"]] == [one.doubts for one in wanted]


def test_a_language_by_another_name_is_told_its_own(server):
    with server.client() as client:
        for route, given, meant in (
            ("/trace", "tag", "to"),
            ("/trace", "targt", "target"),
            ("/translate", "target_lang", "to"),
            ("/v1/completions", "language", "to"),
        ):
            words = {"model": "translator", "text": "a cat", "prompt": "a cat"}
            words.pop("text" if route.startswith("/v1") else "prompt")
            answer = client.post(route, json={**words, given: "de"})
            assert answer.status_code in (400, 422)
            assert f"'{given}' is not known; did you mean {meant}?" in answer.json()["error"]["message"]


def test_classify_is_the_librarys(server, bundles):
    with server.client() as client:
        found = client.post("/classify", json={"texts": LINES[:3], "top": 2}).json()
        wanted = bundles["classifier"].classify(LINES[:3], top=2)
        told = [[(one["label"], one["score"]) for one in row] for row in found["results"]]
        assert told == [[(one.label, one.score) for one in row] for row in wanted]
        made = io.BytesIO()
        noise = np.random.default_rng(0).integers(0, 255, (30, 20, 3), np.uint8)
        Image.fromarray(noise).save(made, "PNG")
        plain = base64.b64encode(made.getvalue()).decode()
        for image in (plain, f"data:image/png;base64,{plain}"):
            found = client.post("/classify", json={"images": [image]}).json()
            wanted = bundles["pictures"].classify([made.getvalue()])
            assert found["model"] == "pictures"
            assert [one["score"] for one in found["results"][0]] == [one.score for one in wanted[0]]
        for body in ({"images": ["!"]}, {"images": ["AAAA"]}, {"texts": ["a"], "images": [plain]}, {}):
            assert client.post("/classify", json=body).status_code == 422
        assert client.post("/classify", json={"texts": ["a"], "model": "pictures"}).status_code == 422


def test_classify_notes_what_the_verb_notes(server):
    """One shade; larger than is read: each told once, with a count."""

    def png(height: int, width: int, *, shades: int) -> str:
        pixels = np.random.default_rng(1).integers(0, shades, (height, width, 3), np.uint8)
        Image.fromarray(pixels).save(made := io.BytesIO(), "PNG")
        return base64.b64encode(made.getvalue()).decode()

    with server.client() as client:

        def notes(**body: object) -> list[str]:
            return client.post("/classify", json=body).json()["notes"]

        assert notes(texts=LINES[:1]) == [] and notes(images=[png(30, 20, shades=255)]) == []
        blank = png(9, 9, shades=1)
        one, other = notes(images=[blank, png(300, 300, shades=255), blank])
        assert one.startswith("2 pictures are of one shade")
        assert other.startswith("1 picture is more than 16 times as large as what the model 'pictures'")


def test_forecast_is_the_librarys(server, bundles):
    columns = {"a": [math.sin(t) for t in range(40)], "b": [t * 0.5 for t in range(40)]}
    days = [str(np.datetime64("2024-01-30") + t) for t in range(40)]
    wanted = bundles["series"].forecast({"ds": days, **columns}, columns=["a", "b"])
    with server.client() as client:
        found = client.post("/forecast", json={"series": {"columns": columns, "ds": days}}).json()
        assert found["stamps"][0] == "2024-03-10"
        for n, name in enumerate("ab"):
            assert found["values"][name] == wanted.values[0, :, n].tolist()
        counted = client.post("/forecast", json={"series": {"columns": columns}}).json()
        assert counted["values"] == found["values"] and counted["stamps"][0] == "40"
        short = client.post("/forecast", json={"series": {"columns": {"a": [1.0], "b": [2.0]}}})
        uneven = client.post("/forecast", json={"series": {"columns": {"a": [1.0] * 40, "b": [2.0]}}})
        assert short.status_code == uneven.status_code == 422


def test_what_it_tells_of_itself(server):
    with server.client() as client:
        assert client.get("/health").json()["models"] == list(KINDS)
        page, schema = client.get("/docs"), client.get("/openapi.json").json()
        assert all(path in page.text for path in schema["paths"])
        assert not re.findall(r"https?://", page.text)
        assert client.get("/docs.css").headers["content-type"].startswith("text/css")
        before = server.gauge("tokens_written_total")
        written = client.post("/v1/completions", json={"prompt": "a cat", "model": "writer"}).json()["usage"]
        assert server.gauge("tokens_written_total") - before == written["completion_tokens"]
        lines = client.get("/metrics").text
        for name in (
            "requests_total",
            "request_seconds_bucket",
            "queue_length",
            "slots_used",
            "memory_bytes",
        ):
            assert f"glassformer_{name}{{" in lines
        assert 'route="/v1/completions"' in lines


def test_a_wrong_method_and_a_wrong_body_are_told_as_such(server):
    with server.client() as client:
        for path in ("/translate", "/v1/completions", "/trace", "/forecast"):
            answer = client.get(path)
            assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
            assert "not for GET but for POST" in answer.json()["error"]["message"]
        for path in ("/nothing", "/v1/nothing", "/assets/nothing.js"):
            answer = client.get(path)
            assert answer.status_code == 404
            assert "there is nothing at this path" in answer.json()["error"]["message"]
        told = {
            body: client.post("/translate", content=body, headers={"content-type": "application/json"})
            for body in ("", "[]", "null", '"a"')
        }
        sentences = {body: answer.json()["error"]["message"] for body, answer in told.items()}
        assert "the body is empty" in sentences.pop("")
        assert all("the body is no JSON object" in one for one in sentences.values())


def test_hints_name_what_a_client_has(server):
    """Keys of the route that was asked, no options; and a tokenizer only to models of texts."""
    with server.client() as client:

        def told(path: str, **body: object) -> str:
            answer = client.post(path, json=body)
            assert answer.status_code == 422
            return answer.json()["error"]["message"]

        asked = {"model": "polyglot", "text": "a cat"}
        assert "say which with `to`: de, en" in told("/translate", **asked)
        for words in ({"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.5}):
            (name,), said = words, told("/translate", **asked, to="de", **words)
            assert f"add `do_sample=True`, or leave {name} out" in said and "--" not in said
        for path in ("/trace", "/trace/step", "/trace/search"):
            assert "say which with `to`: de, en" in told(path, **asked)
        for model, reads in (("series", "reads series of numbers"), ("pictures", "reads pictures")):
            for path in ("/trace/step", "/trace/search"):
                assert reads in told(path, model=model, text="a")
            assert reads in told("/v1/embeddings", model=model, input="a")
        days = ["2024-01-01", *(str(np.datetime64("2024-01-01") + t) for t in range(39))]
        series = {"columns": {"a": [1.0] * 40, "b": [2.0] * 40}, "ds": days}
        repeated = told("/forecast", series=series)
        assert "the table row 2 repeats the time stamp 2024-01-01 of row 1; mend the table" in repeated
        assert "with `fill` linear or last" in repeated
        for fill, said in (("ignore", "row 2 repeats"), ("last", "left out: the table row 2: repeats")):
            filled = client.post("/forecast", json={"series": series, "fill": fill})
            assert filled.status_code == 200 and said in " ".join(filled.json()["notes"])


def test_a_model_that_writes_nothing_says_why():
    for family, why in (("gpt2", "has no tokenizer; give the folder"), ("vit", "writes no text")):
        with pytest.raises(GlassformerError, match=why):
            check_writes(glassformer.Pipeline(model=glassformer.tiny(family)))


def test_bounds_of_whole_numbers_are_whole(server):
    with server.client() as client:
        page = client.get("/docs").text
    assert "from 1, to 4,096" in page and "below 9,223,372,036,854,775,808" in page
    assert not re.search(r"<td>[^<]*(\d\.0\b|e\+\d)", page)


def test_stamps_of_hours_all_have_their_time_of_day(server):
    hours = [str(np.datetime64("2024-01-25T00") + t).replace("T", " ") + ":00" for t in range(47)]
    columns = {"a": [math.sin(t) for t in range(47)], "b": [t * 0.5 for t in range(47)]}
    with server.client() as client:
        found = client.post("/forecast", json={"series": {"columns": columns, "ds": hours}}).json()["stamps"]
    assert found[:3] == ["2024-01-26 23:00:00", "2024-01-27 00:00:00", "2024-01-27 01:00:00"]


def test_the_pages_files_are_kept_as_long_as_they_last(server):
    with server.client() as client:
        index = client.get("/")
        assert index.status_code == 200 and index.headers["cache-control"] == "no-cache"
        again = client.get("/", headers={"If-None-Match": index.headers["etag"]})
        assert again.status_code == 304 and not again.content
        for name in re.findall(r'(?:src|href)="\.?/?(assets/[^"]+)"', index.text):
            asset = client.get(f"/{name}")
            assert "immutable" in asset.headers["cache-control"]


def test_folders_of_one_name_and_runs_get_names_of_their_own(tmp_path):
    run, other = tmp_path / "run one", tmp_path / "run two"
    for place in (
        tmp_path / "a/writer",
        tmp_path / "b/writer",
        run / "model",
        other / "model",
        tmp_path / "c/model",
    ):
        place.mkdir(parents=True)
    for place in (run, other):
        (place / "recipe.yaml").write_text("job: lm\n")
    asked = [tmp_path / "a/writer", tmp_path / "b/writer", run, other / "model", tmp_path / "c/model"]
    bundles, runs = opened([str(place) for place in asked], lambda folder: folder)
    assert list(bundles) == ["writer", "writer-2", "run-one", "run-two", "model"]
    assert bundles["run-one"] == str(run / "model") and runs == {"run-one": run}
    (run / "model").rename(run / "best")  # as while it trains
    assert opened([str(run)], lambda folder: folder)[0] == {"run-one": str(run / "best")}
    (run / "best").rmdir()
    with pytest.raises(GlassformerError, match="no model yet"):
        opened([str(run)], lambda folder: folder)


@pytest.fixture
def hurried(bundles):
    """A server in this process that waits for nobody."""
    sock = listening("127.0.0.1", 0)
    port = sock.getsockname()[1]
    ready = threading.Event()
    made = app(
        {"encoder": bundles["encoder"]},
        address=Address(host="127.0.0.1", port=port),
        limits=Limits(reading=0.3),
        files={"index.html": File(content=bytes(32 << 20), kind="text/html", keep="no-cache")},
    )
    running = server(made, ready=ready.set, patience=0.3)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [sock]})
    thread.start()
    assert ready.wait(30)
    yield port
    running.should_exit = True
    thread.join()
    sock.close()


@pytest.mark.parametrize("said", [b"", b"G", b"GET /health HTTP/1.1\r\nHost: x"])
def test_a_head_that_does_not_come_is_not_waited_for(hurried, said):
    with socket.create_connection(("127.0.0.1", hurried), timeout=5) as sock:
        sock.sendall(said)
        began = time.monotonic()
        assert sock.recv(100) == b""
        assert time.monotonic() - began < 3


def test_a_body_that_does_not_come_is_not_waited_for(hurried):
    head = f"POST /translate HTTP/1.1\r\nHost: 127.0.0.1:{hurried}\r\nContent-Length: 100\r\n\r\n"
    with socket.create_connection(("127.0.0.1", hurried), timeout=5) as sock:
        for letter in head.encode() + b"{":
            sock.sendall(bytes([letter]))
        assert b" 408 " in sock.recv(1000)


def test_an_answer_that_is_not_read_is_not_kept(hurried):
    """Neither while it is written nor after, when the server has nothing more to say and would close."""
    head = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{hurried}\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", hurried), timeout=5) as sock:
        sock.sendall(head.encode())
        time.sleep(1.5)
        heard = 0
        with suppress(ConnectionResetError):
            while chunk := sock.recv(1 << 20):
                heard += len(chunk)
        assert heard < 32 << 20
    with socket.create_connection(("127.0.0.1", hurried), timeout=5) as sock:
        sock.sendall(head.encode())
        heard = 0
        while chunk := sock.recv(1 << 20):  # slowly, but steadily
            heard += len(chunk)
            time.sleep(0.03)
        assert heard > 32 << 20
