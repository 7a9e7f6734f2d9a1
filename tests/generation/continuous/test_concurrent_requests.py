"""Requests in a shared batch get the same outputs as alone."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
import torch
from torch import nn

import glassformer
from glassformer.core import spec
from glassformer.core.inputs import Memory
from glassformer.errors import GlassformerError, UnsupportedError
from glassformer.generation import GeneratedToken, GenerationConfig, GenerationParams, generate
from glassformer.generation.continuous import Request as Job
from glassformer.generation.continuous import RequestCancelledError, Scheduler
from glassformer.generation.inference_model import prepare_for_inference
from glassformer.generation.prompt import Prompt
from glassformer.inference.slot_cache import SlotBucket
from glassformer.verify import perturb_parameters
from tests.core.models import VOCAB
from tests.core.models import model_of as core_model
from tests.generation.continuous.requests import Request, generate_alone, requests, send
from tests.generation.test_engine import FAMILIES, model_for
from tests.generation.test_greedy import START, generate_with

VARIANTS: dict[str, dict[str, Any]] = {
    "alibi": {"position": "alibi"},
    "relative": {"position": "relative"},
    "learned": {"position": "learned"},
    "window": {"position": "rotary", "window": 3},
    "one key head": {"position": "rotary", "num_kv_heads": 1},
    "post": {"wiring": "post"},
    "qk norm": {"position": "rotary", "num_kv_heads": 2, "qk_norm": spec.RMSNormSpec(eps=1e-3)},
}


def assert_outputs_match(job: Job, expected: list[Any]) -> None:
    outputs = job.result(60)
    assert [(output.ids, output.finish_reason) for output in outputs] == [
        (output.ids, output.finish_reason) for output in expected
    ]
    assert [output.score for output in outputs] == pytest.approx(
        [output.score for output in expected], abs=1e-4
    )
    for output, reference in zip(outputs, expected, strict=True):
        assert output.logprobs == pytest.approx(reference.logprobs, abs=1e-4)


def check_concurrent_requests(model: nn.Module, submitted: list[Request], *, seed: int = 0) -> None:
    """Submit requests at random times, among others that are cancelled; compare with each alone."""
    expected = [generate_alone(model, request) for request in submitted]
    rng = random.Random(seed)
    scheduler = Scheduler(model, slots=12, tokens=2000, queue=300)
    jobs: list[Job] = []
    cancelled: list[Job] = []
    reported: list[list[GeneratedToken]] = [[] for _ in submitted]
    for n, (ids, kwargs) in enumerate(submitted):
        if rng.random() < 0.4:
            other_ids, other_kwargs = rng.choice(submitted)
            cancelled.append(send(scheduler, other_ids, **other_kwargs))
        on_token = reported[n].append if kwargs["config"].num_beams == 1 else None
        jobs.append(send(scheduler, ids, on_token=on_token, **kwargs))
        if rng.random() < 0.3:
            time.sleep(0.004)
        if cancelled and rng.random() < 0.5:
            rng.choice(cancelled).cancel()
    for job, texts in zip(jobs, expected, strict=True):
        assert_outputs_match(job, texts)
    scheduler.close()
    stats = scheduler.stats()
    assert stats.rows == stats.waiting == 0 and not scheduler._runner.busy
    for job, tokens in zip(jobs, reported, strict=True):
        _check_streamed(job, tokens)
    for job in cancelled:
        assert job.done


def _check_streamed(job: Job, tokens: list[GeneratedToken]) -> None:
    """The reported tokens are those of the outputs."""
    if job.searches:
        assert not tokens
        return
    by_row: list[list[int]] = [[] for _ in range(job.rows)]
    for token in tokens:
        by_row[token.row].append(token.id)
    assert sorted(by_row) == sorted(text.ids for text in job.result())


@pytest.mark.parametrize("family", (*FAMILIES, "marian"))
def test_concurrent_requests_match_each_alone(family: str) -> None:
    model, start_kwargs = model_for(family)
    start_kwargs = {"start_ids": [START, 4]} if family == "marian" else start_kwargs
    check_concurrent_requests(prepare_for_inference(model), requests(14, start_kwargs))


SHAPES = [("decoder_only", name) for name in VARIANTS]
SHAPES += [("encoder_decoder", name) for name in ("relative", "post")]


@pytest.mark.parametrize(("shape", "name"), SHAPES)
def test_every_position_encoding_and_window(shape: str, name: str) -> None:
    model = core_model(shape, **VARIANTS[name])
    start_kwargs = {} if shape == "decoder_only" else {"start_ids": [1]}
    # long enough to outgrow a slot bucket and to reach the end of a table of 32 positions
    check_concurrent_requests(
        prepare_for_inference(model), requests(8, start_kwargs, vocab=VOCAB, seed=1, most=60), seed=1
    )


@pytest.mark.parametrize("encoded", [False, True])
def test_images_and_their_memories(encoded: bool) -> None:
    """Sources that are not text join the same batch, encoded or not."""
    torch.manual_seed(0)
    model = glassformer.tiny("vision_encoder_decoder").eval()
    perturb_parameters(model)
    prepared, images = prepare_for_inference(model), torch.randn(10, 1, 3, 16, 16)
    settings = [kwargs for _, kwargs in requests(len(images), {"start_ids": [1, 4]})]
    expected = [
        generate_with(prepared, x, None, **kwargs)[0] for x, kwargs in zip(images, settings, strict=True)
    ]
    assert len({tuple(texts[0].ids) for texts in expected}) > 3
    with torch.inference_mode():
        sources = [Memory.of(model.encode(x)) if encoded else x for x in images]
    scheduler = Scheduler(prepared, slots=12, tokens=2000, queue=300)
    jobs = [
        send(scheduler, Prompt.of_source(source, 17), **kwargs)
        for source, kwargs in zip(sources, settings, strict=True)
    ]
    for job, texts in zip(jobs, expected, strict=True):
        assert_outputs_match(job, texts)
    assert scheduler.stats().steps < sum(len(texts[0].logprobs) for texts in expected), "they share steps"
    for wrong in ([3, 4], images[0, 0]):
        with pytest.raises(GlassformerError):
            send(scheduler, wrong, **settings[0])
    scheduler.close()
    with pytest.raises(UnsupportedError, match="pass the source itself"):
        generate(prepared, [Prompt.of_source(images[0], 17)], GenerationParams(**settings[0]))
    decoder = Scheduler(model_for("llama")[0])
    with pytest.raises(UnsupportedError, match="a source"):
        send(decoder, Prompt.of_source(images[0], 17), **settings[0])
    decoder.close()


@pytest.mark.parametrize("family", ["original", "llama", "mistral"])
def test_int8_outputs_do_not_depend_on_other_requests(family: str) -> None:
    model, start_kwargs = model_for(family)
    quantized = prepare_for_inference(model, "int8")
    submitted = requests(12, start_kwargs, seed=2)
    scheduler = Scheduler(quantized, slots=16, queue=100)
    sequential = [send(scheduler, ids, **kwargs).result(60) for ids, kwargs in submitted]
    concurrent = [send(scheduler, ids, **kwargs) for ids, kwargs in submitted]
    assert [job.result(60) for job in concurrent] == sequential
    scheduler.close()


def test_long_prompts_are_prefilled_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    from glassformer.generation.continuous import runner

    monkeypatch.setattr(runner, "CHUNK", 5)
    for name in ("alibi", "window", "relative"):
        model = prepare_for_inference(core_model("decoder_only", **VARIANTS[name]))
        check_concurrent_requests(model, requests(12, {}, vocab=VOCAB, seed=3))


def test_beam_slots_are_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    removed = []
    compact = SlotBucket.compact

    def counted(self: SlotBucket, slot: Any) -> None:
        before = slot.filled
        compact(self, slot)
        removed.append(before - slot.filled)

    monkeypatch.setattr(SlotBucket, "compact", counted)
    model, _ = model_for("llama")
    kwargs = {
        "config": GenerationConfig(num_beams=4, num_return_sequences=4, max_new_tokens=150),
        "eos_token_id": None,
    }
    check_concurrent_requests(prepare_for_inference(model), [([3, 4, 5 + n], kwargs) for n in range(3)])
    assert max(removed) > 10


def test_cancelled_request_frees_its_rows() -> None:
    model, _ = model_for("gpt2")
    kwargs: dict[str, Any] = {"config": GenerationConfig(max_new_tokens=40), "eos_token_id": None}
    scheduler = Scheduler(prepare_for_inference(model), slots=1, queue=4)
    first: list[GeneratedToken] = []

    def slowly(token: GeneratedToken) -> None:
        first.append(token)
        time.sleep(0.05)

    running = send(scheduler, [3], on_token=slowly, **kwargs)
    waiting, queued = (
        send(scheduler, [4], **kwargs),
        send(scheduler, [5], **kwargs),
    )
    while not first:
        time.sleep(0.001)
    queued.cancel()
    running.cancel()
    assert_outputs_match(waiting, generate_alone(model, ([4], kwargs)))
    for job in (running, queued):
        with pytest.raises(RequestCancelledError):
            job.result(5)
    assert len(first) < 40
    scheduler.close()


def test_top_logprobs_match_the_model() -> None:
    model, _ = model_for("gpt2")
    reported: list[GeneratedToken] = []
    scheduler = Scheduler(model)
    settings = GenerationConfig(max_new_tokens=4)
    output = send(
        scheduler, [3, 4], config=settings, eos_token_id=None, top_logprobs=3, on_token=reported.append
    ).result(10)[0]
    sampling = GenerationConfig(max_new_tokens=4, do_sample=True, top_k=2, seed=1)
    sampled: list[GeneratedToken] = []
    send(
        scheduler, [3, 4], config=sampling, eos_token_id=None, top_logprobs=3, on_token=sampled.append
    ).result(10)
    scheduler.close()
    with torch.no_grad():
        logprobs = model(torch.tensor([[3, 4, *output.ids]]))[0, 1:-1].log_softmax(-1)
    for token, row in zip(reported, logprobs, strict=True):
        best = row.topk(3)
        assert [top_id for top_id, _ in token.top] == best.indices.tolist()
        assert [logprob for _, logprob in token.top] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert token.top[0] == pytest.approx((token.id, token.logprob))
    assert [len(token.top) for token in sampled] == [2] * 4  # suppressed tokens are left out


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("family", ["original", "t5", "gpt2", "llama", "mistral", "falcon", "lstm"])
def test_concurrent_requests_on_a_gpu(family: str) -> None:
    model, start_kwargs = model_for(family)
    model.cuda()
    check_concurrent_requests(prepare_for_inference(model), requests(24, start_kwargs))
