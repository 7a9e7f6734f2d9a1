"""Memory that the machine does not have is the asker's to know, not a bug."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from glassformer.cli.main import main


@pytest.mark.parametrize("take", [torch.empty, np.empty, bytearray])
def test_memory_that_is_refused_is_a_sentence(
    take: Callable[[int], object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def env() -> None:
        take(10**17)

    monkeypatch.setattr("glassformer.cli.env.env", env)
    with pytest.raises(SystemExit) as ended:
        main(["env"])
    told = capsys.readouterr().err
    assert ended.value.code == 2 and told.startswith("error: the memory") and told.count("\n") == 1
