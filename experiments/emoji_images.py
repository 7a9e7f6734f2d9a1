"""Write the emoji of `emoji-captions` as images on white, with a caption each, to train models that draw.

    python -m experiments.emoji_images --out emoji

writes emoji/train and emoji/valid with an image per emoji and style, and the tables emoji/train.tsv and
emoji/valid.tsv with the columns image, caption and language. A caption is the name of an emoji and the style
in which it is drawn: `red apple, twemoji`. The styles of an emoji are all in one split.
"""

from __future__ import annotations

import argparse
import csv
import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from experiments.paths import data_folder

STYLES = ("noto", "twemoji", "openmoji", "fluent-flat", "emojione", "noto-blob")
SPLITS = {"train": "train", "val": "valid"}  # the test split is left alone


def read_table(folder: Path) -> list[dict[str, str]]:
    with gzip.open(folder / "emoji.tsv.gz", "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def write_images(
    folder: Path,
    out: Path,
    *,
    size: int = 64,
    languages: Sequence[str] = ("en",),
    styles: Sequence[str] = STYLES,
    limit: int | None = None,
) -> dict[str, int]:
    """Write images and tables; return the number of images of each split. limit: emoji per style."""
    table, counts = read_table(folder), dict.fromkeys(SPLITS.values(), 0)
    lines: dict[str, list[str]] = {name: ["image\tcaption\tlanguage"] for name in counts}
    for name in counts:
        (out / name).mkdir(parents=True, exist_ok=True)
    for style in styles:
        with np.load(folder / f"{style}.npz") as arrays:
            images, rows = arrays["images"][:limit], arrays["row"][:limit]
        for pixels, row in zip(images, rows.tolist(), strict=True):
            emoji = table[row]
            split = SPLITS.get(emoji["split"])
            if split is None:
                continue
            picture, path = Image.new("RGB", pixels.shape[1::-1], "white"), f"{split}/{style}-{row}.png"
            cutout = Image.fromarray(pixels, "RGBA")
            picture.paste(cutout, mask=cutout)
            picture.resize((size, size), Image.Resampling.BICUBIC).save(out / path)
            counts[split] += 1
            lines[split] += [f"{path}\t{emoji[f'name_{code}']}, {style}\t{code}" for code in languages]
    for name, rows_of_split in lines.items():
        (out / f"{name}.tsv").write_text("\n".join(rows_of_split) + "\n", encoding="utf-8")
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--emoji", type=Path, default=data_folder() / "emoji-captions", help="emoji folder")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--size", type=int, default=64, help="pixels per side")
    parser.add_argument("--languages", nargs="+", default=["en"], choices=["en", "ko", "de", "fr"])
    parser.add_argument("--limit", type=int, help="use the first emoji of each style only")
    options = parser.parse_args()
    counts = write_images(
        options.emoji, options.out, size=options.size, languages=options.languages, limit=options.limit
    )
    print(", ".join(f"{count:,} images in {options.out / name}" for name, count in counts.items()))


if __name__ == "__main__":
    main()
