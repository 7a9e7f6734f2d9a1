"""OpenAI's client works, and its results are the library's."""

from __future__ import annotations

import openai
import pytest
import torch

import glassformer
from glassformer.tokenization import encode_tagged
from tests.server.harness import LANGUAGES, Server, serving

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
    (empty,) = client.embeddings.create(model="encoder", input="").data
    assert torch.equal(torch.tensor(empty.embedding), bundles["encoder"].embed("").flatten())
    width = wanted.shape[1]
    for dimensions in (5, width):
        cut = client.embeddings.create(model="encoder", input=texts, dimensions=dimensions)
        expected = wanted if dimensions == width else torch.nn.functional.normalize(wanted[:, :dimensions])
        assert torch.allclose(torch.tensor([one.embedding for one in cut.data]), expected, atol=1e-7)
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        client.embeddings.create(model="encoder", input=texts, dimensions=width + 1)
    assert caught.value.param == "dimensions"


@pytest.mark.parametrize(
    ("options", "error", "code", "param"),
    [
        ({"model": "other"}, openai.NotFoundError, "model_not_found", "model"),
        ({"max_tokens": 0}, openai.UnprocessableEntityError, "invalid_request", "max_tokens"),
        ({"presence_penalty": 3.0}, openai.UnprocessableEntityError, "invalid_request", "presence_penalty"),
        ({"logit_bias": {"99999": 1}}, openai.UnprocessableEntityError, "invalid_value", "logit_bias"),
        ({"logit_bias": {"the": 1}}, openai.UnprocessableEntityError, "invalid_value", "logit_bias"),
        ({"suffix": "a"}, openai.UnprocessableEntityError, "invalid_value", "suffix"),
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


@pytest.mark.parametrize("stream", [False, True])
def test_new_tokens_are_bounded_by_what_the_prompt_leaves_of_the_context(client, bundles, stream):
    context, read = 128, len(bundles["writer"].tokenizer.encode(PROMPT).ids)
    request = {"model": "writer", "prompt": PROMPT, "temperature": 0, "stream": stream}
    full = client.completions.create(**request, max_tokens=context - read)
    choices = [chunk.choices[0] for chunk in full] if stream else full.choices
    (wanted,) = bundles["writer"].generate([PROMPT], max_new_tokens=context - read)
    assert "".join(one.text for one in choices) == wanted
    too_long = [{"max_tokens": context - read + 1}, {"prompt": "a " * 200}, {"prompt": [5] * context}]
    for change in too_long:
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(**{**request, **change})
        assert (caught.value.code, caught.value.type) == ("context_length_exceeded", "invalid_request_error")
        assert caught.value.body["fields"]["limit"] == context
    # the default of 16 tokens is shortened
    nearly = client.completions.create(model="writer", prompt=[5] * (context - 2), temperature=0)
    assert nearly.usage.completion_tokens == 2
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="encoder", input="a " * 5000)
    assert caught.value.code == "context_length_exceeded"


def test_penalties_are_those_of_the_library_streamed_or_not(client, bundles):
    tokenizer = bundles["writer"].tokenizer
    (free,) = bundles["writer"].generate([PROMPT], max_new_tokens=40)
    frequent = tokenizer.encode(free).ids[0]
    for options in (
        {"presence_penalty": 1.5},
        {"frequency_penalty": 1.5},
        {"logit_bias": {str(frequent): -100, "9": 3.5}},
    ):
        request = {"model": "writer", "prompt": [PROMPT, "dog"], "max_tokens": 40, **options}
        for sampling in ({"temperature": 0}, {"temperature": 0.9, "seed": 5}):
            found = client.completions.create(**request, **sampling)
            library = {"do_sample": True, **sampling} if sampling["temperature"] else {}
            for n, one in enumerate(found.choices):
                seed = {"seed": library["seed"] + n} if library else {}
                prompt = request["prompt"][n]
                (wanted,) = bundles["writer"].generate(
                    [prompt], max_new_tokens=40, **options, **{**library, **seed}
                )
                assert one.text == wanted
            texts = ["", ""]
            for chunk in client.completions.create(**request, **sampling, stream=True):
                for piece in chunk.choices:
                    texts[piece.index] += piece.text
            assert texts == [one.text for one in found.choices]
        assert found.choices[0].text != free


def test_option_names_the_models_and_limits_the_context(folders):
    options = ("--served-model-name", "org/gpt-4o", "--served-model-name", "other", "--max-model-len", "20")
    with serving([folders["writer"]], *options) as running:
        client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
        assert [one.id for one in client.models.list()] == ["org/gpt-4o", "other"]
        assert client.models.retrieve("org/gpt-4o").id == "org/gpt-4o"
        for name in ("org/gpt-4o", "other"):
            found = client.completions.create(model=name, prompt=[5, 6, 7], max_tokens=17)
            assert found.model == "org/gpt-4o"
        for change in ({"max_tokens": 18}, {"prompt": [5] * 20}):
            with pytest.raises(openai.BadRequestError) as caught:
                client.completions.create(**{"model": "other", "prompt": [5, 6, 7], **change})
            assert caught.value.code == "context_length_exceeded"
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="writer", prompt="a")


def test_a_long_context_allows_as_many_new_tokens(folders, tmp_path):
    tokenizer = glassformer.load(folders["writer"]).tokenizer
    model = glassformer.tiny("llama", vocab_size=tokenizer.vocab_size, max_len=10_000)
    glassformer.save(glassformer.Pipeline(model=model.eval(), tokenizer=tokenizer), tmp_path / "long")
    with serving([tmp_path / "long"]) as running:
        client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
        request = {"model": "long", "prompt": [5, 6], "temperature": 0, "logit_bias": {"9": 100}}
        stop = tokenizer.decode([9])
        found = client.completions.create(**request, max_tokens=8192, stop=[stop])
        assert found.choices[0].finish_reason == "stop"
        with pytest.raises(openai.BadRequestError):
            client.completions.create(**request, max_tokens=9999)


def test_keys_of_other_servers_are_accepted_or_answered_with_the_key_to_use(client, bundles):
    request = {"model": "writer", "prompt": PROMPT, "max_tokens": 4, "temperature": 0}
    found = client.completions.create(**request, extra_body={"service_tier": "auto"})
    assert found.choices[0].text == bundles["writer"].generate([PROMPT], max_new_tokens=4)[0]
    for name in ("guided_choice", "guided_regex"):
        with pytest.raises(openai.UnprocessableEntityError) as caught:
            client.completions.create(**request, extra_body={name: ["a"]})
        assert "response_format" in caught.value.body["fields"]["problems"][0]
