"""The folder in which the code of a page runs: the files and models that the page assumes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from PIL import Image

import glassformer
from tests.interpret.models import tiny_bundle
from tests.recipes.synthetic_data import all_files
from tests.tasks.tiny_models import reversal_model, save_language_model

EXAMPLES = Path(__file__).parents[2] / "examples" / "data"
RECIPE = """job: translate
data: {train: [pairs.tsv]}
model: {d_model: 32, num_heads: 2, d_ff: 64, num_layers: 1}
training: {max_steps: 2, eval_steps: 1, device: cpu}
"""


def create_workspace(folder: Path, page: str) -> None:
    """Create training data, a trained translator and language model, and a recipe, unless the page does."""
    folder.mkdir()
    all_files(folder)
    for data in folder.iterdir():
        if data.is_dir() and f"{data.name}/" not in page:
            shutil.rmtree(data)
    Image.new("L", (28, 28)).save(folder / "digit.png")
    Image.new("RGB", (160, 120)).save(folder / "photo.jpg")
    if "examples/data/" in page:
        shutil.copytree(EXAMPLES, folder / "examples/data")
    if not re.search(r"--out runs/mine(\s|$)", page, re.MULTILINE):
        shutil.copytree(reversal_model().parent, folder / "runs/mine")
    save_language_model(folder / "runs/text/model", max_len=64)
    (folder / "runs/text/recipe.yaml").write_text("job: lm\ndata: {train: [book.txt]}\n")
    if "=bert-base-uncased" in page:
        glassformer.save(tiny_bundle("bert", max_len=128), folder / "bert-base-uncased")
    if not re.search(r"^glassformer recipes \S+ my.yaml", page, re.MULTILINE):
        (folder / "my.yaml").write_text(RECIPE)
