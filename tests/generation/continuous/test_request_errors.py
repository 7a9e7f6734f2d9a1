"""An error in one request is reported to its caller and does not affect other requests."""

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
from tests.generation.continuous.requests import generate_alone, send
from tests.generation.test_engine import model_for

PARAMS: dict[str, Any] = {"config": GenerationConfig(max_new_tokens=8), "eos_token_id": None}


@pytest.mark.parametrize("family", ["gpt2", "original"])
@pytest.mark.parametrize("beams", [1, 3])
def test_non_finite_scores_fail_only_their_request(family: str, beams: int) -> None:
    model, start_kwargs = model_for(family)
    with torch.no_grad():
        (model.src_embed if start_kwargs else model.embed).token.weight[70] = torch.nan
    kwargs = {
        "config": GenerationConfig(max_new_tokens=8, num_beams=beams),
        "eos_token_id": None,
        **start_kwargs,
    }
    scheduler = Scheduler(prepare_for_inference(model), slots=12)
    for _ in range(3):  # later requests reuse the slots of the failed one
        valid = [([3 + n, 9], kwargs) for n in range(3)]
        jobs = [
            send(scheduler, ids, **params) for ids, params in (*valid[:1], ([3, 70, 4], kwargs), *valid[1:])
        ]
        with pytest.raises(NonFiniteError):
            jobs.pop(1).result(10)
        for job, request in zip(jobs, valid, strict=True):
            assert [text.ids for text in job.result(10)] == [
                text.ids for text in generate_alone(model, request)
            ]
    scheduler.close()


@pytest.mark.parametrize("broken", ["step", "read_prompts", "join"])
def test_exception_fails_affected_requests_and_the_scheduler_continues(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = model_for("gpt2")
    scheduler = Scheduler(prepare_for_inference(model))
    original, calls = getattr(SlotBatch, broken), [0]

    def fail_once(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            raise RuntimeError("out of luck\nand more")
        return original(*args)

    monkeypatch.setattr(SlotBatch, broken, fail_once)
    with pytest.raises(GenerationFailedError) as raised:
        send(scheduler, [3, 4], **PARAMS).result(10)
    assert raised.value.cause == "out of luck"
    assert (
        send(scheduler, [3, 4], **PARAMS).result(10)[0].ids == generate_alone(model, ([3, 4], PARAMS))[0].ids
    )
    scheduler.close()


def test_unusable_model_fails_requests_until_it_is_fixed() -> None:
    model, _ = model_for("gpt2")
    scheduler = Scheduler(model)
    hook = model.decoder.register_forward_hook(lambda *_: None)
    jobs = [send(scheduler, [3], **PARAMS) for _ in range(3)]
    for job in jobs:
        with pytest.raises(GenerationFailedError):
            job.result(10)
    hook.remove()
    assert send(scheduler, [3], **PARAMS).result(10)
    scheduler.close()


def test_pending_requests_fail_when_the_program_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The main thread has ended while others still wait for results."""
    model, _ = model_for("gpt2")
    scheduler, go = Scheduler(model, slots=1), threading.Event()
    jobs = [send(scheduler, [3], on_token=lambda _: go.wait(10), **PARAMS) for _ in range(3)]
    while scheduler.stats().rows == 0:
        time.sleep(0.001)
    monkeypatch.setattr(threading, "main_thread", lambda: threading.Thread())  # one that does not run
    go.set()
    for job in jobs:
        with pytest.raises(SchedulerClosedError):
            job.result(5)
    with pytest.raises(SchedulerClosedError):
        send(scheduler, [3], **PARAMS)


def test_one_caller_cannot_take_all_slots() -> None:
    """One caller has at most three quarters of the slots; others are served before the rest of it."""
    model, _ = model_for("gpt2")
    kwargs = {"config": GenerationConfig(max_new_tokens=30), "eos_token_id": None}
    order: list[str] = []
    scheduler, go = Scheduler(model, slots=4), threading.Event()

    def submit(caller: str, wait: bool = False) -> Request:
        return send(
            scheduler,
            [3],
            caller=caller,
            on_done=lambda _: order.append(caller),
            on_token=(lambda _: go.wait(10)) if wait else None,
            **kwargs,
        )

    greedy = [submit("greedy", wait=n == 0) for n in range(12)]
    while scheduler.stats().rows == 0:
        time.sleep(0.001)
    modest = [submit("modest") for _ in range(2)]
    go.set()
    for job in (*greedy, *modest):
        job.result(10)
    scheduler.close()
    # three requests of the first caller run, so the other's first starts at once and its second after them
    assert order.index("modest") <= 3 and "modest" in order[4:8], order


def test_failing_callback_cancels_its_request() -> None:
    model, _ = model_for("gpt2")
    scheduler = Scheduler(model)

    def broken(_: object) -> None:
        raise RuntimeError("callback failed")

    lost = send(scheduler, [3], on_done=broken, on_token=broken, **PARAMS)
    with pytest.raises(RequestCancelledError):
        lost.result(10)
    stops = {**PARAMS, "config": GenerationConfig(max_new_tokens=8, stop_strings=("x",)), "decode": broken}
    with pytest.raises(GenerationFailedError):
        send(scheduler, [3], **stops).result(10)
    assert send(scheduler, [3], **PARAMS).result(10)
    scheduler.close()


def test_invalid_requests_are_rejected() -> None:
    model, start_kwargs = model_for("original")
    scheduler = Scheduler(model, slots=2, tokens=40, queue=1)
    request = {**PARAMS, **start_kwargs}
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
            send(scheduler, ids, **{**request, **changes})
    scheduler.close()
    with pytest.raises(EmptyInputError):
        text = Scheduler(core_model("decoder_only", position="learned"))
        try:
            with pytest.raises(InputTooLongError):
                send(text, [3] * 33, **PARAMS)
            assert len(send(text, [3] * 30, **PARAMS).result(10)[0].ids) == 3  # the table ends there
            send(text, [], **PARAMS)
        finally:
            text.close()
    with pytest.raises(UnsupportedError):
        Scheduler(core_model("encoder_only"))
    with pytest.raises(InvalidValueError):
        Scheduler(model, slots=0)


def test_full_queue_rejects_requests_until_it_empties() -> None:
    model, _ = model_for("gpt2")
    scheduler, go = Scheduler(model, slots=1, queue=2), threading.Event()
    slow = send(scheduler, [3], on_token=lambda _: go.wait(10), **PARAMS)
    while scheduler.stats().rows == 0:
        time.sleep(0.001)
    waiting = [send(scheduler, [4], **PARAMS) for _ in range(2)]
    with pytest.raises(SchedulerFullError):
        send(scheduler, [5], **PARAMS)
    assert scheduler.stats().waiting == 2
    go.set()
    for job in (slow, *waiting):
        assert len(job.result(10)[0].ids) == 8
    stats = scheduler.stats()
    assert (stats.waiting, stats.requests, stats.new_tokens, stats.prompt_tokens) == (0, 3, 24, 3)
    scheduler.close()


@pytest.mark.parametrize("drain", [True, False])
@pytest.mark.parametrize("family", ["gpt2", "lstm-text"])
def test_closing_drains_or_drops_accepted_requests(family: str, drain: bool) -> None:
    model, _ = model_for(family)
    started = threading.Event()
    reported: list[list[GenerationOutput] | Exception] = []
    scheduler = Scheduler(model, slots=1)

    def slowly(_: GeneratedToken) -> None:
        started.set()
        time.sleep(0.01)

    jobs = [send(scheduler, [3], on_done=reported.append, on_token=slowly, **PARAMS) for _ in range(2)]
    started.wait(10)
    scheduler.close(drain=drain)
    assert not scheduler._thread.is_alive() and len(reported) == 2 and all(job.done for job in jobs)
    assert all(isinstance(result, list if drain else SchedulerClosedError) for result in reported)
    with pytest.raises(SchedulerClosedError):
        send(scheduler, [3], **PARAMS)


def test_finished_requests_leave_no_slots() -> None:
    model, start_kwargs = model_for("original")
    scheduler = Scheduler(model, slots=8)
    for beams in (1, 2):
        kwargs = {**PARAMS, **start_kwargs, "config": GenerationConfig(max_new_tokens=40, num_beams=beams)}
        for job in [send(scheduler, [3 + n] * (1 + 9 * n), **kwargs) for n in range(6)]:
            job.result(20)
    scheduler.close()
    batch: Any = scheduler._runner.batch  # type: ignore[union-attr]
    assert not batch.cache.buckets and not batch.sources.buckets
