"""The job diffusion: its objectives beside diffusers' schedulers, and runs from folders to drawings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import glassformer
from glassformer.core.inputs import LatentInputs
from glassformer.diffusion import DDIM, FlowMatchEuler, ImageNoise
from glassformer.diffusion.objectives import DenoisingObjective
from glassformer.errors import (
    ConflictError,
    FileMissingError,
    FileProblemError,
    GlassformerError,
    InvalidValueError,
    UnsupportedError,
)
from glassformer.tasks.drawing import DiffusionImageGenerator
from glassformer.training import diffusion_learner
from glassformer.training.callbacks import TrainerCallback
from glassformer.training.diffusion_learner import DiffusionLearner
from glassformer.training.evaluation import evaluate_files
from glassformer.training.logging.sample_images import tile_images
from glassformer.training.run import train
from tests.families.diffusion_models import diffusers, reference
from tests.families.test_autoencoders import settings as autoencoder_settings
from tests.tasks.test_drawing import stable_diffusion
from tests.training.test_jobs_contrastive import make_shapes

__all__ = ["stable_diffusion"]
SMALL: dict[str, Any] = {"d_model": 32, "num_heads": 4, "num_layers": 2}
STEPS: dict[str, Any] = {
    "eval_steps": 2,
    "save_steps": 2,
    "batch_size": 8,
    "device": "cpu",
    "lr": 1e-3,
    "log_samples": 0,
}


def make_folders(folder: Path, classes: tuple[str, ...] = ("dark", "light"), count: int = 12) -> Path:
    """A folder of gray images per class."""
    rng = np.random.default_rng(0)
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for n in range(count):
            pixels = rng.integers(0, 100, (8, 8)) + 150 * number
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / name / f"{n}.png")
    return folder


def run(folder: Path, data: dict[str, Any], model: dict[str, Any], **training: Any) -> Any:
    """Train in a folder and load the result."""
    callbacks = training.pop("callbacks", ())
    recipe = {"job": "diffusion", "data": data, "model": model, "training": {**STEPS, **training}}
    if "tokenizer" in training:
        recipe["tokenizer"] = recipe["training"].pop("tokenizer")
    train(recipe, folder, log=lambda text: None, callbacks=callbacks)
    return glassformer.load(folder)


def classes_run(folder: Path, **training: Any) -> Any:
    """Two classes in gray, with random flips."""
    data = folder.parent / "images"
    if not data.exists():
        make_folders(data)
    options = {"train": str(data), "valid": 0.3, "flip_prob": 0.5}
    return run(folder, options, SMALL, **{"max_steps": 4, **training})


@pytest.mark.parametrize("prediction_type", ["epsilon", "v_prediction", "sample"])
def test_noise_and_targets_match_diffusers(prediction_type: Any) -> None:
    objective = DenoisingObjective(DDIM(prediction_type=prediction_type, beta_schedule="scaled_linear"))
    theirs = diffusers.DDPMScheduler(beta_schedule="scaled_linear")
    clean, noise = torch.randn(2, 5, 3, 4, 4, dtype=torch.float64).unbind()
    level = objective.level(torch.tensor([0.0, 0.3, 0.5, 0.999, 1.0]))
    assert level.timesteps.tolist() == [0, 300, 500, 999, 999]
    expected = theirs.add_noise(clean, noise, level.timesteps)
    torch.testing.assert_close(objective.mix(clean, noise, level), expected, rtol=0, atol=1e-6)
    targets = {"epsilon": noise, "sample": clean}
    target = targets.get(prediction_type, theirs.get_velocity(clean, noise, level.timesteps))
    torch.testing.assert_close(objective.target(clean, noise, level), target, rtol=0, atol=1e-6)


@pytest.mark.parametrize("settings", [FlowMatchEuler(), FlowMatchEuler(shift=3.0), DDIM(clip_sample=False)])
def test_samplers_recover_the_clean_image_from_a_perfect_prediction(settings: Any) -> None:
    """The times, levels and targets of training are those of the sampler that fits the same scheduler."""
    objective, sampler = DenoisingObjective(settings), settings.sampler(10)
    clean, noise = torch.randn(2, 1, 3, 4, 4, dtype=torch.float64).unbind()
    for index, timestep in enumerate(sampler.timesteps):
        level = objective.level((timestep[None] + 1e-3 * (settings.config_class[0] == "D")) / 1000)
        torch.testing.assert_close(level.timesteps.float(), timestep[None].float())
        x = objective.mix(clean, noise, level)
        step = sampler.step(objective.target(clean, noise, level), index, x)
        torch.testing.assert_close(step.pred_original_sample, clean, rtol=0, atol=2e-3)


def test_times_of_flow_matching_are_mostly_in_the_middle() -> None:
    torch.manual_seed(0)
    times = DenoisingObjective(FlowMatchEuler()).random_times(20_000, torch.device("cpu"))
    inner = ((times > 0.25) & (times < 0.75)).float().mean()
    assert abs(float(inner) - 0.728) < 0.02  # of the logistic of a normal number
    even = DenoisingObjective(DDIM()).random_times(20_000, torch.device("cpu"))
    assert abs(float(((even > 0.25) & (even < 0.75)).float().mean()) - 0.5) < 0.02


def test_loss_is_summed_over_images_and_ignores_a_variance() -> None:
    denoiser = glassformer.tiny("dit", num_classes=3)  # it predicts a variance too
    for parameter in denoiser.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    learner = DiffusionLearner(denoiser.eval(), settings=DDIM()).eval()
    clean, noise = torch.randn(2, 4, 4, 8, 8).unbind()
    level = learner.objective.level(torch.tensor([0.1, 0.4, 0.6, 0.9]))
    labels = torch.tensor([0, 1, 2, 1])
    with torch.no_grad():
        together = learner.loss(clean, noise, level, {"labels": labels})
        noisy = learner.objective.mix(clean, noise, level)
        output = denoiser(LatentInputs(noisy, level.timesteps, labels=labels))[:, :4]
    assert together == pytest.approx(float((output - noise).square().mean((1, 2, 3)).sum()), rel=1e-5)


class EndOfTraining(TrainerCallback):
    """What the trainer has at the end."""

    def on_train_end(self, trainer: Any) -> None:
        self.ema = {name: tensor.clone() for name, tensor in trainer.ema.tensors.items()}
        self.weights = {name: tensor.detach().clone() for name, tensor in trainer.parameters.items()}
        self.metrics = dict(trainer.metrics)


def test_resumed_run_is_bit_identical_and_uses_the_averaged_weights(tmp_path: Path) -> None:
    """Noise, times, dropped classes and flips follow from the seed of the step, also within an epoch."""
    whole, stopped = EndOfTraining(), EndOfTraining()
    options: dict[str, Any] = {"ema": 0.9, "gradient_accumulation_steps": 2, "lr_scheduler": "constant"}
    options |= {"load_best_model_at_end": False, "batch_size": 5, "log_samples": 4}
    model = classes_run(tmp_path / "whole", callbacks=[whole], **options)
    classes_run(tmp_path / "stopped", **{**options, "max_steps": 3})
    resumed = classes_run(tmp_path / "stopped", callbacks=[stopped], **options)
    assert "resuming from step 3 of 4" in (tmp_path / "stopped" / "train.log").read_text()
    for name, tensor in whole.ema.items():
        assert torch.equal(tensor, stopped.ema[name])
        assert torch.equal(whole.weights[name], stopped.weights[name])
    saved = model.model.state_dict()
    assert all(torch.equal(saved[name], tensor) for name, tensor in whole.ema.items())
    assert any(not torch.equal(saved[name], tensor) for name, tensor in whole.weights.items())
    assert all(torch.equal(saved[name], tensor) for name, tensor in resumed.model.state_dict().items())
    # the last validation and its images are those of the saved model
    valid = {"train": str(tmp_path / "images"), "valid": 0.3}
    assert evaluate_on(model, valid, tmp_path / "again") == pytest.approx(whole.metrics, rel=1e-6)
    generator = DiffusionImageGenerator(
        model, num_inference_steps=20, guidance_scale=3.0, num_images_per_prompt=4, batch_size=40
    )
    images = [drawing.images for drawing in generator([0, 1])]
    pixels = np.stack([np.asarray(image) for row in zip(*images, strict=True) for image in row])[..., None]
    with Image.open(tmp_path / "whole" / "samples" / "step-00000004-drawings.png") as picture:
        assert np.array_equal(np.asarray(picture), tile_images(pixels, columns=2)[..., 0])


def evaluate_on(model: Any, data: dict[str, Any], folder: Path) -> dict[str, float]:
    """The metrics of a model on the validation split of data."""
    from glassformer.training.job import create_job
    from glassformer.training.recipe import parse_recipe

    recipe = {"job": "diffusion", "data": data, "model": {"folder": str(model.folder)}}
    job = create_job(
        parse_recipe({**recipe, "training": {"log_samples": 0, "batch_size": 5}}), folder, lambda text: None
    )
    job.prepare_data()
    plan = job.plan()
    plan.learner.eval()
    assert plan.validate is not None
    with torch.no_grad():
        return plan.validate(torch.device("cpu")).metrics


def test_class_names_and_evaluation(tmp_path: Path) -> None:
    model = classes_run(tmp_path / "run", max_steps=2, log_samples=1)
    assert model.job.classes == ("dark", "light") and model.spec.modalities == ("class",)
    drawn = DiffusionImageGenerator(model, num_inference_steps=2)("light").images[0]
    assert drawn.size == (8, 8) and drawn.mode == "L"
    report = (tmp_path / "run" / "report.html").read_text()
    assert "step 2: <bdi>dark, light; 20 steps, guidance 3" in report
    result = evaluate_files(tmp_path / "run/model", [str(tmp_path / "images")], log=lambda text: None)
    assert result.job == "diffusion" and set(result.validation.metrics) == {
        *("loss", "loss_at_0.2", "loss_at_0.5", "loss_at_0.8")
    }
    assert not result.validation.images


def text_data(folder: Path, **more: Any) -> dict[str, Any]:
    folder.mkdir()
    return {"train": str(make_shapes(folder, 24)), "valid": 0.2, "image_size": [16, 16], **more}


@pytest.mark.parametrize("preset", ["pixart-mini", "unet-mini"])
def test_texts_train_with_a_new_text_encoder(preset: str, tmp_path: Path) -> None:
    sizes = SMALL if preset == "pixart-mini" else {"widths": [32, 32], "attention_levels": [False, True]}
    model = {**sizes, "preset": preset, "text_dim": 16}
    bundle = run(
        tmp_path / "run", text_data(tmp_path / "data"), model, max_steps=2, tokenizer={"vocab_size": 60}
    )
    assert bundle.spec.text_encoder.encoder.d_model == 16 and bundle.spec.mask_padding
    drawn = DiffusionImageGenerator(bundle, num_inference_steps=2)("a red circle").images[0]
    assert drawn.size == (16, 16) and drawn.mode == "RGB"
    result = evaluate_files(
        tmp_path / "run/model", [str(tmp_path / "data/captions.tsv")], log=lambda text: None
    )
    assert result.validation.metrics["loss"] > 0


def test_dropped_texts_are_the_empty_prompt_of_drawing(
    stable_diffusion: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diffusion_learner, "TEXT_DROPOUT", 1.0)
    bundle = glassformer.load(stable_diffusion[1])
    task, tokenizer = DiffusionImageGenerator(bundle), bundle.tokenizer
    learner = DiffusionLearner(
        bundle.model.train(), settings=DDIM(), empty_text=tokenizer.encode("").ids, pad_id=tokenizer.pad_id
    )
    ids = torch.randint(0, 500, (2, task.spec.max_text_len))
    for part in learner.model.children():
        part.requires_grad_(False)
    learner.train()
    dropped = learner.condition(None, ids, torch.tensor([3, 9]))
    torch.testing.assert_close(dropped, task.encode_texts([tokenizer.encode("").ids] * 2))
    learner.eval()
    kept = learner.condition(None, ids, torch.tensor([3, 9]))
    assert (kept["text"] - dropped["text"]).abs().max() > 0.1


def save_autoencoder(folder: Path) -> Path:
    reference("AutoencoderKL", autoencoder_settings([8, 16])).save_pretrained(folder)
    return folder


def test_latents_are_stored_once_and_frozen_parts_do_not_change(tmp_path: Path) -> None:
    """The text tower of a CLIP model and a published autoencoder, with mirrored images."""
    data = text_data(tmp_path / "data", flip_prob=0.5)
    towers = {"d_model": 16, "num_heads": 4, "num_layers": 1, "d_ff": 32, "patch_size": 8}
    sizes = {**towers, **{f"text_{name}": size for name, size in towers.items() if name != "patch_size"}}
    contrastive = {"job": "contrastive", "data": text_data(tmp_path / "clip-data"), "model": sizes}
    contrastive |= {"tokenizer": {"vocab_size": 60}, "training": {**STEPS, "max_steps": 1}}
    train(contrastive, tmp_path / "clip", log=lambda text: None)
    folder = save_autoencoder(tmp_path / "vae")
    model = {**SMALL, "autoencoder": str(folder), "text_encoder": str(tmp_path / "clip")}
    bundle = run(tmp_path / "run", data, model, max_steps=2)
    vae, towers_model = glassformer.load(folder), glassformer.load(tmp_path / "clip")
    for name, before in (("autoencoder", vae.model), ("text_encoder", towers_model.model.text)):
        after = bundle.model.get_submodule(name).state_dict()
        known = {key: value for key, value in before.state_dict().items() if not key.startswith("head.")}
        assert all(torch.equal(after[key], value) for key, value in known.items())
    assert bundle.spec.latent_shape == (4, 8, 8) and bundle.spec.stride == 2
    stored = np.load(tmp_path / "run/data/train-pixels/latents.npy")
    pixels = np.fromfile(tmp_path / "run/data/train-pixels/pixels.u8", np.uint8).reshape(-1, 16, 16, 3)
    images = torch.from_numpy(pixels[3:4].astype(np.float32) / 127.5 - 1).movedim(-1, 1)
    with torch.no_grad():
        expected = [bundle.model.encode(x)[0] for x in (images, images.flip(-1))]
    torch.testing.assert_close(torch.from_numpy(stored[3]), torch.stack(expected), rtol=0, atol=1e-4)
    assert (expected[0] - expected[1]).abs().max() > 0.1
    drawn = DiffusionImageGenerator(bundle, num_inference_steps=2)("a red circle").images[0]
    assert drawn.size == (16, 16)


def test_latents_of_codes_train_and_are_decoded_as_codes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    options = {"image_size": 16, "widths": (8, 16), "norm_groups": 4, "code_dim": 5, "latent_channels": 12}
    glassformer.save(glassformer.tiny("vq_model", **options), tmp_path / "codes")
    model = {**SMALL, "autoencoder": str(tmp_path / "codes")}
    bundle = run(tmp_path / "run", text_data(tmp_path / "data"), model, max_steps=2)
    assert bundle.spec.latent_shape == (5, 8, 8)
    latents = torch.randn(1, 5, 8, 8)
    autoencoder = bundle.model.autoencoder
    codes = autoencoder.bottleneck.codes
    ids = torch.cdist(latents.movedim(1, -1).reshape(-1, 5), codes).argmin(-1).view(1, 8, 8)
    torch.testing.assert_close(autoencoder.decode(latents), autoencoder.decode_ids(ids))
    assert DiffusionImageGenerator(bundle, num_inference_steps=2)("a red circle").images[0].size == (16, 16)


@pytest.mark.parametrize("lora", [None, 4])
def test_fine_tuning_keeps_the_layout_of_diffusers(stable_diffusion: Any, lora: Any, tmp_path: Path) -> None:
    """Only the UNet changes; diffusers reads the folder and draws the same image."""
    theirs, folder = stable_diffusion
    data = text_data(tmp_path / "data")
    more = {} if lora is None else {"lora_r": lora, "lora_target_modules": ["q_proj", "v_proj"]}
    bundle = run(tmp_path / "run", data, {"folder": str(folder)}, max_steps=2, lr=1e-2, ema=0.5, **more)
    tuned = diffusers.StableDiffusionPipeline.from_pretrained(tmp_path / "run/model")
    changed = {
        name
        for name, value in tuned.unet.state_dict().items()
        if not torch.equal(value, theirs.unet.state_dict()[name])
    }
    assert changed and (lora is None or all(".to_q." in name or ".to_v." in name for name in changed))
    for part in ("vae", "text_encoder"):
        before = getattr(theirs, part).state_dict()
        assert all(torch.equal(v, before[k]) for k, v in getattr(tuned, part).state_dict().items())
    tuned.set_progress_bar_config(disable=True)
    noise = ImageNoise([3], (4, 8, 8)).draw()
    expected = tuned("a red circle", latents=noise, num_inference_steps=3, guidance_scale=2.0).images[0]
    task = DiffusionImageGenerator(bundle, num_inference_steps=3, guidance_scale=2.0, seed=3)
    difference = np.asarray(task("a red circle").images[0], int) - np.asarray(expected, int)
    assert np.abs(difference).max() <= 1
    assert (tmp_path / "run/model/unet/adapter/adapter_config.json").is_file() == (lora is not None)
    assert bundle.job.name == "diffusion"


def test_other_classes_get_a_new_table(tmp_path: Path) -> None:
    base = classes_run(tmp_path / "run", max_steps=1)
    data = {"train": str(make_folders(tmp_path / "more", ("a", "b", "c"))), "valid": 0.3}
    tuned = run(tmp_path / "tuned", data, {"folder": str(tmp_path / "run/model")}, max_steps=1, lr=1e-9)
    assert tuned.job.classes == ("a", "b", "c") and tuned.spec.latents.num_classes == 3
    before, after = base.model.state_dict(), tuned.model.state_dict()
    assert [name for name in before if before[name].shape != after[name].shape] == [
        "denoiser.embed.label.table.weight"
    ]
    kept = "denoiser.encoder.blocks.0.self_attn.q_proj.weight"
    torch.testing.assert_close(before[kept], after[kept], rtol=0, atol=1e-6)


def test_the_learner_compiles_into_one_graph(stable_diffusion: Any) -> None:
    """For classes, and for texts with a frozen text encoder."""
    classes = glassformer.build("dit-mini", image_size=8, **SMALL)
    torch.nn.init.normal_(classes.head.out.weight)
    texts = glassformer.load(stable_diffusion[1]).model
    texts.text_encoder.requires_grad_(False)
    images, ids = torch.randn(4, 4, 8, 8), torch.randint(9, 400, (4, texts.spec.max_text_len))
    for learner, inputs in (
        (DiffusionLearner(classes, settings=FlowMatchEuler()), (images[:, :1], torch.tensor([0, 1, 2, 9]))),
        (DiffusionLearner(texts, settings=DDIM(), empty_text=[1, 2]), (images, None, ids, ids[:, 0] % 30)),
    ):
        compiled = torch.compile(learner, fullgraph=True, backend="eager")
        losses = []
        for module in (learner.train(), compiled):
            torch.manual_seed(0)
            losses.append(module(*inputs).item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def bad_recipes(folder: Path) -> dict[str, tuple[dict[str, Any], dict[str, Any], type[GlassformerError]]]:
    """What is wrong: the data, the model and the error."""
    good = {"train": str(make_folders(folder / "images")), "valid": 0.3}
    for name in ("empty", "flat"):
        (folder / name).mkdir()
    Image.new("L", (8, 8)).save(folder / "flat/1.png")
    (folder / "captions.tsv").write_text("image\tcaption\nmissing.png\ta cat\ngone.png\ta dog\n")
    table = {"train": str(folder / "captions.tsv"), "valid": 0.5}
    classifier = {"folder": str(folder / "classifier")}
    glassformer.save(glassformer.tiny("vit"), folder / "classifier")
    return {
        "no images": ({**good, "train": str(folder / "empty")}, SMALL, FileProblemError),
        "no labels": ({**good, "train": str(folder / "flat")}, SMALL, FileProblemError),
        "no files": (table, SMALL, GlassformerError),
        "no folder": ({**good, "train": str(folder / "nowhere")}, SMALL, GlassformerError),
        "no autoencoder": (good, {**SMALL, "autoencoder": classifier["folder"]}, InvalidValueError),
        "no autoencoder folder": (good, {**SMALL, "autoencoder": str(folder / "no")}, FileMissingError),
        "no text encoder": (table, {**SMALL, "text_encoder": classifier["folder"]}, InvalidValueError),
        "no square": ({**good, "image_size": [8, 12]}, SMALL, InvalidValueError),
        "no whole patches": ({**good, "image_size": [9, 9]}, SMALL, InvalidValueError),
        "odd map": ({**good, "image_size": [10, 10]}, {"preset": "unet-mini"}, InvalidValueError),
        "no denoiser": (good, {"preset": "vit"}, UnsupportedError),
        "no classes": (good, {"preset": "pixart-mini"}, UnsupportedError),
        "nothing to draw with": (good, classifier, UnsupportedError),
        "two autoencoders": (good, {**classifier, "autoencoder": classifier["folder"]}, ConflictError),
    }


@pytest.mark.parametrize(
    "name",
    "no images,no labels,no files,no folder,no autoencoder,no autoencoder folder,no text encoder,no square,"
    "no whole patches,odd map,no denoiser,no classes,nothing to draw with,two autoencoders".split(","),
)
def test_bad_input_is_one_typed_error(name: str, tmp_path: Path) -> None:
    data, model, error = bad_recipes(tmp_path)[name]
    with pytest.raises(error):
        run(tmp_path / "run", data, model, max_steps=1)


def test_latents_reject_what_cannot_be_stored(tmp_path: Path) -> None:
    folder = save_autoencoder(tmp_path / "vae")
    data = {"train": str(make_folders(tmp_path / "images")), "valid": 0.3, "max_shift": 1}
    with pytest.raises(ConflictError):
        run(tmp_path / "run", data, {**SMALL, "autoencoder": str(folder)}, max_steps=1)
    del data["max_shift"]
    model = run(tmp_path / "run", data, {**SMALL, "autoencoder": str(folder)}, max_steps=1)
    assert json.loads((tmp_path / "run/model/job.json").read_text())["classes"] == ["dark", "light"]
    assert DiffusionImageGenerator(model, num_inference_steps=2)("dark").images[0].mode == "RGB"
