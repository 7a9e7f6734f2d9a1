"""Write pictures of emoji with captions in English and Korean, which `glassformer train diffusion` takes.

python -m experiments.emoji_captions --out FOLDER     FOLDER/captions.tsv, FOLDER/valid.tsv, FOLDER/images/

A picture has two captions in each language: the name, and the name with its first keywords. An emoji of the
split `train` is in captions.tsv and one of the split `val` in valid.tsv, in all styles.
"""

from __future__ import annotations

import argparse
import csv
import gzip
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from experiments.contrastive_emoji import STYLES
from experiments.paths import data_folder
from glassformer.weights.atomic_write import atomic_folder

LANGUAGES, KEYWORDS = ("en", "ko"), 3
FILES = {"train": "captions.tsv", "val": "valid.tsv"}


def captions(emoji: Mapping[str, str]) -> Iterator[str]:
    """Yield the captions of a row of the table, without repetition."""
    found: dict[str, None] = {}
    for language in LANGUAGES:
        name = emoji[f"name_{language}"]
        words = [word for word in emoji[f"keywords_{language}"].split(" | ") if word and word != name]
        found |= dict.fromkeys((name, ", ".join([name, *words[:KEYWORDS]])))
    yield from found


def write_captions(source: Path, folder: Path) -> None:
    """Write the pictures and the tables."""
    with gzip.open(source / "emoji.tsv.gz", "rt", encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    with atomic_folder(folder) as unfinished:
        (unfinished / "images").mkdir()
        lines: dict[str, list[str]] = {split: [] for split in FILES}
        for style in STYLES:
            with np.load(source / f"{style}.npz", allow_pickle=False) as arrays:
                images, rows = arrays["images"], arrays["row"].tolist()
            for image, row in zip(images, rows, strict=True):
                if table[row]["split"] in FILES:
                    path = f"images/{style}-{row:04}.png"
                    Image.fromarray(image).save(unfinished / path)
                    lines[table[row]["split"]] += [f"{path}\t{text}\n" for text in captions(table[row])]
        for split, name in FILES.items():
            (unfinished / name).write_text("image\tcaption\n" + "".join(lines[split]), encoding="utf-8")


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.emoji_captions", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--emoji", type=Path, default=data_folder() / "emoji-captions", help="emoji folder")
    options = parser.parse_args(args)
    write_captions(options.emoji, options.out)


if __name__ == "__main__":
    main()
