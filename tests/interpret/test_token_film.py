"""The film of image tokens: its codes, candidates, attention and interventions are those of the task."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core.kv_cache import KVCache
from glassformer.core.observe import observe
from glassformer.errors import GlassformerError
from glassformer.generation.generators import RowGenerators
from glassformer.interpret import schema
from glassformer.interpret.catalog import Catalog, describe_model
from glassformer.interpret.tensors import read_tensor
from glassformer.interpret.token_film import TokenFilm
from glassformer.interpret.trace import Trace, trace_model
from glassformer.tasks.image_tokens import TokenImageGenerator
from tests.interpret.models import image_tokens_model

TEXT, CODES, SIDE = "the cat sat on the mat.", 16, 2
SETTINGS: dict[str, Any] = {"seed": 5, "guidance_scale": 2.5, "temperature": 1.2, "top_k": 9, "top_p": 0.95}
ATTENTION = "decoder.decoder.blocks.1.self_attn"
HEAD, WORD = schema.AblateHead(attention=ATTENTION, head=1), schema.MaskToken(sequence="text", position=2)


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return image_tokens_model()


def film(bundle: Bundle, *changes: schema.Intervention, text: str = TEXT, **options: Any) -> Trace:
    return trace_model(bundle, schema.TraceInput(text=text, **{**SETTINGS, **options}), changes)


def read(trace: Trace, name: str) -> Tensor:
    return read_tensor(trace, name).values


def codes(trace: Trace) -> list[int]:
    return read(trace, f"step.{CODES}.codes").tolist()  # type: ignore[no-any-return]


def film_of(trace: Trace) -> TokenFilm:
    assert isinstance(trace.film, TokenFilm)
    return trace.film


@pytest.mark.parametrize("guidance", [1.0, 2.5])
@pytest.mark.parametrize(("classes", "text"), [((), TEXT), (("cat", "dog"), "dog")])
def test_the_film_ends_with_the_drawing_of_the_task(
    classes: tuple[str, ...], text: str, guidance: float
) -> None:
    bundle = image_tokens_model(classes)
    trace = film(bundle, text=text, guidance_scale=guidance)
    drawn = TokenImageGenerator(bundle, **{**SETTINGS, "guidance_scale": guidance})([text])[0].images[0]
    assert np.array_equal(read(trace, f"step.{CODES}.frames")[0].numpy(), np.asarray(drawn))
    assert trace.prepared.input.guidance_scale == guidance


@pytest.mark.parametrize("changes", [(), (HEAD,), (WORD,), (schema.ForceToken(step=6, token=3),)])
def test_each_code_is_sampled_from_the_probabilities_of_its_step(
    bundle: Bundle, changes: tuple[schema.Intervention, ...]
) -> None:
    trace, noise = film(bundle, *changes, start_step=4), RowGenerators([5])
    chosen, logprobs = codes(trace), read(trace, f"step.{CODES}.logprobs")
    for step in range(CODES):
        probabilities = read(trace, f"step.{step}.probabilities")
        clocks = noise.exponential(probabilities[None])[0]
        assert int((probabilities > 0).sum()) <= 9
        if trace.film is not None and step in film_of(trace).forced:
            assert chosen[step] == 3
            continue
        assert int((probabilities / clocks).argmax()) == chosen[step]
        assert float(probabilities[chosen[step]].log()) == pytest.approx(float(logprobs[step]), abs=1e-4)
    before = 6 if changes and changes[0].kind == "force_token" else 4
    plain = codes(film(bundle))
    assert chosen[:before] == plain[:before] and (chosen != plain) == bool(changes)


@torch.no_grad()
def test_attention_is_that_of_an_observed_forward_pass(bundle: Bundle) -> None:
    trace = film(bundle)
    task, outcome = TokenImageGenerator(bundle), trace.outcome
    assert isinstance(outcome, schema.DrawOutcome)
    prompt = next(iter(task.load([TEXT])))
    record = observe(bundle.model, torch.tensor([[*prompt, *codes(trace)[:7]]]))
    served = read(trace, f"step.7.{ATTENTION}.weights")
    torch.testing.assert_close(served, record.weights(ATTENTION), atol=1e-6, rtol=1e-5)
    cross, own = (one for one in outcome.attentions if one.name == ATTENTION)
    words = len(trace.sequences[0])
    assert (cross.kind, own.kind) == ("cross", "self") and served.shape[2] == own.first_query + 7 + 1
    assert prompt[words] == 24 and (cross.first_key, own.first_key) == (0, words + 1)  # after the image start


@torch.no_grad()
def test_a_head_off_is_as_if_its_output_were_zero_from_the_step_on(bundle: Bundle) -> None:
    """The keys and values of earlier positions stay; later ones are computed with zero weights."""
    step, changed = 4, film(bundle, HEAD, start_step=4, guidance_scale=1.0, top_k=0, top_p=1.0)
    (prompt,), model = TokenImageGenerator(bundle).load([TEXT]), bundle.model
    ids, cache = [*prompt, *codes(changed)], KVCache.allocate(model.decoder.spec, 1, 64)
    now = len(prompt) - 1 + step  # the position that chooses the code of the step
    model.decoder(torch.tensor([ids[:now]]), cache=cache)
    attention: Any = model.get_submodule(ATTENTION)
    saved, width = attention.out_proj.weight.detach().clone(), attention.value_dim
    attention.out_proj.weight[:, width : 2 * width] = 0
    logits = model.decoder(torch.tensor([ids[now:-1]]), cache=cache)[0]
    attention.out_proj.weight.copy_(saved)
    for n in range(step, CODES):
        expected = (logits[n - step] / 1.2).softmax(-1)
        torch.testing.assert_close(read(changed, f"step.{n}.probabilities"), expected, atol=1e-5, rtol=1e-4)


def test_a_hidden_word_gets_no_attention_from_the_step_on(bundle: Bundle) -> None:
    weights = read(film(bundle, WORD, start_step=4), f"step.9.{ATTENTION}.weights")[0, :, :, 2]
    first = len(film(bundle).sequences[0]) + 4
    assert (weights[:, first:] == 0).all() and (weights[:, 2:first] > 0).all()


def test_patches_are_cut_from_the_drawing_with_the_candidate(bundle: Bundle) -> None:
    trace, step = film(bundle), 6
    candidates, patches = read(trace, f"step.{step}.candidates").tolist(), read(trace, f"step.{step}.patches")
    drawing, chosen = read(trace, f"step.{CODES}.frames")[0], codes(trace)
    probabilities = read(trace, f"step.{step}.probabilities")
    assert chosen[step] in candidates and candidates[0] == int(probabilities.argmax())
    place = slice(2, 4), slice(4, 6)  # row 1, column 2 of patches of 2 x 2 pixels
    assert torch.equal(patches[candidates.index(chosen[step])], drawing[place])
    other = torch.tensor([[*chosen[:step], candidates[-1], *chosen[step + 1 :]]])
    with torch.no_grad():
        pixels: Any = bundle.model.decode(other)
    levels = ((pixels[0].movedim(0, -1)[place] / 2 + 0.5).clamp(0, 1) * 255).round()
    assert (patches[-1].float() - levels).abs().max() <= 1


def test_the_codebook_is_decoded_in_the_drawing(bundle: Bundle) -> None:
    trace = film(bundle)
    sheet, grid = read(trace, "codebook.0"), torch.tensor(codes(trace)).view(4, 4)
    assert sheet.shape == (24, SIDE, SIDE, 3)
    grid[1:4, 1:4] = 17
    with torch.no_grad():
        pixels: Any = bundle.model.decode(grid.flatten()[None])
    levels = ((pixels[0, :, 4:6, 4:6].movedim(0, -1) / 2 + 0.5).clamp(0, 1) * 255).round()
    assert (sheet[17].float() - levels).abs().max() <= 1


@pytest.mark.parametrize("changes", [(), (HEAD,)])
@pytest.mark.parametrize("guidance", [1.0, 2.5])
def test_the_cache_of_the_running_search_counts(
    bundle: Bundle, guidance: float, changes: tuple[schema.Intervention, ...]
) -> None:
    film_ = film_of(film(bundle, *changes, guidance_scale=guidance))
    film_.run(CODES - 1)
    rows, spec = 1 if guidance == 1 else 2, bundle.model.decoder.spec
    position = KVCache.allocate(spec, rows, 1).bytes
    kept = sum(cache.bytes for cache in film_.caches)
    assert film_.bytes - kept >= position * (len(film_.prompt) + (0 if changes else CODES - 2))
    film_.run(CODES)
    assert film_.bytes == kept


def test_an_exported_page_has_the_film(bundle: Bundle) -> None:
    trace = film(bundle)
    shapes = {name: read(trace, name).shape for name in film_of(trace).names()}
    assert shapes.keys() >= {"step.0.frames", "step.16.frames", "step.16.codes", "step.16.logprobs"}
    assert shapes["codebook.0"] == (24, SIDE, SIDE, 3) and len(shapes) == 12


def test_a_catalog_describes_and_traces_it(bundle: Bundle) -> None:
    info = describe_model(bundle, "mine")
    assert (info.kind, info.architecture, info.outline.stacks) == ("draw", "image-tokens", ())
    trace = schema.to_json(Catalog({"mine": bundle}).take("mine", info.example).info())
    outcome, defaults = (
        trace["outcome"],
        {"guidance_scale": 3.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0},
    )
    expected = {"text": info.example.text, "seed": 0, "start_step": 0, **defaults}
    assert trace["input"] == expected
    assert (outcome["steps"], outcome["codes"]["grid"], outcome["codes"]["counts"]) == (16, [4, 4], None)


@pytest.mark.parametrize(
    "change",
    [
        schema.AblateHead(attention="decoder.decoder.blocks.9.self_attn", head=0),
        schema.MaskToken(sequence="text", position=99),
        schema.ForceToken(step=CODES, token=0),
        schema.ForceToken(step=0, token=24),
        schema.SkipLayer(block="decoder.decoder.blocks.0"),
    ],
)
def test_impossible_interventions_are_one_error(bundle: Bundle, change: schema.Intervention) -> None:
    with pytest.raises(GlassformerError):
        film(bundle, change)


@pytest.mark.parametrize(
    "name",
    [
        "step.17.frames",
        "step.17.codes",
        "step.16.candidates",
        "step.16.patches",
        "step.16.probabilities",
        "step.99.probabilities",
        "codebook.1",
        "codebook.00",
        "step.3.nothing",
    ],
)
def test_tensors_that_do_not_exist_are_errors(bundle: Bundle, name: str) -> None:
    with pytest.raises(GlassformerError):
        read(film(bundle), name)


@pytest.mark.parametrize("setting", [{"temperature": 0}, {"num_inference_steps": 20}])
def test_settings_that_it_does_not_have_are_errors(bundle: Bundle, setting: dict[str, Any]) -> None:
    with pytest.raises(GlassformerError):
        film(bundle, **setting)
