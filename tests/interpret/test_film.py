"""The film of a drawing: its pictures, attention and interventions are those of the task's loop."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core.inputs import LatentInputs
from glassformer.core.observe import observe
from glassformer.errors import GlassformerError
from glassformer.interpret import schema
from glassformer.interpret.catalog import Catalog, describe_model
from glassformer.interpret.tensors import read_tensor
from glassformer.interpret.trace import Trace, trace_model
from glassformer.tasks.declarations.draw_images import make_generator
from tests.interpret.models import drawing_model

STEPS = 4
PROMPTS = {
    **{"dit": "7", "pixart": "the cat sat on the mat."},
    **{"unet_2d_condition": "the cat sat", "latte": "the cat sat on the mat."},
}
CROSS = {
    "dit": "denoiser.encoder.blocks.1.self_attn",
    "pixart": "denoiser.encoder.blocks.1.cross_attn",
    "latte": "denoiser.encoder.blocks.2.cross_attn",
    "unet_2d_condition": "denoiser.encoder.levels.0.attentions.0.stack.blocks.0.cross_attn",
}


@pytest.fixture(scope="module", params=PROMPTS)
def name(request: Any) -> Any:
    return request.param


@pytest.fixture(scope="module")
def bundle(name: str) -> Bundle:
    return drawing_model(name)


def film(bundle: Bundle, name: str, *changes: schema.Intervention, **options: Any) -> Trace:
    input = schema.TraceInput(text=PROMPTS[name], num_inference_steps=STEPS, seed=5, **options)
    return trace_model(bundle, input, changes)


def frames(trace: Trace, step: int) -> Tensor:
    return read_tensor(trace, f"step.{step}.frames").values


def make_task(bundle: Bundle, **options: Any) -> Any:
    return make_generator(bundle, {"num_inference_steps": STEPS, "seed": 5, **options})


def loop(bundle: Bundle, name: str) -> tuple[Tensor, list[Any]]:
    """The image (h, w, C), or the frames of the video, and the steps of the task."""
    taken: list[Any] = []
    task = make_task(bundle, callback=lambda n, step: taken.append(step))
    drawn = task([PROMPTS[name]])[0].images[0]
    return torch.from_numpy(np.array([*map(np.array, drawn)] if name == "latte" else drawn)), taken


def test_the_film_ends_with_the_drawing_of_the_task(bundle: Bundle, name: str) -> None:
    trace = film(bundle, name)
    expected, taken = loop(bundle, name)
    assert torch.equal(frames(trace, STEPS)[1], expected)
    for step in range(STEPS):
        clean = bundle.model.decode(taken[step].pred_original_sample)[0].detach().movedim(0, -1)
        assert torch.equal(frames(trace, step)[1], ((clean / 2 + 0.5).clamp(0, 1) * 255).round().byte())
    outcome: Any = trace.outcome
    assert len(outcome.timesteps) == STEPS and trace.bytes > 0
    with pytest.raises(GlassformerError):
        read_tensor(trace, f"step.{STEPS + 1}.frames")


def test_steps_run_only_when_they_are_looked_at(bundle: Bundle, name: str) -> None:
    trace = film(bundle, name)
    assert trace.film is not None and len(trace.film.clean) == 1
    later = frames(trace, 2)
    assert len(trace.film.clean) == 3
    again = film(bundle, name)
    assert torch.equal(frames(again, 2), later)


def test_attention_of_a_step_is_that_of_the_denoiser(bundle: Bundle, name: str) -> None:
    """Computed directly, from the sample that the task had at that step."""
    trace, step, attention = film(bundle, name), 2, CROSS[name]
    _, taken = loop(bundle, name)
    task = make_task(bundle)
    condition, _ = task.conditions(task.load([PROMPTS[name]]))
    latents = task.sampler.model_input(taken[step - 1].prev_sample, step)
    record = observe(bundle.model, LatentInputs(latents, task.sampler.timesteps[step], **condition))
    weights = record.weights(attention)
    served = read_tensor(trace, f"step.{step}.{attention}.weights", "0,1").values
    assert torch.allclose(served, weights[0, 1], atol=2e-5)
    info = next(one for one in trace.outcome.attentions if one.name == attention)  # type: ignore[union-attr]
    frames = trace.outcome.num_frames or 1  # type: ignore[union-attr]
    assert frames * info.grid[0] * info.grid[1] == served.shape[0] and info.heads == weights.shape[1]
    assert not torch.allclose(
        served,
        observe(bundle.model, LatentInputs(latents, task.sampler.timesteps[0], **condition)).weights(
            attention
        )[0, 1],
        atol=2e-5,
    )


def test_interventions_apply_from_their_step_on(bundle: Bundle, name: str) -> None:
    plain = film(bundle, name)
    head = schema.AblateHead(attention=CROSS[name], head=1)
    word = schema.MaskToken(sequence="text", position=1)
    for change in (head, word)[: 1 if name == "dit" else 2]:
        changed = film(bundle, name, change, start_step=2)
        assert all(torch.equal(frames(plain, n), frames(changed, n)) for n in range(2))
        same_input = [frames(trace, 2) for trace in (plain, changed)]
        assert torch.equal(same_input[0][0], same_input[1][0])  # of the same sample, another prediction
        assert plain.film is not None and changed.film is not None
        assert not torch.allclose(plain.film.clean[2], changed.film.clean[2])
        if change is word:
            weights = [
                read_tensor(changed, f"step.{n}.{CROSS[name]}.weights", "0,:,:,1").values for n in (1, 2)
            ]
            assert weights[0].min() > 0 and weights[1].max() == 0
            expected = clean_without_word(bundle, name, plain.film.latents[2], 2, 1)
            assert torch.allclose(changed.film.clean[2], expected, atol=1e-4)


@torch.no_grad()
def clean_without_word(bundle: Bundle, name: str, x: Tensor, step: int, word: int) -> Tensor:
    """The clean sample that is predicted if only the row with the prompt does not see the word."""
    task = make_task(bundle)
    condition, negative = (dict(fields) for fields in task.conditions(task.load([PROMPTS[name]])))
    mask = condition.get("text_mask", torch.ones(1, condition["text"].shape[1], dtype=torch.bool)).clone()
    mask[:, word] = False
    timestep = task.sampler.timesteps[step]
    rows = [LatentInputs(x, timestep, **fields) for fields in ({**condition, "text_mask": mask}, negative)]
    shown, without = (bundle.model(row)[:, : x.shape[1]] for row in rows)
    output = without + 7.5 * (shown - without)
    return task.sampler.step(output, step, x).pred_original_sample


def test_a_head_that_is_off_contributes_zeros(bundle: Bundle, name: str) -> None:
    """As if the rows of the output projection that read it were zero."""
    attention = bundle.model.get_submodule(CROSS[name])
    changed = film(bundle, name, schema.AblateHead(attention=CROSS[name], head=0))
    result = frames(changed, STEPS)
    weight, width = attention.out_proj.weight, attention.value_dim
    saved = weight.detach().clone()
    with torch.no_grad():
        weight[:, :width] = 0
        expected = frames(film(bundle, name), STEPS)
        weight.copy_(saved)
    assert (result.int() - expected.int()).abs().max() <= 1
    assert not torch.equal(result, frames(film(bundle, name), STEPS))


def test_norms_of_the_modulation(bundle: Bundle, name: str) -> None:
    trace = film(bundle, name)
    if name == "unet_2d_condition":
        assert trace.outcome.modulation is None  # type: ignore[union-attr]
        return
    norms = read_tensor(trace, "film.modulation").values
    blocks: Any = bundle.model.get_submodule("denoiser.encoder.blocks")
    assert norms.shape == (len(blocks), 6, STEPS)
    task = make_task(bundle)
    condition, _ = task.conditions(task.load([PROMPTS[name]]))
    inputs = LatentInputs(torch.zeros(1, *task.latent_shape), task.sampler.timesteps[3], **condition)
    gates: list[Tensor] = []
    hook = blocks[0].scale_ffn.modulation.register_forward_hook(lambda m, i, out: gates.append(out[0]))
    with torch.no_grad():
        bundle.model(inputs)
    hook.remove()
    assert float(norms[0, 5, 3]) == pytest.approx(float(gates[0].norm()), rel=1e-6)


def test_a_catalog_describes_and_traces_it(bundle: Bundle, name: str) -> None:
    info = describe_model(bundle, "mine")
    assert (info.kind, info.architecture, info.outline.stacks) == ("draw", "diffusion", ())
    catalog = Catalog({"mine": bundle})
    trace = catalog.take("mine", replace(info.example, num_inference_steps=2))
    assert schema.to_json(trace.info())["outcome"]["kind"] == "draw"


def test_attention_within_and_between_frames() -> None:
    """Of a patch at row 1 and column 2 of the third frame, in every head."""
    bundle = drawing_model("latte")
    trace, step = film(bundle, "latte", num_frames=3), 1
    assert trace.film is not None
    outcome: Any = trace.outcome
    (space, time) = (next(a for a in outcome.attentions if a.kind == kind) for kind in ("self", "time"))
    assert (outcome.num_frames, space.grid) == (3, time.grid)
    count, patch = math.prod(space.grid), space.grid[1] + 2
    task = make_task(bundle, num_frames=3)
    condition, _ = task.conditions(task.load([PROMPTS["latte"]]))
    latents = trace.film.latents
    frames(trace, step)
    record = observe(bundle.model, LatentInputs(latents[step], task.sampler.timesteps[step], **condition))
    within = read_tensor(trace, f"step.{step}.{space.name}.weights", f"0,:,{2 * count + patch}").values
    row = record.weights(space.name)[2, :, patch]  # frame, head, query, key
    assert torch.allclose(within[:, 2 * count :], row, atol=1e-6) and not within[:, : 2 * count].any()
    through = f"{patch}:{3 * count}:{count}"
    between = read_tensor(trace, f"step.{step}.{time.name}.weights", f"0,:,{through},{through}").values
    expected = record.weights(time.name)[patch]  # place, head, query, key
    assert torch.allclose(between, expected, atol=1e-6) and float(expected.std(-1).min()) > 1e-3
    with pytest.raises(GlassformerError, match="num_frames"):
        film(drawing_model("pixart"), "pixart", num_frames=3)


@pytest.mark.parametrize(
    "change",
    [
        schema.AblateHead(attention="denoiser.encoder.blocks.9.self_attn", head=0),
        schema.AblateHead(attention="denoiser.encoder.blocks.0.self_attn", head=99),
        schema.MaskToken(sequence="text", position=99),
        schema.SkipLayer(block="denoiser.encoder.blocks.0"),
    ],
)
def test_impossible_interventions_are_one_error(change: schema.Intervention) -> None:
    with pytest.raises(GlassformerError):
        film(drawing_model("pixart"), "pixart", change)
