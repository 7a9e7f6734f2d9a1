"""Folders of several models in diffusers' layout: `model_index.json` names them, each is in a folder.

    model_index.json  scheduler/scheduler_config.json  tokenizer/  text_encoder/  transformer/ or unet/  vae/

They are loaded as one `Bundle`, whose model is a `DiffusionModel`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.core import spec
from glassformer.core.diffusion.model import DiffusionModel
from glassformer.errors import MissingValueError, UnknownNameError, UnsupportedError
from glassformer.families.lora_file import KOHYA, AdaptedPart, merge_lora_file
from glassformer.families.registry import families, family_of_spec
from glassformer.families.sidecars import INDEX_FILE, JOB_FILE, SCHEDULER_FILE, read_config, read_job
from glassformer.families.single_file import other_names
from glassformer.json_text import read_object
from glassformer.tokenization import load_tokenizer
from glassformer.tokenization.folder import CONFIG as TOKENIZER_CONFIG
from glassformer.weights.atomic_write import make_folder, write_file

if TYPE_CHECKING:
    from glassformer.bundle import Bundle
    from glassformer.families.family import Family


@dataclass(frozen=True)
class PipelineClass:
    """A class of pipelines in diffusers.

    denoiser: its folder. text: settings of `DiffusionModelSpec` for a text encoder.
    variants: classes with the same parts.
    """

    denoiser: str
    text: Mapping[str, Any] = field(default_factory=dict)
    variants: tuple[str, ...] = ()

    @property
    def folders(self) -> dict[str, str]:
        """The folder of each part of the model."""
        return {"denoiser": self.denoiser, "autoencoder": "vae", "text_encoder": "text_encoder"}


_T5 = {"text_len": 120, "mask_padding": True, "lowercase": True}
CLASSES: Mapping[str, PipelineClass] = {
    "StableDiffusionPipeline": PipelineClass(
        "unet", variants=("StableDiffusionImg2ImgPipeline", "StableDiffusionInpaintPipeline")
    ),
    "DiTPipeline": PipelineClass("transformer"),
    "PixArtAlphaPipeline": PipelineClass("transformer", _T5),
    "LattePipeline": PipelineClass("transformer", {**_T5, "shares_mask": True}),
}
IGNORED = ("safety_checker", "feature_extractor", "image_encoder")  # parts that are not read
NO_PART = (None, None)


def load_pipeline(folder: Path, **options: Any) -> Bundle:
    """Load a folder with a `model_index.json`. options: those of `glassformer.load`."""
    from glassformer.bundle import Bundle, load

    index = read_object(folder / INDEX_FILE)
    name = class_name(index)
    parts = {key for key, value in index.items() if isinstance(value, list) and tuple(value) != NO_PART}
    folders = CLASSES[name].folders
    if unknown := sorted(parts - {*folders.values(), "tokenizer", "scheduler", *IGNORED}):
        raise UnsupportedError(f"a {name}", f"the part {unknown[0]}")
    if "text_encoder" in parts and "tokenizer" not in parts:
        raise MissingValueError("tokenizer", f"in {folder / INDEX_FILE}, for the text encoder")
    parts |= {folders["denoiser"], "scheduler"}
    bundles = {part: load(folder / name, **options) for part, name in folders.items() if name in parts}
    settings: Mapping[str, Any] = CLASSES[name].text if "text_encoder" in bundles else {}
    model_spec = spec.DiffusionModelSpec(
        **{part: bundle.spec for part, bundle in bundles.items()},  # type: ignore[arg-type]
        **settings,
    )
    files = {SCHEDULER_FILE: read_object(folder / "scheduler" / SCHEDULER_FILE)}
    return Bundle(
        model=DiffusionModel(model_spec, **{part: one.model for part, one in bundles.items()}).eval(),  # type: ignore[arg-type]
        tokenizer=load_tokenizer(folder / "tokenizer") if "tokenizer" in parts else None,
        config={key: value for key, value in index.items() if key not in IGNORED},
        job=read_job(folder / JOB_FILE, None),
        files=files,
        folder=folder,
        parts=bundles,
    )


def merge_adapter(bundle: Bundle, path: Path) -> None:
    """Merge the LoRA adapter of a file into the weights of a diffusion model."""
    model: Any = bundle.model
    if not isinstance(model, DiffusionModel):
        hint = "load the folder of the adapter; it names its base model"
        raise UnsupportedError(bundle.display_name, "an adapter file", hint=hint)
    parts, folders = [], CLASSES[pipeline_of(bundle)].folders
    for part, own in model.spec.children().items():
        family, folder = family_of_part(bundle, part), folders[part]
        if family is not None and folder in KOHYA:
            names = other_names(part, own) if folder == "unet" else {}
            parts.append(AdaptedPart(folder, getattr(model, part), family.table(own, ()), names))
    merge_lora_file(path, parts)


def class_name(index: Mapping[str, Any]) -> str:
    """Return the class of pipelines that an index names."""
    name = str(index.get("_class_name"))
    for known, row in CLASSES.items():
        if name == known or name in row.variants:
            return known
    raise UnknownNameError("pipeline", name, CLASSES, where=INDEX_FILE)


def family_of_part(bundle: Bundle, part: str) -> Family | None:
    """Return the family of a part of a diffusion model, if it has one."""
    known = bundle.parts.get(part)
    if known is not None and known.family:
        return families()[known.family]
    return family_of_spec(bundle.spec.children()[part])


def pipeline_of(bundle: Bundle) -> str:
    """Return the class of pipelines of a model's denoiser."""
    family = family_of_part(bundle, "denoiser")
    if family is None:
        raise UnsupportedError("this denoiser", "a class of diffusers", hint="use the layout glassformer")
    return family.pipeline


def save_pipeline(bundle: Bundle, folder: Path) -> Path:
    """Write a folder that `load_pipeline` and diffusers read."""
    from glassformer.bundle import Bundle, save

    model: Any = bundle.model
    if not bundle.config and model.spec.autoencoder is None:
        hint = "use the layout glassformer"
        raise UnsupportedError("a diffusion model without an autoencoder", "the layout hf", hint=hint)
    name = class_name(bundle.config) if bundle.config else pipeline_of(bundle)
    index: dict[str, Any] = dict(bundle.config) or {"_class_name": name, "_diffusers_version": "0.42.1"}
    for part, path in CLASSES[name].folders.items():
        if part in model.spec.children():
            one = bundle.parts.get(part, Bundle(model=getattr(model, part)))
            save(one, folder / path, layout="hf")
            config = read_object(folder / path / "config.json")
            library = "diffusers" if "_class_name" in config else "transformers"
            index.setdefault(path, [library, config.get("_class_name") or config["architectures"][0]])
    make_folder(folder / "scheduler")
    scheduler = bundle.files[SCHEDULER_FILE]
    index["scheduler"] = ["diffusers", scheduler["_class_name"]]
    if bundle.tokenizer is not None:
        make_folder(folder / "tokenizer")
        bundle.tokenizer.save(folder / "tokenizer")
        written = read_config(folder / "tokenizer" / TOKENIZER_CONFIG)
        tokenizer_class = written.get("tokenizer_class", "PreTrainedTokenizerFast")
        index.setdefault("tokenizer", ["transformers", tokenizer_class])
    files = {f"scheduler/{SCHEDULER_FILE}": scheduler, INDEX_FILE: index}
    files |= {JOB_FILE: job} if (job := bundle.job.to_dict()) else {}
    for path, content in files.items():
        write_file(folder / path, (json.dumps(content, indent=2) + "\n").encode())
    return folder
