"""Whoever else is being written for, a request is answered as if it were alone."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
import torch
from torch import nn

from glassformer.generation import GeneratedToken, GenerationConfig
from glassformer.generation.continuous import Request as Job
from glassformer.generation.continuous import RequestCancelledError, Scheduler
from glassformer.generation.inference_model import prepare_for_inference
from glassformer.inference.slot_cache import SlotBucket
from tests.core.models import VOCAB
from tests.core.models import model_of as core_model
from tests.generation.continuous.requests import Request, alone, requests, send
from tests.generation.test_engine import FAMILIES, model_for
from tests.generation.test_greedy import START

BENT: dict[str, dict[str, Any]] = {
    "alibi": {"position": "alibi"},
    "relative": {"position": "relative"},
    "learned": {"position": "learned"},
    "window": {"position": "rotary", "window": 3},
    "one key head": {"position": "rotary", "num_kv_heads": 1},
    "post": {"wiring": "post"},
}


def same(job: Job, expected: list[Any]) -> None:
    found = job.result(60)
    assert [(text.ids, text.finish_reason) for text in found] == [
        (text.ids, text.finish_reason) for text in expected
    ]
    assert [text.score for text in found] == pytest.approx([text.score for text in expected], abs=1e-4)
    for text, other in zip(found, expected, strict=True):
        assert text.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def crowd(model: nn.Module, asked: list[Request], *, seed: int = 0) -> None:
    """Submit all, a few at a time, among others that leave; every answer must be the lone one."""
    expected = [alone(model, request) for request in asked]
    draw = random.Random(seed)
    writer = Scheduler(model, slots=12, tokens=2000, queue=300)
    jobs: list[Job] = []
    leaving: list[Job] = []
    told: list[list[GeneratedToken]] = [[] for _ in asked]
    for n, (ids, words) in enumerate(asked):
        if draw.random() < 0.4:
            leaver, others = draw.choice(asked)
            leaving.append(send(writer, leaver, **others))
        on_token = told[n].append if words["config"].num_beams == 1 else None
        jobs.append(send(writer, ids, on_token=on_token, **words))
        if draw.random() < 0.3:
            time.sleep(0.004)
        if leaving and draw.random() < 0.5:
            draw.choice(leaving).cancel()
    for job, texts in zip(jobs, expected, strict=True):
        same(job, texts)
    writer.close()
    stats = writer.stats()
    assert stats.rows == stats.waiting == 0 and not writer._runner.busy
    for job, tokens in zip(jobs, told, strict=True):
        _streamed(job, tokens)
    for job in leaving:
        assert job.done


def _streamed(job: Job, tokens: list[GeneratedToken]) -> None:
    """What was told token by token is what was written in the end."""
    if job.searches:
        assert not tokens
        return
    by_row: list[list[int]] = [[] for _ in range(job.rows)]
    for token in tokens:
        by_row[token.row].append(token.id)
    assert sorted(by_row) == sorted(text.ids for text in job.result())


@pytest.mark.parametrize("family", (*FAMILIES, "marian"))
def test_a_crowd_is_answered_as_each_alone(family: str) -> None:
    model, begins = model_for(family)
    begins = {"start_ids": [START, 4]} if family == "marian" else begins
    crowd(prepare_for_inference(model), requests(14, begins))


@pytest.mark.parametrize("name", BENT)
@pytest.mark.parametrize("shape", ["decoder_only", "encoder_decoder"])
def test_positions_and_windows_of_every_kind(shape: str, name: str) -> None:
    model = core_model(shape, **BENT[name])
    begins = {} if shape == "decoder_only" else {"start_ids": [1]}
    # long enough to outgrow a shelf, and, where there is a table of 32 positions, to come to its end
    crowd(prepare_for_inference(model), requests(8, begins, vocab=VOCAB, seed=1, most=60), seed=1)


@pytest.mark.parametrize("family", ["original", "llama", "mistral"])
def test_rounded_weights_give_the_same_bits_whoever_is_there(family: str) -> None:
    model, begins = model_for(family)
    rounded = prepare_for_inference(model, "int8")
    asked = requests(12, begins, seed=2)
    writer = Scheduler(rounded, slots=16, queue=100)
    by_itself = [send(writer, ids, **words).result(60) for ids, words in asked]
    together = [send(writer, ids, **words) for ids, words in asked]
    assert [job.result(60) for job in together] == by_itself
    writer.close()


def test_long_prompts_are_read_in_pieces_while_others_write(monkeypatch: pytest.MonkeyPatch) -> None:
    from glassformer.generation.continuous import runner

    monkeypatch.setattr(runner, "CHUNK", 5)
    for name in ("alibi", "window", "relative"):
        model = prepare_for_inference(core_model("decoder_only", **BENT[name]))
        crowd(model, requests(12, {}, vocab=VOCAB, seed=3))


def test_beams_of_a_long_text_forget_what_none_descends_from(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten = []
    forget = SlotBucket.compact

    def counted(self: SlotBucket, slot: Any) -> None:
        before = slot.filled
        forget(self, slot)
        forgotten.append(before - slot.filled)

    monkeypatch.setattr(SlotBucket, "compact", counted)
    model, _ = model_for("llama")
    words = {
        "config": GenerationConfig(num_beams=4, num_return_sequences=4, max_new_tokens=150),
        "eos_token_id": None,
    }
    crowd(prepare_for_inference(model), [([3, 4, 5 + n], words) for n in range(3)])
    assert max(forgotten) > 10


def test_a_cancelled_request_frees_its_rows_at_once() -> None:
    model, _ = model_for("gpt2")
    words: dict[str, Any] = {"config": GenerationConfig(max_new_tokens=40), "eos_token_id": None}
    writer = Scheduler(prepare_for_inference(model), slots=1, queue=4)
    first: list[GeneratedToken] = []

    def slowly(token: GeneratedToken) -> None:
        first.append(token)
        time.sleep(0.05)

    stuck = send(writer, [3], on_token=slowly, **words)
    waiting, gone = (
        send(writer, [4], **words),
        send(writer, [5], **words),
    )
    while not first:
        time.sleep(0.001)
    gone.cancel()
    stuck.cancel()
    same(waiting, alone(model, ([4], words)))
    for job in (stuck, gone):
        with pytest.raises(RequestCancelledError):
            job.result(5)
    assert len(first) < 40
    writer.close()


def test_likeliest_tokens_are_those_of_the_model() -> None:
    model, _ = model_for("gpt2")
    told: list[GeneratedToken] = []
    writer = Scheduler(model)
    settings = GenerationConfig(max_new_tokens=4)
    found = send(
        writer, [3, 4], config=settings, eos_token_id=None, top_logprobs=3, on_token=told.append
    ).result(10)[0]
    drawn = GenerationConfig(max_new_tokens=4, do_sample=True, top_k=2, seed=1)
    few: list[GeneratedToken] = []
    send(writer, [3, 4], config=drawn, eos_token_id=None, top_logprobs=3, on_token=few.append).result(10)
    writer.close()
    with torch.no_grad():
        logprobs = model(torch.tensor([[3, 4, *found.ids]]))[0, 1:-1].log_softmax(-1)
    for token, row in zip(told, logprobs, strict=True):
        best = row.topk(3)
        assert [one for one, _ in token.top] == best.indices.tolist()
        assert [chance for _, chance in token.top] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert token.top[0] == pytest.approx((token.id, token.logprob))
    assert [len(token.top) for token in few] == [2] * 4  # what cannot be drawn is not told


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("family", ["original", "t5", "gpt2", "llama", "mistral", "falcon", "lstm"])
def test_a_crowd_on_a_gpu(family: str) -> None:
    model, begins = model_for(family)
    model.cuda()
    crowd(prepare_for_inference(model), requests(24, begins))
