"""Chat templates render as in transformers."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from glassformer.errors import FileProblemError, InvalidValueError, MissingValueError
from glassformer.tokenization import chat_template, load_tokenizer
from glassformer.tokenization.chat_template import ChatTemplateError, render_chat
from glassformer.tokenization.train import TokenizerPlan, train_tokenizer
from tests.tokenization.layouts import CORPUS

SPECIAL = ("<|begin|>", "<|start|>", "<|end|>", "<|im_start|>", "<|im_end|>", "[INST]", "[/INST]", "<turn>")
# Templates in the style of published chat models; each uses other features of Jinja and the environment.
TEMPLATES = {
    "llama3": """{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = strftime_now("%Y") %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start|>system\\n\\nToday: " + date_string + "\\n" }}{{- system_message }}{{- "<|end|>" }}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception("one tool call at a time") }}
        {%- endif %}
        {{- '{"name": "' + message.tool_calls[0].function.name + '", "parameters": ' }}
        {{- message.tool_calls[0].function.arguments | tojson }}{{- "}<|end|>" }}
    {%- else %}
        {{- '<|start|>' + message['role'] + '\\n\\n' + message['content'] | trim + '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant\\n\\n' }}{%- endif %}
""",
    "chatml": """{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1, seen=false) %}
{%- for message in messages[::-1] %}
    {%- if message.role == "user" and not ns.seen %}
        {%- set ns.seen = true %}
        {%- set ns.last = messages|length - 1 - loop.index0 %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>' + message.content + '</tool_response><|im_end|>\\n' }}
        {%- continue %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- generation %}{{- message.content or '' }}{% endgeneration %}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>' ~ call.function.name ~ ' ' ~ call.function.arguments | tojson(indent=1) }}
    {%- endfor %}
    {{- (' (last)' if loop.index0 == ns.last else '') + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think></think>' }}{%- endif %}
{%- endif %}
""",
    "mistral": """{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}
{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}
{{ message['content'] + eos_token}}{% elif message['role'] != 'tool' and message['role'] != 'system' %}
{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}""",
    "gemma": """{{ bos_token }}
{% if documents %}
{% for document in documents %}
[{{ document.title | upper }}] {{ document.text | indent(2, true) }}
{% endfor %}
{% endif %}
{%- macro turn(role, text) -%}<turn>{{ 'model' if role == 'assistant' else role }}
{{ text | trim }}<|end|>
{% endmacro %}
{% for message in messages | rejectattr("role", "equalto", "system") %}
    {% if message.content is string %}
{{ turn(message.role, message.content) }}
    {%- else %}
{{ turn(message.role, message.content | map(attribute="text") | join(" ")) }}
    {%- endif %}
{% endfor %}
{% if add_generation_prompt %}<turn>model
{% endif %}""",
}
CALL = {
    "type": "function",
    "id": "a",
    "function": {"name": "get_weather", "arguments": {"city": "Zürich <1>"}},
}
CONVERSATIONS = [
    [{"role": "user", "content": "  Hello & <b>안녕</b> 🙂 "}],
    [
        {"role": "system", "content": "Be brief.\n"},
        {"role": "user", "content": "The old captain?"},
        {"role": "assistant", "content": "He sang."},
        {"role": "user", "content": "Again <|im_end|> and </s>"},
    ],
    [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "12 °C", "tool_call_id": "a"},
    ],
]
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {}}}},
}
OPTIONS = [
    {},
    {"add_generation_prompt": True, "tools": [TOOL], "enable_thinking": False},
    {"documents": [{"title": "Sea", "text": "calm\nand blue"}], "date_string": "1 May"},
]


def _folder(path: Path, **config: object) -> Path:
    tokenizer = train_tokenizer(CORPUS, TokenizerPlan(kind="byte", vocab_size=400, tags=SPECIAL))
    tokenizer.save(path)
    settings = json.loads((path / "tokenizer_config.json").read_text())
    settings |= {"bos_token": "<|begin|>", "eos_token": "</s>", **config}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


@pytest.mark.parametrize("name", TEMPLATES)
def test_apply_chat_template_matches_transformers(tmp_path, name):
    folder = _folder(tmp_path, chat_template=TEMPLATES[name])
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    assert isinstance(theirs, PreTrainedTokenizerFast)
    for conversation in CONVERSATIONS:
        for options in OPTIONS:
            text = theirs.apply_chat_template(conversation, tokenize=False, **options)
            assert ours.apply_chat_template(conversation, tokenize=False, **options) == text
            ids = theirs.apply_chat_template(conversation, return_dict=False, **options)
            assert ours.apply_chat_template(conversation, **options) == ids


def test_named_templates_and_files_survive_saving(tmp_path):
    named = [{"name": "default", "template": "D{{ x }}"}, {"name": "tool_use", "template": "T"}]
    folder = _folder(tmp_path, chat_template=named)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("R")
    for _ in range(2):
        tokenizer = load_tokenizer(folder)
        apply = partial(tokenizer.apply_chat_template, CONVERSATIONS[0], tokenize=False)
        assert (apply(x=1), apply(tools=[TOOL])) == ("D1", "T")
        assert (apply(chat_template="rag"), apply(chat_template="{{ 2 }}")) == ("R", "2")
        folder = tmp_path / "saved"
        tokenizer.save(folder)
    (folder / "chat_template.jinja").write_text("file")
    assert load_tokenizer(folder).apply_chat_template(CONVERSATIONS[0], tokenize=False) == "file"


def test_template_errors_are_reported(tmp_path, monkeypatch):
    with pytest.raises(MissingValueError):
        load_tokenizer(_folder(tmp_path)).apply_chat_template(CONVERSATIONS[0])
    with pytest.raises(ChatTemplateError) as caught:
        render_chat(TEMPLATES["mistral"], [{"role": "narrator", "content": ""}])
    assert caught.value.reason == "Only user and assistant roles are supported!"
    with pytest.raises(FileProblemError) as wrong:
        render_chat("\n{% if %}", CONVERSATIONS[0])
    assert wrong.value.line == 2
    for escape in ("{{ ''.__class__.__mro__ }}{{ x.y }}", "{{ messages.append(1) }}", "{{ 1 / 0 }}"):
        with pytest.raises(ChatTemplateError):
            render_chat(escape, CONVERSATIONS[0])
    for bad in ([], "hello", [{"content": "x"}], ["x"], {"role": "user"}):
        with pytest.raises(InvalidValueError):
            render_chat("{{ messages }}", bad)
    monkeypatch.setattr(chat_template, "MAX_CHARACTERS", 1000)
    with pytest.raises(ChatTemplateError):
        render_chat("{% for i in range(99999) %}x{% endfor %}", CONVERSATIONS[0])
