"""Which models `glassformer explore` shows."""

from pathlib import Path

import pytest

from glassformer.cli.explore import models_with_weights
from glassformer.pretrained import NoModelYetError


def test_runs_without_a_model_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.yaml").write_text("job: translate\n")
    assert models_with_weights(["pocket-lm", str(run), "pocket"]) == ["pocket-lm", "pocket"]
    assert "has no model yet" in capsys.readouterr().err
    with pytest.raises(NoModelYetError):
        models_with_weights([str(run)])
