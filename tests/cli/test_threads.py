"""--threads beyond what a system gives is a sentence, from every verb, before anything runs on them."""

import pytest
import torch

from tests.tasks.reversing import reverser


@pytest.mark.parametrize("words", [["translate", "MODEL", "red"], ["serve", "MODEL", "--port", "0"]])
def test_too_many_threads(run, capsys, words):
    model, before = reverser(), torch.get_num_threads()
    capsys.readouterr()
    done = run(*(model if word == "MODEL" else word for word in words), "--threads", 1_000_000)
    assert done.code == 2 and not done.out and torch.get_num_threads() == before
    assert "1,000,000" in done.err and "at most 1,024" in done.err and len(done.err.splitlines()) == 1
