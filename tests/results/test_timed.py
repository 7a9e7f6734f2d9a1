"""A training for a time: level, stopped, gone on with while the rate falls to nothing, over at its time."""

import time

import pytest

from results import timed
from results.place import Place
from results.trained import log

SECONDS, RATE = 5.0, 0.004
SMALL = (
    *("data.length=16", "model.max_len=16", "model.d_model=16", "model.d_ff=32", "model.num_heads=2"),
    *("model.num_layers=1", "training.batch=64", "training.schedule=linear", "training.warmup=10"),
    *("training.log_every=5", "training.validate_every=1000000", "training.samples=0"),
)


@pytest.mark.usefixtures("in_process")
def test_a_run_is_level_then_falls_to_nothing_and_ends_at_its_time(tmp_path, monkeypatch):
    monkeypatch.setattr(timed, "AGAIN", 0.6)
    text = tmp_path / "text.txt"
    text.write_text("abcdefghij" * 300)
    place = Place(data=tmp_path, work=tmp_path / "work", device="cpu")

    def go():
        return timed.train_for(
            place,
            "row",
            "some/1",
            "lm-char-shakespeare-cpu",
            seconds=SECONDS,
            seed=1,
            of="loss",
            changes=(f"data.train=[{text}]", *SMALL),
        )

    began = time.monotonic()
    trained = go()
    assert time.monotonic() - began == pytest.approx(SECONDS, rel=0.5)

    lines = log(trained.folder)
    stop = next(one["step"] for one in lines if one.get("text", "").startswith("stopped at step"))
    assert f"going on from step {stop} of" in " ".join(one.get("text", "") for one in lines)
    rates = {one["step"]: one["lr"] for one in lines if one["kind"] == "step"}
    level = [rate for step, rate in rates.items() if 10 <= step <= stop]
    fall = [rate for step, rate in rates.items() if step > stop]
    assert len(level) > 2 and level == pytest.approx([RATE] * len(level), rel=0.01)
    assert len(fall) > 2 and fall == sorted(fall, reverse=True)
    assert fall[0] < RATE and fall[-1] == pytest.approx(0, abs=RATE / 100)

    def unasked(*words, **_):
        raise AssertionError(words)

    monkeypatch.setattr(timed, "glassformer", unasked)
    assert go() == trained
