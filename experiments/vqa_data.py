"""Data sets of visual question answering as tables: image, question, answer, with the images in a folder.

python -m experiments.vqa_data easy --out easy-vqa     or nlvr

easy-VQA (PyPI: easy-vqa) asks about one shape of one color in 64 x 64 pixels: `pip download easy-vqa==1.0
--no-deps` into the folder easy-vqa of the data sets. In NLVR, people wrote sentences about three boxes with
shapes, which are true or false; there are few, and each picture occurs in all six orders of its boxes, which
do not change the answer unless a sentence counts boxes from the left.
"""

from __future__ import annotations

import argparse
import gzip
import json
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from experiments.paths import data_folder
from glassformer.errors import FileMissingError
from glassformer.metrics import vqa_metric
from glassformer.weights.atomic_write import atomic_folder

HEADER = "image\tquestion\tanswer\n"


class Row(NamedTuple):
    """A question about an image. image: path below the folder of the table."""

    image: str
    question: str
    answer: str


def easy_vqa(data: Path, folder: Path) -> Path:
    """Write train.tsv and test.tsv of easy-VQA."""
    wheels = sorted((data / "easy-vqa").glob("easy_vqa-*.whl"))
    if not wheels:
        hint = "pip download easy-vqa==1.0 --no-deps -d easy-vqa"
        raise FileMissingError(
            data / "easy-vqa" / "easy_vqa-1.0-py3-none-any.whl", "wheel of easy-VQA", hint=hint
        )
    if folder.exists():
        return folder
    with atomic_folder(folder) as unfinished, zipfile.ZipFile(wheels[-1]) as wheel:
        for name in wheel.namelist():
            if name.startswith("easy_vqa/data/") and name.endswith(".png"):
                _, _, split, _, file = name.split("/")
                target = unfinished / split / file
                target.parent.mkdir(exist_ok=True)
                target.write_bytes(wheel.read(name))
        for split in ("train", "test"):
            questions = json.loads(wheel.read(f"easy_vqa/data/{split}/questions.json"))
            write_rows(
                unfinished / f"{split}.tsv",
                (Row(f"{split}/{image}.png", question, answer) for question, answer, image in questions),
            )
    return folder


def nlvr(data: Path, folder: Path) -> Path:
    """Write train.tsv (the development set in all six orders of the boxes) and test.tsv (the hidden set)."""
    if folder.exists():
        return folder
    with atomic_folder(folder) as unfinished:
        for split, part, orders in (
            ("train", "dev", [*permutations(range(3))]),
            ("test", "hidden", [(0, 1, 2)]),
        ):
            rows = []
            (unfinished / split).mkdir()
            for n, (image, sentence, answer) in enumerate(_nlvr_examples(data / "nlvr", part)):
                for k, order in enumerate(orders):
                    name = f"{split}/{n}-{k}.png"
                    Image.fromarray(swap_boxes(image, order)).save(unfinished / name)
                    rows.append(Row(name, sentence, answer))
            write_rows(unfinished / f"{split}.tsv", rows)
    return folder


def _nlvr_examples(folder: Path, part: str) -> Iterator[tuple[NDArray[np.uint8], str, str]]:
    """Yield images (50, 200, 3), sentences, and whether they are true."""
    with np.load(folder / f"{part}.npz") as arrays:
        images = arrays["images"]
    with gzip.open(folder / f"{part}.jsonl.gz", "rt", encoding="utf-8") as file:
        for image, line in zip(images, file, strict=True):
            example = json.loads(line)
            yield image, " ".join(example["sentence"].split()), example["label"]


def swap_boxes(image: NDArray[np.uint8], order: Sequence[int]) -> NDArray[np.uint8]:
    """Return an image (50, 200, 3) with its three boxes of 50 x 50 pixels in another order.

    >>> image = np.zeros((50, 200, 3), np.uint8)
    >>> image[:, 75:125] = 9
    >>> swap_boxes(image, (1, 0, 2))[0, [10, 60, 100, 190], 0].tolist()
    [9, 0, 0, 0]
    """
    starts = (0, 75, 150)
    swapped = image.copy()
    for place, source in enumerate(order):
        swapped[:, starts[place] : starts[place] + 50] = image[:, starts[source] : starts[source] + 50]
    return swapped


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write a table."""
    with path.open("w", encoding="utf-8") as file:
        file.write(HEADER)
        file.writelines("\t".join(row) + "\n" for row in rows)


def read_rows(path: Path) -> list[Row]:
    """Read a table that `write_rows` wrote."""
    return [Row(*line.split("\t")) for line in path.read_text("utf-8").splitlines()[1:]]


def majority(train: Sequence[Row], test: Sequence[Row]) -> Mapping[str, float]:
    """Return the accuracy of the most frequent answer, and of the most frequent one to the same question.

    >>> train = [Row("", *pair) for pair in ("ay", "ay", "bn", "cn", "dn")]
    >>> majority(train, [Row("", "a", "y"), Row("", "b", "n")])
    {'majority': 50.0, 'majority of the question': 100.0}
    """
    (overall, _), *_ = Counter(row.answer for row in train).most_common(1)
    answers: dict[str, Counter[str]] = {}
    for row in train:
        answers.setdefault(row.question, Counter())[row.answer] += 1
    best = {question: counts.most_common(1)[0][0] for question, counts in answers.items()}
    given = {
        "majority": [overall for _ in test],
        "majority of the question": [best.get(row.question, overall) for row in test],
    }
    wanted = [row.answer for row in test]
    return {name: vqa_metric(guesses, wanted)["accuracy"].score for name, guesses in given.items()}


TABLES = {"easy": easy_vqa, "nlvr": nlvr}


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.vqa_data", description=__doc__)
    parser.add_argument("name", choices=sorted(TABLES), help="the data set")
    parser.add_argument("--data", type=Path, default=data_folder(), help="folder of the data sets")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    options = parser.parse_args(args)
    print(TABLES[options.name](options.data, options.out))


if __name__ == "__main__":
    main()
