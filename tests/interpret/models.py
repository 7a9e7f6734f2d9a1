"""Tiny random models of every kind, each with what it needs to read: a tokenizer, a scale, a preprocessor."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, TypeAdapter
from torch import Tensor

from glassformer.api import Pipeline, tiny
from glassformer.bundle import Bundle
from glassformer.core import spec
from glassformer.core.build import build_model
from glassformer.core.observe import observe
from glassformer.diffusion import DDIM, write_scheduler_config
from glassformer.families.sidecars import IMAGE_PROCESSOR_FILE, SCHEDULER_FILE, JobInfo
from glassformer.interpret.interventions import IntervenedForward
from glassformer.interpret.prepared_input import PreparedInput
from glassformer.interpret.schema import FillOutcome, Intervention, Kind, TraceInput
from glassformer.interpret.trace import Trace, trace_model
from glassformer.tokenization import Tokenizer, TokenizerPlan, load_tokenizer, train_tokenizer
from glassformer.verify.inputs import perturb_parameters
from tests.tasks.folders import VOCABULARY, write_tokenizer
from tests.tasks.tiny_models import byte_tokenizer

TEXT = "the cat sat on the mat."
LINES = [TEXT, "a dog ran, and the cat ran after", "where is the glass? on the mat"] * 3
WRITERS = ("original", "t5", "bart", "marian")
CONTINUERS = ("gpt2", "llama", "mistral", "falcon", "palm", "gpt_neox", "gemma2")
ENCODERS = ("bert", "roberta", "distilbert", "electra", "albert", "modernbert", "deberta")
CHANGES = TypeAdapter(list[Annotated[Intervention, Field(discriminator="kind")]])


@cache
def wordwise() -> Tokenizer:
    return train_tokenizer(LINES, TokenizerPlan(kind="word", vocab_size=60))


@cache
def wordpieces() -> Tokenizer:
    with TemporaryDirectory() as folder:
        write_tokenizer(Path(folder))
        return load_tokenizer(folder)


def _random_bundle(family: str, tokenizer: Tokenizer | None = None, **settings: Any) -> Bundle:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = tiny(family, **settings).eval()
    perturb_parameters(model)
    return Pipeline(model=model, tokenizer=tokenizer, family=family)


def drawing_model(denoiser: str, *, latent: bool = True) -> Bundle:
    """A tiny model that draws: from classes, or from texts with a text encoder."""
    part, text_dim = tiny(denoiser).spec, {"pixart": 24, "latte": 24, "unet_2d_condition": 16}.get(denoiser)
    words: Any = None if text_dim is None else tiny("bert", d_model=text_dim, vocab_size=len(VOCABULARY)).spec
    whole = spec.DiffusionModelSpec(
        denoiser=part,
        autoencoder=tiny("autoencoder_kl").spec if latent else None,
        text_encoder=words,
        text_len=None if words is None else 16,
        mask_padding=denoiser == "pixart",
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_model(whole).eval()
    perturb_parameters(model)
    bundle = Pipeline(model=model, tokenizer=wordpieces() if words else None)
    bundle.files[SCHEDULER_FILE] = write_scheduler_config(DDIM())
    return bundle


def image_tokens_model(classes: tuple[str, ...] = ()) -> Bundle:
    """A tiny model that draws 4 x 4 codes of 24: for texts, or for classes."""
    words, longest = (len(classes), 1) if classes else (wordwise().vocab_size, 12)
    size = {"vocab_size": 24 + 1 + words, "max_len": longest + 1 + 16}
    decoder: Any = replace(tiny("llama", **size).spec, head=spec.LanguageModelSpec(vocab_size=24))
    autoencoder: Any = tiny("vq_model", image_size=8).spec
    whole = spec.ImageTokensModelSpec(
        decoder=decoder, autoencoder=autoencoder, num_classes=len(classes) or None
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_model(whole).eval()
    perturb_parameters(model)
    if classes:
        return Bundle(model=model, job=JobInfo(classes=classes))
    return Bundle(model=model, tokenizer=wordwise())


def tiny_bundle(family: str, **settings: Any) -> Bundle:
    """A tiny model of the family."""
    match family:
        case "original":
            size = wordwise().vocab_size
            settings = {"src_vocab_size": size, "tgt_vocab_size": size, **settings}
            bundle = _random_bundle(family, wordwise(), **settings)
            bundle.generation |= {"decoder_start_token_id": wordwise().eos_id}
            return bundle
        case "t5" | "bart" | "marian":
            bundle = _random_bundle(family, wordwise(), vocab_size=wordwise().vocab_size, **settings)
            bundle.generation |= {
                "decoder_start_token_id": wordwise().pad_id,
                "eos_token_id": wordwise().eos_id,
                "pad_token_id": wordwise().pad_id,
            }
            return bundle
        case "llava" | "gpt2" | "llama" | "mistral" | "falcon" | "palm" | "gpt_neox" | "gemma2":
            return _random_bundle(
                family, byte_tokenizer(), vocab_size=byte_tokenizer().vocab_size, **settings
            )
        case "vit" | "deit" | "swin" | "swinv2" | "dinov2" | "mask2former":
            bundle = _random_bundle(family, **settings)
            bundle.files[IMAGE_PROCESSOR_FILE] = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.5]}
            return bundle
        case "vilt":
            settings = {"vocab_size": len(VOCABULARY), "num_labels": 3, **settings}
            bundle = _random_bundle(family, wordpieces(), **settings)
            bundle.job = JobInfo(name="vqa", classes=("red", "two", "no"))
            bundle.files[IMAGE_PROCESSOR_FILE] = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.5]}
            return bundle
        case "clip" | "siglip":
            bundle = _random_bundle(family, wordpieces(), vocab_size=len(VOCABULARY), **settings)
            bundle.files[IMAGE_PROCESSOR_FILE] = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.5]}
            return bundle
        case "vision_encoder_decoder" | "blip":
            bundle = _random_bundle(family, wordpieces(), vocab_size=len(VOCABULARY), **settings)
            bundle.generation |= {"eos_token_id": 3, "pad_token_id": 0, "max_length": 12}
            bundle.files[IMAGE_PROCESSOR_FILE] = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.5]}
            return bundle
        case "yolos" | "detr":
            bundle = _random_bundle(family, **settings)
            bundle.files[IMAGE_PROCESSOR_FILE] = {
                **{"image_processor_type": f"{family.title()}ImageProcessor", "do_pad": False},
                **{"size": {"shortest_edge": 40, "longest_edge": 72}},
                **{"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.5]},
            }
            return bundle
        case "sam":
            bundle = _random_bundle(family, **settings)
            side = bundle.spec.input.image_size[0]
            bundle.files[IMAGE_PROCESSOR_FILE] = {
                **{"image_processor_type": "SamImageProcessor", "size": {"longest_edge": side}},
                **{"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.5]},
                **{"do_pad": True, "pad_size": {"height": side, "width": side}},
            }
            return bundle
        case "patchtst":
            bundle = _random_bundle(family, **settings)
            bundle.job = JobInfo(columns=("load", "oil"), mean=(5.0, -3.0), std=(2.0, 0.5))
            return bundle
    return _random_bundle(family, wordpieces(), vocab_size=len(VOCABULARY), **settings)


def classifier() -> Bundle:
    bundle = tiny_bundle("bert", head=spec.ClassifySpec(num_labels=3, hidden="tanh"))
    bundle.job = JobInfo(classes=("bad", "so so", "good"))
    return bundle


def picture(size: tuple[int, int] = (23, 19), kind: str = "PNG") -> bytes:
    """The file of a picture of noise."""
    from PIL import Image

    pixels = np.random.default_rng(3).integers(0, 256, (*size, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def url(file: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(file).decode()}"


def columns(rows: int = 40) -> dict[str, list[float]]:
    values = np.random.default_rng(5).normal(4, 2, (2, rows)).round(3)
    return {"load": values[0].tolist(), "oil": values[1].tolist(), "ignored": [0.0] * rows}


def example_values(bundle: Bundle) -> dict[str, Any]:
    """An input that fits the model."""
    if bundle.family == "vilt":
        return {"image": url(picture()), "question": "where is the cat?"}
    if isinstance(bundle.spec, spec.TwoTowerSpec):
        return {"image": url(picture()), "text": TEXT}
    read = bundle.spec.source if isinstance(bundle.spec, spec.EncoderDecoderSpec) else bundle.spec.input
    match read, bundle.spec.head:
        case spec.ImagePatchesSpec() | spec.FeatureMapSpec(), _:
            return {"image": url(picture())}
        case spec.SeriesPatchesSpec(), _:
            return {"series": {"columns": columns(), "holdout": 4}}
        case _, spec.AnswerSpec():
            return {"question": "where is the cat?", "context": "the dog ran and the cat sat on the mat."}
        case _, spec.MaskedLanguageModelSpec():
            return {"text": "the [MASK] sat on the [MASK]."}
    return {"text": TEXT}


def interventions(changes: Iterable[dict[str, Any]]) -> list[Intervention]:
    return CHANGES.validate_python(list(changes))


def trace_of(
    bundle: Bundle, values: dict[str, Any], changes: Iterable[dict[str, Any]] = (), *, model: str = "model"
) -> Trace:
    """The trace of JSON values, as the server passes them on."""
    return trace_model(bundle, TraceInput.from_json(values), interventions(changes), model=model)


def random_model(family: str, **options: Any) -> Any:
    """A tiny model of the family, with numbers so large that a mistake shows."""
    torch.manual_seed(0)
    model: Any = tiny(family, **options).eval()
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value) * 0.2)
    return model


def inputs_for(model: Any, length: int = 9, seed: int = 1) -> dict[str, Tensor]:
    """Something to read."""
    generator = torch.Generator().manual_seed(seed)
    match type(model).__name__:
        case "EncoderDecoder":
            return {
                "src": torch.randint(4, 50, (1, length), generator=generator),
                "tgt": torch.randint(4, 50, (1, length - 2), generator=generator),
            }
        case "DecoderOnly":
            return {"inputs": torch.randint(4, 50, (1, length), generator=generator)}
    embed = model.embed
    if hasattr(embed, "image_size"):
        return {"inputs": torch.randn(1, embed.channels, *embed.image_size, generator=generator)}
    if hasattr(embed, "context_length"):
        return {"inputs": torch.randn(1, embed.context_length, embed.channels, generator=generator)}
    return {"inputs": torch.randint(4, 50, (1, length), generator=generator)}


def trace_forward(
    model: Any, inputs: dict[str, Any], kind: Kind = "generate", changes: Sequence[Any] = (), id: str = "a"
) -> Trace:
    """The trace of one forward."""
    applied = interventions(changes)
    forward = IntervenedForward(model, inputs, applied)
    return Trace(
        id=id,
        model="model",
        bundle=Bundle(model=model),
        prepared=PreparedInput(kind=kind, input=TraceInput(), sequences=(), inputs=forward.inputs),
        interventions=tuple(applied),
        record=observe(forward.model, forward.inputs, edit=forward.edit),
        outcome=FillOutcome(masks=()),
        forward_seconds=0.0,
    )
