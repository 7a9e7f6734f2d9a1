"""The folder in which a page's code runs: the files and models that a reader is said to have."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from PIL import Image

import glassformer
from tests.interpret.models import bundle
from tests.recipes.made_up import all_files
from tests.tasks.reversing import reverser, speaker

RECIPE = """job: translate
data: {train: [pairs.tsv]}
model: {d_model: 32, num_heads: 2, d_ff: 64, num_layers: 1}
training: {steps: 2, validate_every: 1, device: cpu}
"""


def prepare(place: Path, page: str) -> None:
    """Data under the names the pages use; and what the page itself does not make: a run of a translator,
    one of a language model, and a recipe."""
    all_files(place)
    for folder in place.iterdir():
        # a ready recipe's own data is with the reader only where the page says so
        if folder.is_dir() and f"{folder.name}/" not in page:
            shutil.rmtree(folder)
    Image.new("L", (28, 28)).save(place / "digit.png")
    if not re.search(r"--out runs/mine(\s|$)", page, re.MULTILINE):
        shutil.copytree(reverser().parent, place / "runs/mine")
    speaker(place / "runs/text/model", max_len=64)
    (place / "runs/text/recipe.yaml").write_text("job: lm\ndata: {train: [book.txt]}\n")
    if "=bert-base-uncased" in page:
        glassformer.save(bundle("bert", max_len=128), place / "bert-base-uncased")
    if not re.search(r"^glassformer recipes \S+ my.yaml", page, re.MULTILINE):
        (place / "my.yaml").write_text(RECIPE)
