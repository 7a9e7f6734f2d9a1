"""Tiny made-up data under the names that the recipes and the guide use."""

import gzip
import json
import math
import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from experiments.scenes import LANGUAGES, CutOuts, SceneComposer, SceneOptions, write_scenes

WHO, DOES, WHERE = (
    ["a dog", "a cat", "the old man", "a woman", "two boys", "the horse"],
    ["runs", "sleeps", "sings", "waits"],
    ["by the sea", "in the house", "on a hill", "under the tree", "at night"],
)
ENGLISH = [f"{who} {does} {where} ." for who in WHO for does in DOES for where in WHERE]  # 120
REVERSED = [" ".join(reversed(line.split())) for line in ENGLISH]


def text_files(folder: Path) -> None:
    pairs = [f"{one}\t{other}\n" for one, other in zip(ENGLISH, REVERSED, strict=True)]
    for name in ("pairs.tsv", "train.tsv", "more.tsv", "test.tsv"):
        (folder / name).write_text("".join(pairs))
    several = [*(f"{pair[:-1]}\tback\n" for pair in pairs), *(f"{one}\t{one}\tsame\n" for one in ENGLISH)]
    table = "source\ttarget\tto\n" + "".join(several)
    (folder / "several.tsv").write_text(table)
    (folder / "pocket").mkdir()
    for part in ("train", "dev"):
        (folder / "pocket" / f"{part}.tsv.gz").write_bytes(gzip.compress(table.encode()))
    both = {"en": "\n".join(ENGLISH) + "\n", "de": "\n".join(REVERSED) + "\n"}
    (folder / "multi30k").mkdir()
    for side, text in both.items():
        (folder / f"train.{side}").write_text(text)
        for part in ("train", "val"):
            (folder / "multi30k" / f"{part}.{side}.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("sentences.txt", "book.txt", "input.txt"):
        (folder / name).write_text(both["en"] * 3)
    for name in ("wikitext-2", "enwik8"):
        (folder / name).mkdir()
        for part in ("train", "valid"):
            (folder / name / f"{part}.txt").write_text(both["en"] * 3)
    lines = "".join(json.dumps({"text": line}) + "\n" for line in ENGLISH * 3)
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (folder / "pocket-lm").mkdir()
    (folder / "pocket-lm" / "english.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    rows = [(line, "good" if "a " in line else "bad") for line in ENGLISH]
    (folder / "reviews.tsv").write_text("text\tlabel\n" + "".join(f"{a}\t{b}\n" for a, b in rows))
    _annotated_files(folder)
    (folder / "reviews.csv").write_text("text,label\n" + "".join(f"{a},{b}\n" for a, b in rows))
    articles = "".join(f"{a} {b},{a}\n" for a, b in zip(ENGLISH, REVERSED, strict=True))
    (folder / "articles.csv").write_text(f"text,summary\n{articles}")
    similar = "".join(f"{a}\t{b}\n" for a, b in zip(ENGLISH, REVERSED, strict=True))
    (folder / "similar.tsv").write_text(f"anchor\tpositive\n{similar}")
    (folder / "nsmc").mkdir()
    numbered = "".join(f"{n}\t{a}\t{b}\n" for n, (a, b) in enumerate(rows))
    (folder / "nsmc" / "train.tsv.gz").write_bytes(gzip.compress(f"id\tdocument\tlabel\n{numbered}".encode()))


def image_files(folder: Path) -> None:
    """Noise in three brightnesses, as a folder per class."""
    rng = np.random.default_rng(0)
    for name, shape, count in (
        ("digits", (8, 8), 60),
        ("mnist", (8, 8), 60),
        ("fashion-mnist", (8, 8), 60),
        ("cifar10", (32, 32, 3), 40),
    ):
        for n in range(count):
            path = folder / name / str(n % 3) / f"{n:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((rng.integers(0, 60, shape) + 60 * (n % 3)).astype(np.uint8)).save(path)


def series_files(folder: Path, rows: int = 700) -> None:
    """Two sines an hour apart in each row."""
    times = np.datetime64("2024-01-01T00") + np.arange(rows) * np.timedelta64(1, "h")
    lines = [
        f"{str(at).replace('T', ' ')}:00:00,{math.sin(n / 4):.5f},{math.cos(n / 9):.5f}\n"
        for n, at in enumerate(times)
    ]
    for name in ("series.csv", "ETTh1.csv"):
        (folder / name).write_text("date,high,low\n" + "".join(lines))
    sales = [f"{n},{n % 3 + math.sin(n):.3f},{n % 3}\n" for n in range(200)]
    (folder / "sales.csv").write_text("ds,sales,promotion\n" + "".join(sales))
    sales[-6:] = [f"{n},,{n % 3}\n" for n in range(194, 200)]
    (folder / "future.csv").write_text("ds,sales,promotion\n" + "".join(sales))


def labeled_series_files(folder: Path, count: int = 24) -> None:
    """Slow and fast waves of 30 steps."""
    rows = [
        ",".join(f"{math.sin((1 + n % 2) * step / 3 + n):.4f}" for step in range(30)) + f":{n % 2}\n"
        for n in range(count)
    ]
    for name in ("train.ts", "test.ts"):
        (folder / name).write_text("@univariate true\n@classLabel true 0 1\n@data\n" + "".join(rows))


def _annotated_files(folder: Path) -> None:
    """Text pairs with labels, tagged words, and questions with answers."""
    names, labels = ("Anna", "Boris", "Clara"), ("entailment", "neutral", "contradiction")
    pairs = [
        f"{name} sees a dog {n}\t{name} sees {n} dogs\t{labels[n % 3]}" for n in range(20) for name in names
    ]
    (folder / "nli.tsv").write_text("premise\thypothesis\tlabel\n" + "\n".join(pairs) + "\n")
    words = [f"{name}\tB-PER\nsees\tO\ndog\tO\n{n}\tO\n" for n in range(20) for name in names]
    (folder / "entities.txt").write_text("\n".join(words))
    paragraphs = []
    for n in range(20):
        context = f"{names[n % 3]} lives in house {n} ."
        answers = [{"text": f"house {n}", "answer_start": context.index("house")}]
        qa = {"id": str(n), "question": f"Where does {names[n % 3]} live?", "answers": answers}
        paragraphs.append({"context": context, "qas": [qa]})
    (folder / "questions.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    (folder / "context.txt").write_text("Anna lives in house 7 .")


def object_files(folder: Path, count: int = 6) -> None:
    """Scenes of squares and bars: as COCO, as Pascal VOC, with instance masks and with class masks."""
    pictures = np.zeros((2, 64, 64, 4), np.uint8)
    pictures[0], pictures[1, 16:48] = (255, 0, 0, 255), (0, 0, 255, 255)
    names = tuple(dict.fromkeys(LANGUAGES, name) for name in ("square", "bar"))
    composer = SceneComposer(
        CutOuts(images=pictures, labels=np.arange(2), names=names),
        SceneOptions(size=32, min_objects=2, min_scale=0.3, max_scale=0.5),
    )
    write_scenes(composer, range(count), folder / "scenes")
    rows = [
        f"images/{n:06d}.png\t{caption}\t{language}\n"
        for n in range(count)
        for language, caption in composer.scene(n).captions.items()
    ]
    for name in ("captions", "valid"):
        (folder / f"scenes/{name}.tsv").write_text("image\tcaption\tlanguage\n" + "".join(rows), "utf-8")
    asked = [f"images/{n:06d}.png\twhat is in image {n}?\tanswer {n % 2}\n" for n in range(count)]
    (folder / "scenes/questions.tsv").write_text("image\tquestion\tanswer\n" + "".join(asked), "utf-8")
    (folder / "BCCD/ImageSets/Main").mkdir(parents=True)
    for name in ("BCCD/Annotations", "BCCD/JPEGImages"):
        (folder / name).mkdir(parents=True)
    (folder / "camvid").mkdir()
    (folder / "camvid/classes.txt").write_text("background\nsquare\nbar\n")
    for index, split in enumerate(("train", "val")):
        for name in (split, f"{split}_mask"):
            (folder / "nuclei" / name).mkdir(parents=True)
            (folder / "camvid" / name).mkdir(parents=True)
        for number in range(count):
            scene, name = composer.scene(index * count + number), f"{split}{number}"
            classes, instances = np.zeros((32, 32), np.uint8), np.zeros((32, 32), np.uint16)
            objects = []
            for n, note in enumerate(scene.annotations, 1):
                classes[note.mask], instances[note.mask] = 1 + (note.label == "bar"), n
                sides = zip(("xmin", "ymin", "xmax", "ymax"), note.box, strict=True)
                box = "".join(f"<{side}>{value:g}</{side}>" for side, value in sides)
                objects.append(f"<object><name>{note.label}</name><bndbox>{box}</bndbox></object>")
            image = Image.fromarray(scene.image)
            image.save(folder / f"BCCD/JPEGImages/{name}.jpg")
            (folder / f"BCCD/Annotations/{name}.xml").write_text(
                f"<annotation><filename>{name}.jpg</filename>{''.join(objects)}</annotation>"
            )
            for kind, mask in (("camvid", classes), ("nuclei", instances)):
                image.save(folder / kind / split / f"{name}.png")
                Image.fromarray(mask).save(folder / kind / f"{split}_mask" / f"{name}.png")
        listed = "".join(f"{split}{number}\n" for number in range(count))
        (folder / f"BCCD/ImageSets/Main/{split}.txt").write_text(listed)


def caption_files(folder: Path, count: int = 24) -> None:
    """Plain pictures with the names of their colors."""
    lines = ["image\tcaption"]
    (folder / "pictures").mkdir()
    for n in range(count):
        color = ("red", "green", "blue")[n % 3]
        Image.new("RGB", (20 + n, 24), color).save(folder / "pictures" / f"{n}.png")
        lines.append(f"pictures/{n}.png\ta {color} picture, number {n}")
    (folder / "captions.tsv").write_text("\n".join(lines) + "\n")
    shutil.copytree(folder / "pictures", folder / "emoji" / "pictures")
    for name, rows in (("captions", lines), ("valid", lines[:5])):
        (folder / "emoji" / f"{name}.tsv").write_text("\n".join(rows) + "\n")


def all_files(folder: Path) -> Path:
    images = (image_files, object_files, caption_files)
    writers = (text_files, *images, series_files, labeled_series_files)
    for write in writers:
        write(folder)
    return folder
