"""The command line in this process, in a folder with made-up data."""

import pytest
import torch

from tests.cli.conftest import run
from tests.recipes.synthetic_data import all_files

__all__ = ["run"]


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory):
    return all_files(tmp_path_factory.mktemp("made-up"))


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
