"""Outputs follow the JSON schema, whatever the model prefers."""

from __future__ import annotations

import json

import jsonschema_rs
import pytest
import torch

import glassformer
from glassformer.errors import InvalidValueError, UnsupportedError
from glassformer.generation.continuous import Scheduler
from glassformer.tasks import TextGenerator
from glassformer.tokenization.train import TokenizerPlan, train_tokenizer

CORPUS = [
    '{"name": "Ann", "tags": ["a", "b"], "n": -1.5e3, "ok": true, "no": false, "x": null}',
    "바다 the old sea.",
] * 4
POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
SCHEMAS = {
    "enum": {"enum": ["red", "바다", 3, None]},
    "array": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
    "nested": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 4},
            "size": {"type": "number", "minimum": 0, "maximum": 9},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
            "inner": {"$ref": "#/$defs/point"},
        },
        "required": ["name", "size", "tags", "inner"],
        "additionalProperties": False,
        "$defs": {"point": {**POINT, "additionalProperties": False}},
    },
    "union": {"anyOf": [{"type": "string", "pattern": "^[a-c]{2,3}$"}, {"type": "integer", "maximum": 20}]},
}


def _model(kind: str) -> glassformer.Pipeline:
    plan = TokenizerPlan(kind=kind, vocab_size=300, min_frequency=1, template="none")
    tokenizer = train_tokenizer(CORPUS, plan)
    torch.manual_seed(2)
    model = glassformer.tiny("gpt2", vocab_size=tokenizer.vocab_size + 3, max_len=400).eval()
    return glassformer.Pipeline(model=model, tokenizer=tokenizer)


@pytest.fixture(scope="module")
def model():
    return _model("byte")


@pytest.mark.parametrize("name", SCHEMAS)
def test_outputs_parse_and_validate(model, name):
    schema = SCHEMAS[name]
    options = {"json_schema": schema, "max_new_tokens": 200, "min_new_tokens": 5}
    runs = [{}, *({"do_sample": True, "seed": seed, "top_k": 40} for seed in range(3))]
    finished = 0
    for run in runs:
        task = TextGenerator(model, **options, **run)
        for result in task(["the old", "{"]):
            if result.finish_reason == "end":
                finished += 1
                jsonschema_rs.validate(schema, json.loads(result.text))
            else:
                assert result.num_tokens == 200
    assert finished >= 2


def test_scheduler_enforces_the_schema_of_each_request(model):
    """Constrained and free requests share a batch, with the results of each alone."""
    constrained = TextGenerator(
        model, json_schema=SCHEMAS["array"], do_sample=True, seed=4, num_return_sequences=3, max_new_tokens=60
    )
    free = TextGenerator(model, max_new_tokens=20)
    scheduler = Scheduler(model.inference_model(), slots=8)
    try:
        submitted = [(task, scheduler.submit([5, 6, 7], task.params)) for task in (free, constrained, free)]
        found = [[output.ids for output in request.result()] for _, request in submitted]
    finally:
        scheduler.close()
    assert found[0] == found[2]
    for ids in found[1]:
        jsonschema_rs.validate(SCHEMAS["array"], json.loads(model.tokenizer.decode(ids)))


def test_max_tokens_cuts_the_output_off(model):
    result = TextGenerator(model, json_schema=SCHEMAS["nested"], max_new_tokens=3)("the")
    assert result.finish_reason == "length" and result.num_tokens == 3


def test_what_cannot_be_enforced_is_an_error(model):
    for schema in ({"type": "vector"}, {"type": "array", "uniqueItems": True}, "integer"):
        with pytest.raises(InvalidValueError) as caught:
            TextGenerator(model, json_schema=schema)
        assert caught.value.name == "json_schema"
    with pytest.raises(UnsupportedError):
        TextGenerator(model, json_schema=POINT, num_beams=2)
    with pytest.raises(UnsupportedError):
        TextGenerator(_model("char"), json_schema=POINT)


def test_sentencepiece_like_vocabularies(model):
    pipeline = _model("unigram")
    text = pipeline.generate("the", json_schema=SCHEMAS["array"], max_new_tokens=100)
    jsonschema_rs.validate(SCHEMAS["array"], json.loads(text))
