"""OpenAI's client chats, and the answers are the library's."""

from __future__ import annotations

import json

import openai
import pytest

from glassformer.tasks import ChatGenerator
from tests.server.harness import Server

MESSAGES = [{"role": "system", "content": "the cat"}, {"role": "user", "content": "안녕 🙂 the dog"}]
GREEDY = {"model": "assistant", "messages": MESSAGES, "max_tokens": 24, "temperature": 0}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
BAD_SCHEMA = {"name": "a", "schema": {"type": "x"}}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_chat_matches_the_library(client, bundles):
    found = client.chat.completions.create(**GREEDY, n=2)
    answer = bundles["assistant"].chat(MESSAGES, max_new_tokens=24, do_sample=False)
    assert [choice.message.content for choice in found.choices] == [answer] * 2
    assert found.object == "chat.completion" and found.choices[0].message.role == "assistant"
    read = bundles["assistant"].tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True)
    assert found.usage.prompt_tokens == len(read)
    stop = answer[2:4]
    found = client.chat.completions.create(**GREEDY, stop=stop)
    assert found.choices[0].message.content == answer.split(stop)[0]
    assert found.choices[0].finish_reason == "stop"
    sampled = client.chat.completions.create(**{**GREEDY, "temperature": 0.9}, seed=3)
    options = {"do_sample": True, "temperature": 0.9, "seed": 3, "max_new_tokens": 24}
    assert sampled.choices[0].message.content == bundles["assistant"].chat(MESSAGES, **options)


def test_stream_sends_the_role_then_whole_tokens(client, bundles):
    whole = client.chat.completions.create(**GREEDY, logprobs=True, top_logprobs=3)
    stream = client.chat.completions.create(
        **GREEDY, stream=True, stream_options={"include_usage": True}, logprobs=True, top_logprobs=3
    )
    *chunks, last = list(stream)
    assert last.choices == [] and last.usage == whole.usage
    choices = [chunk.choices[0] for chunk in chunks]
    assert choices[0].delta.role == "assistant" and choices[0].delta.content == ""
    assert {choice.finish_reason for choice in choices[:-1]} == {None}
    assert choices[-1].finish_reason == whole.choices[0].finish_reason
    assert "".join(choice.delta.content or "" for choice in choices) == whole.choices[0].message.content
    tokens = [token for choice in choices if choice.logprobs for token in choice.logprobs.content]
    assert tokens == whole.choices[0].logprobs.content and all(len(one.top_logprobs) == 3 for one in tokens)
    assert max(one.logprob for one in tokens[0].top_logprobs) == tokens[0].logprob
    pieces = [choice for choice in choices if choice.delta.content and choice.logprobs]
    single = [one for one in pieces if len(one.logprobs.content) == 1]
    # a token may hold a part of a character, which the text leaves out
    texts = [bytes(one.logprobs.content[0].bytes).decode("utf-8", "ignore") for one in single]
    assert single and [one.delta.content for one in single] == texts


def test_tools_parts_and_template_options_reach_the_template(client, bundles):
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "the mat"}'},
    }
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "the"}, {"type": "text", "text": "cat"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "sat", "tool_call_id": "1"},
    ]
    rendered = [
        {"role": "system", "content": "the\ncat"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"arguments": {"city": "the mat"}}}],
        },
        {"role": "tool", "content": "sat"},
    ]
    found = client.chat.completions.create(
        **{**GREEDY, "messages": messages},
        tools=[TOOL],
        extra_body={"chat_template_kwargs": {"thinking": True}},
    )
    task = ChatGenerator(
        bundles["assistant"],
        tools=[TOOL],
        chat_template_kwargs={"thinking": True},
        do_sample=False,
        max_new_tokens=24,
    )
    assert found.choices[0].message.content == task(rendered).text
    ids = bundles["assistant"].tokenizer.apply_chat_template(
        rendered, tools=[TOOL], add_generation_prompt=True, thinking=True
    )
    assert found.usage.prompt_tokens == len(ids)


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_response_format_is_enforced(client, temperature):
    options = {**GREEDY, "max_tokens": 120, "temperature": temperature, "seed": 1, "n": 8}
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    finished = 0
    for choice in client.chat.completions.create(**options, response_format=schema).choices:
        if choice.finish_reason == "stop":
            finished += 1
            value = json.loads(choice.message.content)
            assert set(value) == {"name", "age"} and len(value["name"]) <= 5 and value["age"] <= 99
    assert finished
    cut = client.chat.completions.create(**{**options, "max_tokens": 2}, response_format=schema).choices[0]
    assert cut.finish_reason == "length" and cut.message.content.startswith("{")
    found = client.chat.completions.create(**options, response_format={"type": "json_object"}).choices[0]
    assert found.message.content.startswith("{")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"model": "writer"}, "unsupported"),
        ({"model": "translator"}, "unsupported"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "chat_template"),
        ({"messages": [{"role": "narrator", "content": "x"}]}, None),
        ({"messages": []}, None),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, None),
        ({"top_logprobs": 2}, "missing_value"),
        ({"tools": [TOOL], "tool_choice": "required"}, "invalid_value"),
        ({"logit_bias": {"99999": 1}}, "invalid_value"),
        ({"max_tokens": 600}, "context_length_exceeded"),
        ({"response_format": {"type": "json_schema", "json_schema": BAD_SCHEMA}}, "invalid_value"),
        ({"extra_body": {"mesages": 1}}, None),
    ],
    ids=str,
)
def test_bad_requests_are_errors_of_the_client(client, change, code):
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(**{**GREEDY, **change})
    assert caught.value.status_code in (400, 422) and code in (None, caught.value.code)
