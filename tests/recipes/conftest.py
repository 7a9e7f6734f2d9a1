"""The command line in this process, in a folder with made-up data and base models."""

import pytest
import torch

import glassformer
from glassformer.bundle import Bundle
from tests.cli.conftest import run
from tests.interpret.models import tiny_bundle
from tests.recipes.synthetic_data import all_files

__all__ = ["run"]


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory):
    folder = all_files(tmp_path_factory.mktemp("made-up"))
    glassformer.save(tiny_bundle("bert", max_len=128), folder / "bert-base-cased")
    glassformer.save(tiny_bundle("t5"), folder / "t5-small")
    glassformer.save(tiny_bundle("vit"), folder / "dinov2-small")
    for name in ("vq-emoji", "vq-digits"):
        glassformer.save(Bundle(model=glassformer.tiny("vq_model", image_size=16)), folder / name)
    return folder


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
