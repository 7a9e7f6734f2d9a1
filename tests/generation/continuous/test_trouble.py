"""What goes wrong for one request is told to its caller, and nobody else hears of it."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

from glassformer.errors import (
    EmptyInputError,
    GlassformerError,
    InputTooLongError,
    InvalidValueError,
    MissingValueError,
    NonFiniteError,
    UnsupportedError,
)
from glassformer.generation import GeneratedToken, GenerationConfig, GenerationOutput
from glassformer.generation.continuous import (
    GenerationFailedError,
    Request,
    RequestCancelledError,
    RequestTooLargeError,
    Scheduler,
    SchedulerClosedError,
    SchedulerFullError,
)
from glassformer.generation.continuous.runner import SlotBatch
from glassformer.generation.inference_model import prepare_for_inference
from tests.core.models import model_of as core_model
from tests.generation.continuous.requests import alone, send
from tests.generation.test_engine import model_for

WORDS: dict[str, Any] = {"config": GenerationConfig(max_new_tokens=8), "eos_token_id": None}


@pytest.mark.parametrize("family", ["gpt2", "original"])
@pytest.mark.parametrize("beams", [1, 3])
def test_numbers_that_are_none_stay_with_their_request(family: str, beams: int) -> None:
    model, begins = model_for(family)
    with torch.no_grad():
        (model.src_embed if begins else model.embed).token.weight[70] = torch.nan
    words = {"config": GenerationConfig(max_new_tokens=8, num_beams=beams), "eos_token_id": None, **begins}
    writer = Scheduler(prepare_for_inference(model), slots=12)
    for _ in range(3):  # the later ones stand where the broken one stood
        sound = [([3 + n, 9], words) for n in range(3)]
        jobs = [send(writer, ids, **given) for ids, given in (*sound[:1], ([3, 70, 4], words), *sound[1:])]
        with pytest.raises(NonFiniteError):
            jobs.pop(1).result(10)
        for job, request in zip(jobs, sound, strict=True):
            assert [text.ids for text in job.result(10)] == [text.ids for text in alone(model, request)]
    writer.close()


@pytest.mark.parametrize("broken", ["step", "read_prompts", "join"])
def test_a_crash_fails_those_it_concerns_and_the_writer_goes_on(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = model_for("gpt2")
    writer = Scheduler(prepare_for_inference(model))
    whole, times = getattr(SlotBatch, broken), [0]

    def breaks_once(*given: Any) -> Any:
        times[0] += 1
        if times[0] == 1:
            raise RuntimeError("the machine is on fire\nand more")
        return whole(*given)

    monkeypatch.setattr(SlotBatch, broken, breaks_once)
    with pytest.raises(GenerationFailedError) as raised:
        send(writer, [3, 4], **WORDS).result(10)
    assert raised.value.cause == "the machine is on fire"
    assert send(writer, [3, 4], **WORDS).result(10)[0].ids == alone(model, ([3, 4], WORDS))[0].ids
    writer.close()


def test_a_model_that_cannot_be_begun_says_why_and_recovers() -> None:
    model, _ = model_for("gpt2")
    writer = Scheduler(model)
    hook = model.decoder.register_forward_hook(lambda *_: None)
    jobs = [send(writer, [3], **WORDS) for _ in range(3)]
    for job in jobs:
        with pytest.raises(GenerationFailedError):
            job.result(10)
    hook.remove()
    assert send(writer, [3], **WORDS).result(10)
    writer.close()


def test_nobody_waits_for_a_writer_that_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the program ends while its threads still wait."""
    model, _ = model_for("gpt2")
    writer, go = Scheduler(model, slots=1), threading.Event()
    jobs = [send(writer, [3], on_token=lambda _: go.wait(10), **WORDS) for _ in range(3)]
    while writer.stats().rows == 0:
        time.sleep(0.001)
    monkeypatch.setattr(threading, "main_thread", lambda: threading.Thread())  # one that does not run
    go.set()
    for job in jobs:
        with pytest.raises(SchedulerClosedError):
            job.result(5)
    with pytest.raises(SchedulerClosedError):
        send(writer, [3], **WORDS)


def test_who_asks_for_much_leaves_room_for_others() -> None:
    """One caller has at most three quarters of the slots; others are served before the rest of it."""
    model, _ = model_for("gpt2")
    words = {"config": GenerationConfig(max_new_tokens=30), "eos_token_id": None}
    order: list[str] = []
    writer, go = Scheduler(model, slots=4), threading.Event()

    def ask(caller: str, wait: bool = False) -> Request:
        return send(
            writer,
            [3],
            caller=caller,
            on_done=lambda _: order.append(caller),
            on_token=(lambda _: go.wait(10)) if wait else None,
            **words,
        )

    greedy = [ask("greedy", wait=n == 0) for n in range(12)]
    while writer.stats().rows == 0:
        time.sleep(0.001)
    modest = [ask("modest") for _ in range(2)]
    go.set()
    for job in (*greedy, *modest):
        job.result(10)
    writer.close()
    # with three texts of the one under way, the other's first goes beside them, its second after them
    assert order.index("modest") <= 3 and "modest" in order[4:8], order


def test_a_listener_that_fails_is_gone() -> None:
    model, _ = model_for("gpt2")
    writer = Scheduler(model)

    def broken(_: object) -> None:
        raise RuntimeError("the line is dead")

    lost = send(writer, [3], on_done=broken, on_token=broken, **WORDS)
    with pytest.raises(RequestCancelledError):
        lost.result(10)
    stops = {**WORDS, "config": GenerationConfig(max_new_tokens=8, stop_strings=("x",)), "decode": broken}
    with pytest.raises(GenerationFailedError):
        send(writer, [3], **stops).result(10)
    assert send(writer, [3], **WORDS).result(10)
    writer.close()


def test_what_is_too_much_is_refused_in_a_sentence() -> None:
    model, begins = model_for("original")
    writer = Scheduler(model, slots=2, tokens=40, queue=1)
    request = {**WORDS, **begins}
    cases: tuple[tuple[list[int], dict[str, Any], type[GlassformerError]], ...] = (
        ([3], {"config": GenerationConfig(num_beams=3, max_new_tokens=8)}, RequestTooLargeError),
        ([3], {"config": GenerationConfig(max_new_tokens=39)}, RequestTooLargeError),
        ([3, -1], {}, InvalidValueError),
        ([3, 10**9], {}, InvalidValueError),
        ([3], {"prefix_ids": [10**6]}, InvalidValueError),
        ([3], {"config": GenerationConfig()}, MissingValueError),
    )
    for ids, changes, error in cases:
        with pytest.raises(error):
            send(writer, ids, **{**request, **changes})
    writer.close()
    with pytest.raises(EmptyInputError):
        text = Scheduler(core_model("decoder_only", position="learned"))
        try:
            with pytest.raises(InputTooLongError):
                send(text, [3] * 33, **WORDS)
            assert len(send(text, [3] * 30, **WORDS).result(10)[0].ids) == 3  # the table ends there
            send(text, [], **WORDS)
        finally:
            text.close()
    with pytest.raises(UnsupportedError):
        Scheduler(core_model("encoder_only"))
    with pytest.raises(InvalidValueError):
        Scheduler(model, slots=0)


def test_a_full_queue_says_so_and_empties() -> None:
    model, _ = model_for("gpt2")
    writer, go = Scheduler(model, slots=1, queue=2), threading.Event()
    slow = send(writer, [3], on_token=lambda _: go.wait(10), **WORDS)
    while writer.stats().rows == 0:
        time.sleep(0.001)
    waiting = [send(writer, [4], **WORDS) for _ in range(2)]
    with pytest.raises(SchedulerFullError):
        send(writer, [5], **WORDS)
    assert writer.stats().waiting == 2
    go.set()
    for job in (slow, *waiting):
        assert len(job.result(10)[0].ids) == 8
    stats = writer.stats()
    assert (stats.waiting, stats.requests, stats.new_tokens, stats.prompt_tokens) == (0, 3, 24, 3)
    writer.close()


@pytest.mark.parametrize("drain", [True, False])
@pytest.mark.parametrize("family", ["gpt2", "lstm-text"])
def test_closing_finishes_what_was_taken_or_lets_it_go(family: str, drain: bool) -> None:
    model, _ = model_for(family)
    begun = threading.Event()
    told: list[list[GenerationOutput] | Exception] = []
    writer = Scheduler(model, slots=1)

    def slowly(_: GeneratedToken) -> None:
        begun.set()
        time.sleep(0.01)

    jobs = [send(writer, [3], on_done=told.append, on_token=slowly, **WORDS) for _ in range(2)]
    begun.wait(10)
    writer.close(drain=drain)
    assert not writer._thread.is_alive() and len(told) == 2 and all(job.done for job in jobs)
    assert all(isinstance(one, list if drain else SchedulerClosedError) for one in told)
    with pytest.raises(SchedulerClosedError):
        send(writer, [3], **WORDS)


def test_nothing_is_left_behind() -> None:
    model, begins = model_for("original")
    writer = Scheduler(model, slots=8)
    for beams in (1, 2):
        words = {**WORDS, **begins, "config": GenerationConfig(max_new_tokens=40, num_beams=beams)}
        for job in [send(writer, [3 + n] * (1 + 9 * n), **words) for n in range(6)]:
            job.result(20)
    writer.close()
    batch: Any = writer._runner.batch  # type: ignore[union-attr]
    assert not batch.cache.buckets and not batch.sources.buckets
