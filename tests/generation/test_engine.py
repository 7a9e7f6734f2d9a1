"""Generation against a search without cache or batching, and properties of any search."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import nn

from glassformer.baselines import build_baseline
from glassformer.baselines import spec as baseline_specs
from glassformer.core.inputs import Masks
from glassformer.core.masks import Mask
from glassformer.errors import (
    ConflictError,
    InvalidValueError,
    MissingValueError,
    NonFiniteError,
    UnknownNameError,
    UnsupportedError,
)
from glassformer.generation import (
    GenerationConfig,
    GenerationOptions,
    GenerationOutput,
    GenerationParams,
    generate,
    generate_batched,
    merge_generation_config,
)
from glassformer.generation.stopping_criteria import truncate_at_stop
from tests.generation.test_greedy import (
    LENGTHS,
    MAX_NEW_TOKENS,
    PAD,
    START,
    examples,
    generate_with,
    model_of,
    padded,
)

# each kind of positions, window and state once
FAMILIES = ("original", "t5", "gpt2", "mistral", "falcon", "lstm", "lstm-text")


def model_for(family: str) -> tuple[Any, dict[str, Any]]:
    """A tiny model, and the start of its targets."""
    if not family.startswith("lstm"):
        return model_of(family), {"start_ids": START} if family in ("original", "t5", "bart") else {}
    torch.manual_seed(0)
    pairs = baseline_specs.LSTMEncoderDecoderSpec(src_vocab_size=89, tgt_vocab_size=89, d_model=32)
    text = baseline_specs.LSTMLanguageModelSpec(vocab_size=89, d_model=32)
    model = build_baseline(pairs if family == "lstm" else text).eval()
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value) * 0.3)
    return model, {"start_ids": START} if family == "lstm" else {}


@torch.no_grad()
def logprobs_after(
    model: nn.Module, row: list[int], out: list[int], start_kwargs: dict[str, Any]
) -> list[float]:
    """Log-probs of the next token of one row, without a cache."""
    inputs = [START, *out] if start_kwargs else [*row, *out]
    texts = [torch.tensor([row]), torch.tensor([inputs])] if start_kwargs else [torch.tensor([inputs])]
    masks = [Mask(padding=torch.ones_like(text, dtype=torch.bool)) for text in texts]
    logits = model(*texts, Masks(*masks) if len(masks) > 1 else masks[0])
    logprobs: list[float] = logits[0, -1].double().log_softmax(-1).tolist()
    return logprobs


def uncached_beam_search(
    model: nn.Module, row: list[int], ends: set[int], beams: int, penalty: float, start_kwargs: dict[str, Any]
) -> list[tuple[float, list[int]]]:
    """Beam search with lists, without cache or batching; stops when no beam can beat the worst result."""
    open_beams: list[tuple[float, list[int]]] = [(0.0, [])]
    results: list[tuple[float, list[int]]] = []
    for n in range(1, MAX_NEW_TOKENS + 1):
        candidates = []
        for score, out in open_beams:
            logprobs = logprobs_after(model, row, out, start_kwargs)
            candidates += [(score + logprob, [*out, token]) for token, logprob in enumerate(logprobs)]
        candidates = sorted(candidates, reverse=True)[: (1 + len(ends)) * beams]
        finished = [out[-1] in ends or n == MAX_NEW_TOKENS for _, out in candidates]
        for (score, out), last in list(zip(candidates, finished, strict=True))[:beams]:
            if last:
                results.append((score / n**penalty, out[:-1] if out[-1] in ends else out))
        results = sorted(results, reverse=True)[:beams]
        open_beams = [candidate for candidate, last in zip(candidates, finished, strict=True) if not last][
            :beams
        ]
        if not open_beams:
            break
        if len(results) == beams and open_beams[0][0] / n**penalty <= results[-1][0]:
            break
    return results


def varied_eos_ids(model: nn.Module, ids: torch.Tensor, start_kwargs: dict[str, Any]) -> tuple[int, int]:
    settings = GenerationConfig(num_beams=3, num_return_sequences=3, max_new_tokens=MAX_NEW_TOKENS)
    outputs_without_eos = generate_with(
        model, ids, config=settings, eos_token_id=None, pad_token_id=PAD, **start_kwargs
    )
    tokens = {token for texts in outputs_without_eos for text in texts for token in text.ids}

    def lengths(end: int) -> int:
        outputs = generate_with(
            model, ids, config=settings, eos_token_id=end, pad_token_id=PAD, **start_kwargs
        )
        return len({len(text.ids) for texts in outputs for text in texts})

    first, second, *_ = sorted(tokens, key=lambda end: (-lengths(end), end))
    return first, second


def assert_same_outputs(
    outputs: list[list[GenerationOutput]], expected: list[list[GenerationOutput]]
) -> None:
    assert [[text.ids for text in texts] for texts in outputs] == [
        [text.ids for text in texts] for texts in expected
    ]
    pairs = [(a, b) for x, y in zip(outputs, expected, strict=True) for a, b in zip(x, y, strict=True)]
    for output, reference in pairs:
        assert output.finish_reason == reference.finish_reason
        assert output.score == pytest.approx(reference.score, abs=1e-4)
        assert output.logprobs == pytest.approx(reference.logprobs, abs=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_beam_search_matches_an_uncached_search(family: str) -> None:
    model, start_kwargs = model_for(family)
    rows = examples(4)
    ids = padded(rows, "right")
    ends = varied_eos_ids(model, ids, start_kwargs)
    for penalty in (1.0, 0.6):
        settings = GenerationConfig(
            num_beams=3, num_return_sequences=3, max_new_tokens=MAX_NEW_TOKENS, length_penalty=penalty
        )
        options: dict[str, Any] = {
            "config": settings,
            "eos_token_id": ends,
            "pad_token_id": PAD,
            **start_kwargs,
        }
        outputs = generate_with(model, ids, **options)
        for row, texts in zip(rows, outputs, strict=True):
            expected = uncached_beam_search(model, row, set(ends), 3, penalty, start_kwargs)
            assert [text.ids for text in texts] == [out for _, out in expected]
            assert [text.score for text in texts] == pytest.approx([score for score, _ in expected], abs=1e-4)
            for text in texts:
                assert sum(text.logprobs) / len(text.logprobs) ** penalty == pytest.approx(
                    text.score, abs=1e-4
                )
                assert len(text.logprobs) == len(text.ids) + (text.finish_reason == "end")
    assert_same_outputs(generate_with(model, padded(rows, "left"), **options), outputs)
    assert_same_outputs([generate_with(model, torch.tensor([row]), **options)[0] for row in rows], outputs)
    for tokens in (1, 150, 10_000):
        assert_same_outputs(
            list(generate_batched(model, iter(rows), GenerationParams(**options), batch_tokens=tokens)),
            outputs,
        )
    limits = dict(zip(map(len, rows), (0, 1, 3, MAX_NEW_TOKENS), strict=True))
    shorter = generate_with(model, ids, **options, max_new_tokens=limits.__getitem__)
    generate_alone = [
        generate_with(model, torch.tensor([row]), **options, max_new_tokens=most)[0]
        for row, most in zip(rows, limits.values(), strict=True)
    ]
    assert_same_outputs(shorter, generate_alone)
    assert [text.ids for text in shorter[0]] == [[]] and shorter[0][0].finish_reason == "length"


@pytest.mark.parametrize("kwargs", [
    {"num_beams": 4, "num_return_sequences": 4},
    {"num_beams": 3, "early_stopping": True, "length_formula": "paper", "length_penalty": 0.6},
    {"num_beams": 3, "do_sample": True, "temperature": 1.5, "seed": 3, "num_return_sequences": 3},
    {"num_beams": 3, "stop_strings": ("<7",), "num_return_sequences": 3},
    {},
    {"do_sample": True, "seed": 5},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("family", ["original", "gpt2"])
def test_search_tree_leads_to_the_outputs(family: str, kwargs: dict[str, Any]) -> None:
    model, start_kwargs = model_for(family)
    ids = padded(examples(4), "right")
    ends = varied_eos_ids(model, ids, start_kwargs)
    settings = GenerationConfig(**kwargs, max_new_tokens=MAX_NEW_TOKENS)
    options: dict[str, Any] = {"config": settings, "eos_token_id": ends, "pad_token_id": PAD, **start_kwargs}
    options["decode"] = lambda tokens: "".join(f"<{token}" for token in tokens)
    outputs = generate_with(model, ids, **options, return_tree=True)
    assert_same_outputs(generate_with(model, ids, **options), outputs)  # recording does not change outputs
    beams = settings.num_beams
    for texts in outputs:
        for rank, text in enumerate(texts):
            tree = text.tree
            assert tree is not None
            path = tree.path(tree.result(rank))
            assert [node.token for node in path][: len(text.ids)] == text.ids
            assert [node.logprob for node in path] == pytest.approx(text.logprobs, abs=1e-5)
            assert path[-1].score / path[-1].length_term == pytest.approx(text.score, abs=1e-5)
            assert path[-1].state == "finished" and path[-1].reason == text.finish_reason
            assert {node.state for node in path[:-1]} <= {"kept"}
        assert json.loads(json.dumps(tree.to_json(), allow_nan=False))["num_beams"] == beams
        steps = max(node.step for node in tree.nodes) + 1
        assert len(tree.nodes) <= steps * 6 * beams
        for n, node in enumerate(tree.nodes):
            before = None if node.parent is None else tree.nodes[node.parent]
            assert (before is None) == (node.step == 0)
            score = node.logprob + (before.score if before else 0.0)
            assert node.score == pytest.approx(score, abs=1e-4)
            if before is not None:
                assert before.step == node.step - 1 and node.parent is not None and node.parent < n
                assert before.state == "kept"
            reasons = {
                "kept": {"in the beam"},
                "pruned": {"below the beam", "ended below the beam", "search over"},
                "finished": {"end", "length", "stop"},
            }
            assert node.reason in reasons[node.state]
        for step in range(steps):
            level = sorted((node for node in tree.nodes if node.step == step), key=lambda node: node.rank)
            assert [node.rank for node in level] == list(range(len(level)))
            scores = [node.score for node in level]
            assert scores == sorted(scores, reverse=True)
            open_nodes = [node for node in level if node.state == "kept" or node.reason == "search over"]
            assert len(open_nodes) <= beams
            pruned = [node for node in level if node.reason == "below the beam"]
            if open_nodes and pruned and (not settings.do_sample or beams > 1):
                assert min(node.score for node in open_nodes) >= max(node.score for node in pruned)


def test_sampling_follows_the_processed_probabilities() -> None:
    """Count many samples of one token; compare with probabilities computed from the model's logits."""
    model, _ = model_for("gpt2")
    row = examples(1)[0]
    logprobs = torch.tensor(logprobs_after(model, row, [], {})).double()
    tempered = (logprobs / 1.5).softmax(-1)
    order = tempered.argsort(descending=True)
    top = order[:20]
    inside = tempered[top] / tempered[top].sum()
    top = top[: int((inside.cumsum(0) < 0.9).sum()) + 1]
    probs = tempered[top]
    probs, top = probs[probs >= 0.02 * probs.max()], top[probs >= 0.02 * probs.max()]
    expected = probs / probs.sum()
    count = 4000
    settings = GenerationConfig(
        do_sample=True, temperature=1.5, top_k=20, top_p=0.9, min_p=0.02, seed=0,
        num_return_sequences=count, max_new_tokens=1,
    )  # fmt: skip
    (outputs,) = generate_with(
        model, torch.tensor([row]), config=settings, eos_token_id=None, pad_token_id=PAD
    )
    samples = torch.tensor([text.ids[0] for text in outputs])
    assert set(samples.tolist()) <= set(top.tolist()) and len(top) > 3
    counts = torch.tensor([float((samples == token).sum()) for token in top])
    scores = {text.ids[0]: text.score for text in outputs}
    for token, logprob in zip(top.tolist(), expected.tolist(), strict=True):
        if token in scores:
            assert scores[token] == pytest.approx(math.log(logprob), abs=1e-4)
    statistic = float(((counts - count * expected) ** 2 / (count * expected)).sum())
    freedom = len(top) - 1
    assert statistic < freedom + 5 * math.sqrt(2 * freedom), "further off than one seed in thousands"
    repeated = generate_with(model, torch.tensor([row]), config=settings, eos_token_id=None, pad_token_id=PAD)
    assert repeated == [outputs]


@pytest.mark.parametrize("kwargs", [{}, {"num_beams": 3, "num_return_sequences": 3}], ids=["one", "beams"])
def test_rare_checks_for_finished_rows_change_nothing(
    kwargs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where finished rows stay in the batch for some steps."""
    for family in ("original", "gpt2", "lstm"):
        model, start_kwargs = model_for(family)
        ids = padded(examples(6), "right")
        options: dict[str, Any] = {
            "eos_token_id": varied_eos_ids(model, ids, start_kwargs),
            "pad_token_id": PAD,
            **start_kwargs,
        }
        settings = GenerationConfig(
            **kwargs, max_new_tokens=MAX_NEW_TOKENS, no_repeat_ngram_size=3, forced_eos_token_id=7
        )
        limits = dict(zip(LENGTHS, (0, 1, 2, 5, MAX_NEW_TOKENS, MAX_NEW_TOKENS), strict=True))
        runs = []
        for interval in (1, 5, 100):
            monkeypatch.setattr("glassformer.generation.loop.check_interval", lambda _, n=interval: n)
            runs.append(
                generate_with(
                    model,
                    ids,
                    config=settings,
                    **options,
                    max_new_tokens=limits.__getitem__,
                    return_tree=True,
                )
            )
        for outputs in runs[1:]:
            assert_same_outputs(outputs, runs[0])
            for texts, expected in zip(outputs, runs[0], strict=True):
                tree, expected_tree = texts[0].tree, expected[0].tree
                assert tree is not None and expected_tree is not None
                nodes = [
                    [(n.step, n.token, n.state, n.reason, n.result_rank) for n in t.nodes]
                    for t in (tree, expected_tree)
                ]
                assert nodes[0] == nodes[1]


@pytest.mark.parametrize("beams", [1, 3])
def test_nan_scores_raise(beams: int) -> None:
    model, start_kwargs = model_for("original")
    with torch.no_grad():
        model.head.weight.fill_(math.nan)
    settings = GenerationConfig(num_beams=beams, max_new_tokens=3)
    options: dict[str, Any] = {"config": settings, "eos_token_id": 2, "pad_token_id": PAD, **start_kwargs}
    with pytest.raises(NonFiniteError):
        generate_with(model, padded(examples(2), "right"), **options, return_tree=True)
    with pytest.raises(NonFiniteError):
        list(generate_batched(model, examples(2), GenerationParams(**options)))
    outputs = generate_batched(model, examples(2), GenerationParams(**options), check_finite=False)
    assert len(list(outputs)) == 2


@pytest.mark.parametrize("beams", [1, 3])
def test_stop_string_may_start_and_end_inside_tokens(beams: int) -> None:
    model, start_kwargs = model_for("original")
    ids = padded(examples(4), "right")

    def decode(tokens: list[int]) -> str:
        return "".join(f"{token:02d}" for token in tokens)

    kwargs: dict[str, Any] = {"num_beams": beams, "num_return_sequences": beams}
    kwargs |= {
        "max_new_tokens": MAX_NEW_TOKENS,
        "length_penalty": 0.0,
    }  # so that a stopped sequence can be a result
    options: dict[str, Any] = {"eos_token_id": None, "pad_token_id": PAD, "decode": decode, **start_kwargs}
    full_outputs = generate_with(model, ids, config=GenerationConfig(**kwargs), **options)
    stop = decode(full_outputs[0][0].ids)[3:10]  # the end of one token and all of the next three
    stopping = GenerationConfig(**kwargs, stop_strings=(stop,))
    outputs = generate_with(model, ids, config=stopping, **options)
    assert any(text.finish_reason == "stop" for texts in outputs for text in texts)
    for texts, full in zip(outputs, full_outputs, strict=True):
        for text in texts:
            decoded = decode(text.ids)
            assert (stop in decoded) == (text.finish_reason == "stop")
            assert stop not in decode(text.ids[:-1])
            assert decoded.startswith(truncate_at_stop(decoded, [stop])) and stop not in truncate_at_stop(
                decoded, [stop]
            )
        if beams == 1:
            assert texts[0].ids == full[0].ids[: len(texts[0].ids)]
    with pytest.raises(MissingValueError):
        generate_with(model, ids, config=stopping, eos_token_id=None, pad_token_id=PAD, **start_kwargs)


def test_tokens_are_reported_and_examples_read_a_bounded_number_ahead() -> None:
    model, start_kwargs = model_for("original")
    rows = examples(6)
    ids = padded(rows, "right")
    ends = varied_eos_ids(model, ids, start_kwargs)
    options: dict[str, Any] = {"eos_token_id": ends, "pad_token_id": PAD, **start_kwargs}
    received: dict[int, list[int]] = {n: [] for n in range(len(rows))}
    settings = GenerationConfig(max_new_tokens=MAX_NEW_TOKENS)
    outputs = generate_with(
        model, ids, config=settings, **options, on_token=lambda token: received[token.row].append(token.id)
    )
    assert list(received.values()) == [text.ids for (text,) in outputs]
    with pytest.raises(UnsupportedError):
        generate_with(
            model, ids, config=GenerationConfig(num_beams=2, max_new_tokens=3), **options, on_token=print
        )

    read = 0

    def endless() -> Iterator[list[int]]:
        nonlocal read
        for n in range(400):
            read += 1
            yield rows[n % len(rows)]

    batched = generate_batched(
        model, endless(), GenerationParams(config=settings, **options), batch_tokens=60
    )
    for n, texts in enumerate(batched):
        assert texts[0].ids == outputs[n % len(rows)][0].ids
        assert read - n <= 100
    assert read == 400


INVALID: dict[str, tuple[Any, ...]] = {
    "num_beams": (0, 2.0, True),
    "num_return_sequences": (0,),
    "temperature": (0, math.nan, -1.0, "hot"),
    "top_p": (2, 0.0, math.nan),
    "top_k": (-1, 1.5),
    "min_p": (1.5, -0.1),
    "seed": (-1, 2**70),
    "repetition_penalty": (0, math.inf),
    "presence_penalty": (2.1, math.nan, "high"),
    "frequency_penalty": (-3,),
    "logit_bias": ({5: 101}, {-1: 0.5}, {"five": 1}, {5: math.nan}, {True: 1}, 3, [5]),
    "no_repeat_ngram_size": (-2,),
    "max_new_tokens": (-1, "ten"),
    "min_new_tokens": (-1,),
    "length_penalty": (math.nan, 1000),
    "length_formula": ("google",),
    "early_stopping": ("always", 1),
    "stop_strings": (("",), "", 3),
    "suppress_tokens": ((-1,), 3),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_options_raise(name: str) -> None:
    for value in INVALID[name]:
        with pytest.raises(InvalidValueError) as raised:
            merge_generation_config({}, {name: value})
        assert raised.value.name == name


def test_conflicting_and_missing_options_raise() -> None:
    assert set(GenerationOptions.__annotations__) == {field.name for field in fields(GenerationConfig)}
    with pytest.raises(UnknownNameError):
        merge_generation_config({}, {"num_beans": 4})
    for options, names in (
        ({"temperature": 0.7}, ("temperature", "do_sample")),
        ({"num_return_sequences": 3}, ("num_return_sequences", "num_beams")),
        ({"max_new_tokens": 3, "min_new_tokens": 4}, ("min_new_tokens", "max_new_tokens")),
    ):
        with pytest.raises(ConflictError) as raised:
            merge_generation_config({}, options)
        assert raised.value.names == names
    model, start_kwargs = model_for("original")
    ids = padded(examples(2), "right")
    params = GenerationParams(eos_token_id=2, pad_token_id=PAD, **start_kwargs)
    with pytest.raises(MissingValueError):
        generate(model, ids, params)
    with pytest.raises(InvalidValueError):
        generate(model, ids, replace(params, prefix_ids=[4000], max_new_tokens=3))
    with pytest.raises(InvalidValueError):
        list(generate_batched(model, [[3]], replace(params, max_new_tokens=3), batch_tokens=0))


def test_published_generation_config_is_honored_or_rejected() -> None:
    published = {
        "bad_words_ids": [[58100], [0]], "bos_token_id": 0, "decoder_start_token_id": 58100,
        "eos_token_id": 0, "forced_eos_token_id": 0, "max_length": 512, "num_beams": 6, "pad_token_id": 58100,
        "renormalize_logits": True, "transformers_version": "4.32.0", "_from_model_config": True,
        "typical_p": 1.0, "top_h": None, "early_stopping": True,
    }  # fmt: skip
    settings = merge_generation_config(published, {})
    assert settings == GenerationConfig(
        suppress_tokens=(58100,), forced_eos_token_id=0, max_length=512, num_beams=6,
        renormalize_logits=True, early_stopping=True,
    )  # fmt: skip
    merged = merge_generation_config(
        published, {"num_beams": 1, "max_new_tokens": 20, "top_k": None, "stop_strings": "Q:"}
    )
    assert (merged.num_beams, merged.max_new_tokens, merged.max_length, merged.stop_strings) == (
        1,
        20,
        None,
        ("Q:",),
    )
    for name, value in {"typical_p": 0.9, "num_beam_groups": 2, "max_time": 3.0, "new_thing": 1}.items():
        with pytest.raises(UnsupportedError):
            merge_generation_config({name: value}, {})
    with pytest.raises(UnsupportedError):
        merge_generation_config({"bad_words_ids": [[4, 5]]}, {})

    model, start_kwargs = model_for("original")
    ids = padded(examples(3), "right")
    options: dict[str, Any] = {"eos_token_id": None, "pad_token_id": PAD, **start_kwargs}
    # the start is counted in these bounds; for a prompt, the prompt is
    outputs = generate_with(model, ids, config=merge_generation_config({"max_length": 9}, {}), **options)
    assert {len(text.ids) for (text,) in outputs} == {8}
    prompted, _ = model_for("gpt2")
    outputs = generate_with(
        prompted,
        ids,
        config=merge_generation_config({"max_length": 9}, {}),
        eos_token_id=None,
        pad_token_id=PAD,
    )
    assert [len(text.ids) for (text,) in outputs] == [9 - len(row) for row in examples(3)]
