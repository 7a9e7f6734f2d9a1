"""OpenAI's client works, and its results are the library's."""

from __future__ import annotations

import openai
import pytest
import torch

from glassformer.tokenization import encode_tagged
from tests.server.harness import LANGUAGES, Server

PROMPT = "the cat sat on"


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_models(client, server):
    assert [one.id for one in client.models.list()][:2] == ["translator", "writer"]
    assert client.models.retrieve("writer").owned_by == "glassformer"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.code == "model_not_found"


def test_completions_match_generate(client, bundles):
    prompts = [PROMPT, "안녕", "dog 🙂"]
    wanted = bundles["writer"].generate(prompts, max_new_tokens=24)
    found = client.completions.create(model="writer", prompt=prompts, max_tokens=24, temperature=0)
    assert [one.text for one in found.choices] == wanted
    assert {one.finish_reason for one in found.choices} <= {"length", "stop"}
    read = sum(len(bundles["writer"].tokenizer.encode(one).ids) for one in prompts)
    assert found.usage.prompt_tokens == read
    assert found.usage.total_tokens == read + found.usage.completion_tokens


def test_token_ids_echo_stop_and_n(client, bundles):
    tokenizer = bundles["writer"].tokenizer
    ids = tokenizer.encode(PROMPT).ids
    (whole,) = bundles["writer"].generate([PROMPT], max_new_tokens=24)
    for given in (ids, [ids], PROMPT):
        found = client.completions.create(
            model="writer", prompt=given, max_tokens=24, temperature=0, echo=True, n=2
        )
        assert [one.text for one in found.choices] == [PROMPT + whole] * 2
    stop = whole[0]
    found = client.completions.create(
        model="writer", prompt=PROMPT, max_tokens=24, temperature=0, stop=[stop]
    )
    assert found.choices[0].text == whole.split(stop)[0]
    assert found.choices[0].finish_reason == "stop"


def test_seeded_sampling_matches_the_library(client, bundles):
    options = {"max_new_tokens": 16, "do_sample": True, "temperature": 0.9, "top_p": 0.9}
    found = client.completions.create(
        model="writer", prompt=PROMPT, max_tokens=16, temperature=0.9, top_p=0.9, seed=7, n=3
    )
    for index, one in enumerate(found.choices):
        assert one.text == bundles["writer"].generate([PROMPT], seed=7 + index, **options)[0]
    assert len({one.text for one in found.choices}) > 1


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1.0, "seed": 3}])
@pytest.mark.parametrize("model", ["writer", "translator"])
def test_stream_pieces_concatenate_to_the_full_text(client, model, options):
    prompts = [PROMPT, "안녕 세계", "🙂 naïve"]
    request = {"model": model, "prompt": prompts, "max_tokens": 40, "n": 2, **options}
    whole = client.completions.create(**request)
    texts, ended, usage = [""] * 6, [None] * 6, None
    for chunk in client.completions.create(**request, stream=True, stream_options={"include_usage": True}):
        for one in chunk.choices:
            texts[one.index] += one.text
            ended[one.index] = one.finish_reason or ended[one.index]
        usage = chunk.usage or usage
    assert texts == [one.text for one in whole.choices]
    assert ended == [one.finish_reason for one in whole.choices]
    assert usage == whole.usage


def test_logprobs_match_the_model(client, bundles):
    found = client.completions.create(model="writer", prompt=PROMPT, max_tokens=6, temperature=0, logprobs=3)
    logprobs = found.choices[0].logprobs
    model, tokenizer = bundles["writer"].model, bundles["writer"].tokenizer
    ids = tokenizer.encode(PROMPT).ids
    for chosen, top in zip(logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        with torch.inference_mode():
            wanted = model(torch.tensor([ids]))[0, -1].log_softmax(-1)
        best = wanted.topk(3)
        assert chosen == pytest.approx(float(wanted.max()), abs=1e-4)
        assert sorted(top.values(), reverse=True) == pytest.approx(best.values.tolist(), abs=1e-4)
        ids.append(int(wanted.argmax()))


@pytest.mark.parametrize("model", ["writer", "translator"])
def test_text_offsets_are_right_in_streams_too(client, model):
    request = {"model": model, "prompt": PROMPT, "max_tokens": 60, "temperature": 2, "seed": 1, "logprobs": 2}
    (whole,) = client.completions.create(**request).choices
    logprobs = whole.logprobs
    ends = [*logprobs.text_offset[1:], len(whole.text)]
    plain = 0
    for piece, begin, end in zip(logprobs.tokens, logprobs.text_offset, ends, strict=True):
        if piece.strip().isalnum():  # neither part of a character nor a special token
            plain += 1
            assert whole.text[begin:end] == (piece if begin else piece.removeprefix(" "))
    assert plain > 10
    for chosen, top in zip(logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert chosen in top.values() and len(top) <= 3
    pieces = [one for chunk in client.completions.create(**request, stream=True) for one in chunk.choices]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [value for one in pieces for value in getattr(one.logprobs, name)] == getattr(logprobs, name)


def test_a_multilingual_translator_generates_the_requested_language(client, bundles):
    bundle = bundles["polyglot"]
    request = {"model": "polyglot", "prompt": PROMPT, "max_tokens": 24, "temperature": 0}
    found = {}
    for to in LANGUAGES:
        (wanted,) = bundle.translate([PROMPT], to=to, num_beams=1, max_new_tokens=24)
        (logprobs,) = client.completions.create(**request, extra_body={"to": to}).choices
        assert logprobs.text.strip() == wanted
        pieces = client.completions.create(**request, extra_body={"to": to}, stream=True)
        assert "".join(one.text for chunk in pieces for one in chunk.choices) == logprobs.text
        (ids,) = (one.ids for one in encode_tagged(bundle.tokenizer, [PROMPT], f">>{to}<<"))
        (marked,) = client.completions.create(**{**request, "prompt": ids}).choices
        assert marked.text == logprobs.text
        (shouted,) = client.completions.create(**request, extra_body={"to": to.upper()}).choices
        assert shouted.text == logprobs.text
        found[to] = logprobs.text
    assert len(set(found.values())) == len(LANGUAGES)
    with pytest.raises(openai.UnprocessableEntityError):
        client.completions.create(**request)
    for options in ({"model": "writer"}, {"prompt": [5, 3]}):
        with pytest.raises(openai.UnprocessableEntityError) as caught:
            client.completions.create(**{**request, **options}, extra_body={"to": "de"})
        assert caught.value.code == "unsupported"


def test_default_model_is_the_first_suitable_one(server):
    with server.client() as client:

        def who(path: str, **body: object) -> str:
            return client.post(path, json=body).json()["model"]

        assert who("/v1/completions", prompt="a cat") == "writer"
        assert who("/v1/completions", prompt="a cat", to="de") == "polyglot"
        assert who("/translate", text="a cat", to="de") == "polyglot"
        assert who("/translate", text="a cat") == "translator"


def test_embeddings_match_embed(client, bundles):
    texts = ["the cat", "안녕 dog", "a"]
    wanted = bundles["encoder"].embed(texts)
    found = client.embeddings.create(model="encoder", input=texts)  # the client requests base64
    assert torch.equal(torch.tensor([one.embedding for one in found.data]), wanted)
    plain = client.embeddings.create(model="encoder", input=texts, encoding_format="float")
    assert torch.equal(torch.tensor([one.embedding for one in plain.data]), wanted)
    ids = [bundles["encoder"].tokenizer.encode(text).ids for text in texts]
    by_ids = client.embeddings.create(model="encoder", input=ids)
    assert torch.equal(torch.tensor([one.embedding for one in by_ids.data]), wanted)
    assert by_ids.usage == found.usage


@pytest.mark.parametrize(
    ("options", "error", "code", "param"),
    [
        ({"model": "other"}, openai.NotFoundError, "model_not_found", "model"),
        ({"max_tokens": 0}, openai.UnprocessableEntityError, "invalid_request", "max_tokens"),
        ({"presence_penalty": 1.0}, openai.UnprocessableEntityError, "invalid_value", "presence_penalty"),
        ({"prompt": [[1, 99999]]}, openai.UnprocessableEntityError, "invalid_value", "prompt"),
        ({"temperature": 1e-9}, openai.UnprocessableEntityError, "invalid_request", "temperature"),
        (
            {"model": "polyglot", "extra_body": {"to": "xx"}},
            openai.UnprocessableEntityError,
            "unknown_name",
            None,
        ),
        ({"extra_body": {"n": "2"}}, openai.UnprocessableEntityError, "invalid_request", "n"),
    ],
)
def test_errors_carry_code_and_param(client, options, error, code, param):
    with pytest.raises(error) as caught:
        client.completions.create(**{"model": "writer", "prompt": PROMPT, "max_tokens": 4, **options})
    assert (caught.value.code, caught.value.param) == (code, param)


def test_models_that_do_not_generate_are_rejected(client):
    with pytest.raises(openai.UnprocessableEntityError):
        client.completions.create(model="encoder", prompt=PROMPT)
    with pytest.raises(openai.UnprocessableEntityError):
        client.completions.create(model="writer", prompt="a " * 500)
