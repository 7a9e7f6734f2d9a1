"""Batch runs on Ray: the same columns as the command, and every row exactly once, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import psutil
import pyarrow.parquet
import pytest

from glassformer.batch import BatchProgress, run
from glassformer.batch.plan import BatchRequest, delete_leftovers, open_plan
from glassformer.batch.storage import Location
from glassformer.batch.worker import BatchWorker, DeadlyBlockError
from glassformer.cli.main import main
from glassformer.errors import (
    ConflictError,
    FileExistsAlreadyError,
    FileMissingError,
    FileProblemError,
    GlassformerError,
    InvalidValueError,
    NonFiniteError,
    UnknownNameError,
)
from glassformer.tasks import Embedder
from tests.tasks.folders import bert

BLOCKS, BLOCK_ROWS = 12, 8


@pytest.fixture(scope="module")
def cluster():
    """A Ray cluster with two CPUs; yields its address."""
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


@pytest.fixture
def sentences(tmp_path):
    """A table of sentences to translate."""
    path = tmp_path / "sentences.jsonl"
    rows = ({"id": n, "text": f"Good morning, I have {n} old books."} for n in range(BLOCKS * BLOCK_ROWS))
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def open_run(folder, task, model, source, *, out="out", batch_size=BLOCK_ROWS, overwrite=False, **changes):
    """The plan of a run and the folder of its output, without Ray."""
    request = {"columns": ("text",), "format": "jsonl", "options": {}, **changes}
    request = BatchRequest(task=task, model=str(model), inputs=(Location(source).uri,), **request)
    location = Location(folder / out)
    plan = open_plan(request, location, workers=1, batch_size=batch_size, overwrite=overwrite)
    return plan, location


def read_parts(folder):
    return [
        json.loads(line)
        for part in sorted(folder.glob("part-*.jsonl"))
        for line in part.open(encoding="utf-8")
    ]


def assert_each_row_once(folder):
    rows = read_parts(folder)
    assert Counter(row["id"] for row in rows) == Counter(range(BLOCKS * BLOCK_ROWS))
    assert all(row["translation"] and row["error"] is None for row in rows)
    assert not list(folder.glob(".*"))


def test_bad_input_is_rejected_before_ray_starts(sentences, tmp_path, monkeypatch):
    out = tmp_path / "out"
    with pytest.raises(UnknownNameError) as unknown:
        run("embed", "pocket", sentences, out, columns=["txt"])
    assert (unknown.value.kind, unknown.value.name) == ("column", "txt")
    with pytest.raises(UnknownNameError) as unknown:
        run("classify", "pocket", sentences, out, options={"num_beams": 2})
    assert (unknown.value.kind, unknown.value.name) == ("option", "num_beams")
    with pytest.raises(FileMissingError):
        run("embed", "pocket", tmp_path / "missing.csv", out)
    with pytest.raises(FileMissingError):
        run("embed", tmp_path / "no-model", sentences, out)
    with pytest.raises(InvalidValueError) as invalid:
        run("embed", "pocket", sentences, tmp_path / "out.csv")
    assert invalid.value.name == "output"
    with pytest.raises(InvalidValueError):
        run("embed", "pocket", "nosuch://bucket/file.csv", out)
    assert not out.exists()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(InvalidValueError) as invalid:
        run("embed", "pocket", sentences, tmp_path / "unreachable")
    assert invalid.value.name == "RAY_ADDRESS"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsAlreadyError):
        run("embed", "pocket", sentences, out)


def read_all(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("input_name", "output_name"),
    [
        ("data", "data"),
        ("data/part-1.csv", "data"),
        ("data", "data/out"),
        ("link", "data"),
        ("links", "data"),
    ],
)
def test_output_that_overlaps_the_input_is_refused(input_name, output_name, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/part-1.csv").write_text("text\nhello\n")
    (tmp_path / "link").symlink_to("data")
    (tmp_path / "links").mkdir()
    (tmp_path / "links/rows.csv").symlink_to("../data/part-1.csv")
    for overwrite in (True, False):
        with pytest.raises(ConflictError) as conflict:
            run("embed", "pocket", tmp_path / input_name, tmp_path / output_name, overwrite=overwrite)
        assert conflict.value.names == ["output", "input"]
    assert list(read_all(tmp_path / "data").values()) == [b"text\nhello\n"]


def test_overwriting_deletes_only_the_parts_that_the_plan_lists(sentences, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    own = {"part-9.csv": "a\n1\n", "part-notes.md": "mine", "part-000001.csv": "a\n1\n", "mine.csv": "a\n"}
    for name, text in own.items():
        (out / name).write_text(text)
    with pytest.raises(FileExistsAlreadyError):  # no run wrote into this folder
        run("embed", "pocket", sentences, out, overwrite=True)
    plan = {"request": {}, "files": [], "blocks": []}
    for other in ("../sentences.jsonl", "mine.csv"):  # not a plan of ours
        (out / "_batch.json").write_text(json.dumps({**plan, "parts": ["part-000001.csv", other]}))
        with pytest.raises(FileProblemError):
            run("embed", "pocket", sentences, out, overwrite=True)
    (out / "_batch.json").unlink()
    assert {path.name: content.decode() for path, content in read_all(out).items()} == own

    again = {"out": "earlier", "overwrite": True}
    plan, _ = open_run(tmp_path, "embed", "pocket", sentences, out="earlier")
    for name, text in {**own, plan.part(plan.blocks[0]): "written by the run"}.items():
        (tmp_path / "earlier" / name).write_text(text)
    open_run(tmp_path, "embed", "pocket", sentences, batch_size=2 * BLOCK_ROWS, **again)
    written = read_all(tmp_path / "earlier")
    assert {
        path.name: content.decode() for path, content in written.items() if path.name != "_batch.json"
    } == own

    (tmp_path / "earlier/part-000009.jsonl").write_text(
        "mine"
    )  # not of the 6 listed parts, but of the next 12
    with pytest.raises(FileExistsAlreadyError):
        open_run(tmp_path, "embed", "pocket", sentences, **again)
    assert (tmp_path / "earlier/part-000009.jsonl").read_text() == "mine"


def test_only_unfinished_files_of_killed_workers_are_deleted(tmp_path):
    for name, file in {
        "0": "part-000000.csv",
        "1": ".part-000000.csv.9f2c6a01.part",
        "2": "mine.csv",
    }.items():
        folder = tmp_path / f"out/.part-000000.csv-{name:0>8}"
        folder.mkdir(parents=True)
        (folder / file).write_text("text\n")
    (tmp_path / "out/.part-000000.csv-00000003").write_text("mine")
    (tmp_path / "out/.part-000000.csv-00000004").symlink_to(tmp_path / "out/.part-000000.csv-00000002")
    delete_leftovers(Location(tmp_path / "out"))
    left = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert left == [f".part-000000.csv-0000000{n}" for n in (2, 3, 4)]
    assert (tmp_path / "out/.part-000000.csv-00000002/mine.csv").read_text() == "text\n"


@pytest.mark.slow
def test_output_equals_that_of_the_command(cluster, tmp_path):
    _, model = bert("BertForSequenceClassification", tmp_path / "model")
    table = tmp_path / "in.csv"
    rows = [(n, "good film " * (n % 4), "pos") for n in range(21)]
    rows[7] = (7, "word " * 100, "neg")  # longer than the model reads
    lines = [f"{n},{text},{label}\n".encode() for n, text, label in rows]
    table.write_bytes(b"".join([b"id,text,label\n", *lines[:12], b"\xff,not UTF-8,\n", *lines[12:]]))
    with pytest.raises(SystemExit) as stop:
        main(
            [
                "classify",
                str(model),
                "--file",
                str(table),
                "--column",
                "text",
                "--out",
                f"{tmp_path}/one.jsonl",
            ]
        )
    assert stop.value.code == 2  # two rows are bad
    expected = [json.loads(line) for line in (tmp_path / "one.jsonl").open()]

    arguments = ("classify", model, table, f"file://{tmp_path}/out")  # a URI, as of an object store
    options = {"columns": ["text"], "format": "jsonl", "workers": 2, "batch_size": 4}
    result = run(*arguments, **options)
    assert result == BatchProgress(rows=22, total=22, errors=2)
    written = read_parts(tmp_path / "out")
    errors = [row.pop("error") for row in written]
    assert [row.get("id") for row in written] == [row.get("id") for row in expected]
    for ours, theirs in zip(written, expected, strict=True):
        assert list(ours) == list(theirs)
        assert ours.pop("score") == pytest.approx(theirs.pop("score"), abs=1e-6)
        assert ours == theirs
    assert [n for n, error in enumerate(errors) if error] == [7, 12]

    assert run(*arguments, **options) == BatchProgress(rows=22, total=22, resumed=22)  # nothing is left to do
    with pytest.raises(ConflictError) as conflict:
        run(*arguments, **options, options={"top": 2})
    assert conflict.value.names == ["output", "options"]


@pytest.mark.slow
def test_killed_worker_loses_and_duplicates_no_row(cluster, sentences, tmp_path):
    killed = []

    def kill_workers(progress):
        if not killed and progress.rows < progress.total:
            for process in psutil.Process().children(recursive=True):
                if "BatchWorker" in " ".join(process.cmdline()):
                    killed.append(process.pid)
                    process.kill()

    run(
        "translate",
        "pocket",
        sentences,
        tmp_path / "out",
        options={"to": "de"},
        workers=2,
        batch_size=BLOCK_ROWS,
        on_progress=kill_workers,
    )
    assert killed
    assert_each_row_once(tmp_path / "out")


@pytest.mark.slow
def test_killed_driver_is_resumed(cluster, sentences, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "glassformer", "batch", "translate", "pocket", "--to", "de"]
    command += ["--input", str(sentences), "--output", str(out), "--batch-size", str(BLOCK_ROWS)]
    driver = subprocess.Popen(command, env={**os.environ, "RAY_ADDRESS": cluster}, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not list(out.glob("part-*")) and time.monotonic() < deadline and driver.poll() is None:
        time.sleep(0.02)
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    done = {path: path.stat().st_mtime_ns for path in out.glob("part-*")}
    assert done

    result = run(
        "translate", "pocket", sentences, out, options={"to": "de"}, workers=2, batch_size=1
    )  # the blocks of the stored plan, whatever the batch size
    assert BLOCK_ROWS <= result.resumed < result.total
    assert all(path.stat().st_mtime_ns == time_written for path, time_written in done.items())
    assert_each_row_once(out)


@pytest.mark.slow
def test_error_of_a_worker_keeps_its_type(cluster, sentences, tmp_path):
    with pytest.raises(GlassformerError) as problem:
        run("translate", "pocket", sentences, tmp_path / "out", options={"to": "tlh"})
    assert type(problem.value) is UnknownNameError
    assert problem.value.name == "tlh"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["_batch.json"]
    with pytest.raises(UnknownNameError):  # no rows are done, so other options do not conflict
        run("translate", "pocket", sentences, tmp_path / "out", options={"to": "tl"})


def test_rows_that_kill_workers_or_fail_in_a_batch_are_named(sentences, tmp_path, monkeypatch):
    _, model = bert("BertModel", tmp_path / "model")
    plan, out = open_run(tmp_path, "embed", model, sentences, options={"truncate": True})
    worker = BatchWorker(plan, out.uri, device="cpu")
    embed = Embedder.run

    def run_or_fail(task, inputs, callbacks):
        if any(" 3 " in text for text in inputs):
            raise NonFiniteError("the output")
        return embed(task, inputs, callbacks)

    monkeypatch.setattr(Embedder, "run", run_or_fail)
    assert worker({"number": [0]}) == {"rows": [BLOCK_ROWS], "errors": [1]}
    rows = read_parts(tmp_path / "out")
    assert [row["id"] for row in rows if row["error"]] == [3]
    assert all(bool(row["embedding"]) != bool(row["error"]) for row in rows)

    for n in range(3):  # what killed processes leave behind
        (tmp_path / "out" / f".{plan.part(plan.blocks[1])}-{n}").mkdir()
    (error,) = worker({"number": [1]})["failure"]
    assert isinstance(error, DeadlyBlockError)
    assert (error.start, error.stop) == (BLOCK_ROWS + 1, 2 * BLOCK_ROWS)


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_null_text_is_an_error_of_its_row_and_an_empty_one_is_not(tmp_path, format):
    _, model = bert("BertForSequenceClassification", tmp_path / "model")
    texts = ["good film", None, ""]
    if format == "parquet":
        pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "in.parquet")
    else:
        (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
    plan, out = open_run(tmp_path, "classify", model, tmp_path / f"in.{format}", batch_size=3, columns=())
    assert BatchWorker(plan, out.uri, device="cpu")({"number": [0]}) == {"rows": [3], "errors": [1]}
    rows = read_parts(tmp_path / "out")
    assert [row["error"] is None for row in rows] == [True, False, True]
    assert [bool(row["label"]) for row in rows] == [True, False, False]


def test_remote_parquet_is_copied_and_uploaded(tmp_path, monkeypatch):
    """With the code path of an object store, on the local file system."""
    _, model = bert("BertForSequenceClassification", tmp_path / "model")
    for name, ids in (("a", range(5)), ("nested/b", range(5, 9)), ("_hidden/c", range(9, 12))):
        path = tmp_path / "in" / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        table = pyarrow.table({"id": list(ids), "text": ["good film"] * len(ids), "tags": [["x"]] * len(ids)})
        pyarrow.parquet.write_table(table, path)
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(Location, "is_local", False)
    plan, out = open_run(tmp_path, "classify", model, tmp_path / "in", batch_size=2, format="parquet")
    worker = BatchWorker(plan, out.uri, device="cpu")
    for block in reversed(plan.pending(out)):  # in any order
        worker({"number": [block.number]})
    assert not plan.pending(out)
    result = pyarrow.parquet.read_table(tmp_path / "out")  # a folder is one table
    assert result.column_names == ["id", "text", "tags", "label", "score", "error"]
    assert sorted(result["id"].to_pylist()) == list(range(9))
    assert result["tags"].to_pylist() == [["x"]] * 9
