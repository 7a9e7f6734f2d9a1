"""Outputs follow the JSON schema, whatever the model prefers."""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from dataclasses import replace

import jsonschema_rs
import pytest
import torch
from llguidance import LLTokenizer, TokenizerWrapper

import glassformer
from glassformer.errors import InvalidValueError, UnsupportedError
from glassformer.generation.continuous import Scheduler
from glassformer.tasks import TextGenerator, schema_compiler, structured_output
from glassformer.tasks.structured_output import SchemaCheck
from glassformer.tokenization.train import TokenizerPlan, train_tokenizer

AB = str.maketrans("01", "ab")
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


def _multiples(*factors: int) -> dict[str, object]:
    return {"allOf": [{"type": "integer", "multipleOf": factor} for factor in factors]}


def _nested(keyword: str, depth: int) -> dict[str, object]:
    schema: dict[str, object] = {}
    for _ in range(depth):
        schema = {"properties": {"a": schema}} if keyword == "properties" else {keyword: [schema]}
    return schema


RUNAWAY = _multiples(9973, 9967, 9949, 9941)  # compiles for hours
INVALID = {
    "objects": _nested("properties", 100),
    "alternatives": _nested("anyOf", 130),
    "recursion": _nested("anyOf", 5000),
    "surrogate": {"const": "\ud800"},
    "infinity": {"const": 1e400},
    "number": {"minimum": 10**400},
    "vendor key": {"x-guidance": {"lenient": True}, "type": "array", "uniqueItems": True},
    "huge enum": {"enum": [f"value {n}" for n in range(400_000)]},
    "runaway": RUNAWAY,
}


@pytest.mark.parametrize("name", INVALID)
def test_schemas_that_do_not_compile_are_refused_in_time(model, name):
    start = time.monotonic()
    with pytest.raises(InvalidValueError) as caught:
        TextGenerator(model, json_schema=INVALID[name])
    assert caught.value.name == "json_schema" and time.monotonic() - start < 10


def test_a_refused_schema_is_refused_again():
    for _ in range(2):  # what compiled within the limits once is not checked again
        with pytest.raises(InvalidValueError):
            SchemaCheck(INVALID["alternatives"]).run()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the addresses of a process")
def test_memory_of_the_compiler_is_limited():
    import resource

    SchemaCheck({"const": "limited"}).run()
    assert resource.prlimit(structured_output._idle[-1].pid, resource.RLIMIT_AS)[0] < 1 << 30


def test_a_property_may_have_the_name_of_the_vendor_key(model):
    schema = {"type": "object", "properties": {"x-guidance": {"enum": [1]}}, "required": ["x-guidance"]}
    text = model.generate("the", json_schema={**schema, "additionalProperties": False}, max_new_tokens=100)
    assert json.loads(text) == {"x-guidance": 1}


def test_a_compilation_can_be_canceled():
    check = SchemaCheck(_multiples(9973, 9967))
    timer = threading.Timer(0.5, check.cancel)
    timer.start()
    start = time.monotonic()
    with pytest.raises(InvalidValueError):
        check.run()
    assert time.monotonic() - start < 3
    SchemaCheck(SCHEMAS["union"]).run()  # another process compiles the next schema


class _Words(schema_compiler._Bytes):
    """All words of eight letters a and b, after the single bytes."""

    tokens = (*schema_compiler._Bytes.tokens, *(f"{n:08b}".translate(AB).encode() for n in range(256)))


def test_states_of_a_generation_are_limited():
    """The automaton of the pattern grows with every token, for as long as the text does."""
    table = LLTokenizer(TokenizerWrapper(_Words()), eos_token=256)
    schema = {"type": "string", "pattern": "^(a|b)*a(a|b){60}$"}
    matcher = schema_compiler.compile_schema(json.dumps(schema), table)
    matcher.consume_token(ord('"'))
    draw, steps = random.Random(0), 0
    while not matcher.is_error() and steps < 400:
        matcher.consume_token(257 + draw.randrange(256))
        matcher.compute_bitmask()
        steps += 1
    assert 10 < steps < 400


def test_a_canceled_compilation_does_not_start():
    check = SchemaCheck({"const": "canceled"})
    check.cancel()
    with pytest.raises(InvalidValueError):
        check.run()


class _FailingState:
    """Allows all tokens twice, and then none."""

    def __init__(self) -> None:
        self.steps = 0

    def mask(self, vocab_size: int) -> torch.Tensor:
        if self.steps == 2:
            raise UnsupportedError("the vocabulary", "this schema")
        return torch.ones(vocab_size, dtype=torch.bool)

    def append(self, token: int) -> None:
        self.steps += 1

    def start(self) -> _FailingState:
        return _FailingState()


def test_a_constraint_that_fails_ends_only_its_own_request(model):
    free = TextGenerator(model, max_new_tokens=20)
    failing = replace(TextGenerator(model, max_new_tokens=20).params, constraint=_FailingState())
    scheduler = Scheduler(model.inference_model(), slots=8)
    try:
        alone = scheduler.submit([5, 6, 7], free.params).result()[0].ids
        requests = [scheduler.submit([5, 6, 7], params) for params in (free.params, failing, free.params)]
        with pytest.raises(UnsupportedError):
            requests[1].result()
        assert requests[0].result()[0].ids == requests[2].result()[0].ids == alone
    finally:
        scheduler.close()


def test_sentencepiece_like_vocabularies(model):
    pipeline = _model("unigram")
    text = pipeline.generate("the", json_schema=SCHEMAS["array"], max_new_tokens=100)
    jsonschema_rs.validate(SCHEMAS["array"], json.loads(text))
