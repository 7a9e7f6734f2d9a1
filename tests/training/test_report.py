"""The report of a run: self-contained, true to metrics.jsonl, and safe whatever the data says."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from glassformer.errors import FileProblemError
from glassformer.training.logging import history
from glassformer.training.logging.history import format_line, read_history
from glassformer.training.logging.report import write_report
from glassformer.training.logging.run_log import RunLog, Sample, StepMetrics
from glassformer.training.logging.sample_images import tile_images
from glassformer.training.task import SampleImage

EVIL = "<script>alert('x')</script><img src=https://example.org/x.png onerror=alert(1)>\" ' & </pre></style>"


class Reader(HTMLParser):
    """Every tag with its attributes, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def run(folder: Path, text: str = "plain") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(f"job: translate\ntraining:\n  note: {text!r}\n")
    with RunLog(folder, total_steps=60, console=Console(file=io.StringIO())) as log:
        log.facts(
            {"job": "translate", "parameters": 1234567, "rows": {"train": 29000, "left out": 3}, text: text}
        )
        log.message(text)
        for step in range(1, 61):
            note = StepMetrics(step=step, loss=5 / step, lr=1e-3, units=500, seconds=0.5, grad_norm=1.0)
            log.step(note)
            if step % 20 == 0:
                metrics = {"loss": 1 + abs(step - 40) / 100, "BLEU": float(step), f"{text} score": 2.0}
                samples = [Sample(source=text, expected="네, 그래요", got=f"step {step}")]
                log.validation(step, metrics, samples, signatures={"BLEU": f"nrefs:1|tok:13a|{text}"})


def test_report_shows_what_was_logged(tmp_path: Path) -> None:
    run(tmp_path / "mine")
    assert [path.name for path in write_report(tmp_path / "mine")] == ["report.html", "curves.png"]
    assert (tmp_path / "mine" / "curves.png").read_bytes().startswith(b"\x89PNG")
    reader = Reader()
    reader.feed((tmp_path / "mine" / "report.html").read_text("utf-8"))
    text = " ".join(reader.text.split())
    for expected in (
        *(
            "mine",
            "job translate",
            "step 60 of 60",
            "nrefs:1|tok:13a",
            "1,234,567",
            "train: 29,000, left out: 3",
        ),
        *("네, 그래요", "step 60", "30,000", "30 s", "note: 'plain'"),
    ):
        assert expected in text, expected
    assert re.search(r"validation loss\s*1\s*best, at step 40; 1\.2 at the end", text)
    assert re.search(r"BLEU\s*60\s*best, and last", text)
    (picture,) = [attributes for tag, attributes in reader.tags if tag == "img"]
    assert "Loss: training from 5 to 0.08333" in str(picture["alt"])


def test_data_cannot_inject_markup_and_nothing_is_loaded(tmp_path: Path) -> None:
    for name, text in (("plain", "plain"), ("evil", EVIL)):
        run(tmp_path / name, text)
        write_report(tmp_path / name)
    pages = {name: (tmp_path / name / "report.html").read_text("utf-8") for name in ("plain", "evil")}
    kinds = {}
    for name, text in pages.items():
        reader = Reader()
        reader.feed(text)
        kinds[name] = [tag for tag, _ in reader.tags]
        for tag, attributes in reader.tags:
            src = attributes.pop("src", None) or "data:image/png;base64,"
            assert src.startswith("data:image/png;base64,")
            assert not {"href", "srcset", "style", "xlink:href", "action"} & attributes.keys(), tag
            assert not [key for key in attributes if key.startswith("on")]
        assert "script" not in kinds[name] and "link" not in kinds[name] and "iframe" not in kinds[name]
        styles = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
        assert styles and "url(" not in styles[1] and "@import" not in styles[1]
        assert "default-src 'none'" in text
    assert kinds["evil"] == kinds["plain"]  # the same page, whatever the words
    reader = Reader()
    reader.feed(pages["evil"])
    assert reader.text.count(EVIL) >= 3  # shown as it was written


def test_report_can_be_written_at_any_stage(tmp_path: Path) -> None:
    with pytest.raises(FileProblemError):
        write_report(tmp_path)
    lines = [
        format_line("event", 0, 0.0, {"text": "begun"}),
        format_line("step", 1, 1.0, {"loss": float("inf"), "units": 5}),
        format_line("valid", 1, 1.0, {"metrics": {"loss": float("nan"), "BLEU": 0.0}, "samples": []}),
        '{"kind": "step", "step": 2, "los',
    ]
    for count in range(len(lines) + 1):
        (tmp_path / "metrics.jsonl").write_text("\n".join(lines[:count]))
        (tmp_path / "recipe.yaml").write_text("not: [yaml")
        assert write_report(tmp_path)[0] == tmp_path / "report.html"
        Reader().feed((tmp_path / "report.html").read_text("utf-8"))


def test_all_steps_of_a_long_run_are_counted_though_not_all_are_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MAX_PARSED_BYTES", 10_000)
    content = {"loss": 2.0, "units": 4096, "seconds": 0.5}
    with (tmp_path / "metrics.jsonl").open("w") as file:
        file.writelines(format_line("step", step, 1.0 * step, content) + "\n" for step in range(1, 2002))
    write_report(tmp_path)
    assert len(read_history(tmp_path).steps) < 200
    page = (tmp_path / "report.html").read_text()
    assert "step 2,001" in page and "16 min 40 s" in page


def test_images_are_saved_as_png_and_shown_newest_first(tmp_path: Path) -> None:
    with RunLog(tmp_path, total_steps=9, console=Console(file=io.StringIO())) as log:
        for step in range(1, 10):
            pixels = np.full((5, 7, 1), 20 * step, np.uint8)
            image = SampleImage(name="drawings", caption=f"drawn <b>{step}</b>", pixels=pixels)
            log.validation(step, {"loss": 1.0}, images=[image])
    with Image.open(tmp_path / "samples" / "step-00000009-drawings.png") as saved:
        assert saved.size == (7, 5) and saved.getpixel((0, 0)) == 180
    (tmp_path / "samples" / "step-00000007-drawings.png").unlink()
    write_report(tmp_path)
    reader = Reader()
    reader.feed((tmp_path / "report.html").read_text("utf-8"))
    drawn = [(int(step), text) for step, text in re.findall(r"step (\d+): drawn <b>(\d)</b>", reader.text)]
    assert drawn == [(9, "9"), (4, "4"), (1, "1")]
    assert sum(attributes.get("class") == "sample" for _, attributes in reader.tags) == 3


def test_a_report_shows_no_files_from_elsewhere(tmp_path: Path) -> None:
    run(tmp_path / "mine")
    (tmp_path / "secret.png").write_bytes(b"secret")
    content = {"metrics": {}, "images": [{"file": "../../secret.png", "caption": "c"}]}
    with (tmp_path / "mine" / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(format_line("valid", 61, 0.0, content) + "\n")
    (tmp_path / "mine" / "samples").mkdir()
    write_report(tmp_path / "mine")
    assert base64.b64encode(b"secret").decode() not in (tmp_path / "mine" / "report.html").read_text("utf-8")


def test_tiles_keep_the_order_and_enlarge_small_images() -> None:
    images = np.arange(3, dtype=np.uint8).reshape(3, 1, 1, 1).repeat(32, 1).repeat(32, 2)
    grid = tile_images(images, columns=2)
    assert grid.shape == (130, 130, 1)
    assert [grid[y, x, 0] for y, x in ((0, 0), (63, 129), (66, 63), (129, 129))] == [0, 1, 2, 255]
    assert (grid[64:66] == 255).all() and (grid[:, 64:66] == 255).all()
