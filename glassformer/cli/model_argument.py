"""The MODEL argument: a folder, a shipped model, a preset, or tiny:FAMILY."""

from __future__ import annotations

from collections.abc import Sequence
from os.path import isfile
from pathlib import Path
from typing import TYPE_CHECKING

from glassformer import pretrained
from glassformer.cli.console import message
from glassformer.errors import UnknownNameError, UnsupportedError

if TYPE_CHECKING:
    from glassformer.bundle import Bundle

TINY = "tiny:"


def load_model(
    model: str, *, device: str = "auto", dtype: str | None = None, threads: int | None = None
) -> Bundle:
    """Load a model for inference. auto: a GPU if there is one."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return load_or_build(model, device=device, dtype=dtype)


def load_or_build(
    model: str, *, device: str = "cpu", dtype: str | None = None, allow_presets: bool = False
) -> Bundle:
    """Load a folder or a shipped model, or build tiny:FAMILY. A preset is built on the meta device."""
    import torch

    from glassformer.api import build, load, tiny
    from glassformer.bundle import Bundle
    from glassformer.core.precision import dtype_for
    from glassformer.families import registry

    path = locate_model(model)
    if not model.startswith(TINY) and (path.exists() or "/" in model):
        return load(path, dtype=dtype, device=check_device(device))
    if model.startswith(TINY):
        torch.manual_seed(0)
        fresh = tiny(model.removeprefix(TINY))
        stored = dtype_for(None if dtype == "stored" else dtype, check_device(device))
        return Bundle(model=fresh.to(device=device, dtype=stored).eval())
    presets = registry.presets()
    if model not in presets:
        known = [*pretrained.names(), *(presets if allow_presets else ())]
        raise UnknownNameError(kind="model", name=model, known=known)
    if not allow_presets:
        raise UnsupportedError(
            subject=f"the preset {model!r}, which has no weights,",
            feature="this command",
            hint=f"use a model folder or {TINY}{presets[model].name}",
        )
    with torch.device("meta"):
        return Bundle(model=build(model).eval(), family=presets[model].name)


def locate_model(model: str) -> Path:
    """The folder of a model; note if a local folder hides a shipped model of the same name."""
    path = pretrained.located(model)
    if pretrained.is_shipped(model) and path == Path(model):
        message(f"note: using the local folder ./{model}, not the shipped model {model}")
    return path


def check_device(name: str) -> str:
    """The name of a device, if it exists."""
    import torch

    try:
        if not torch.empty(0, device=name).is_meta:  # meta tensors have no data, so nothing can run there
            return name
    except (RuntimeError, AssertionError):
        pass
    raise UnknownNameError(kind="device", name=name, hint="`glassformer env` lists the devices")


def resolve_language(bundle: Bundle, language: str) -> str:
    """A target language as the model spells it."""
    from glassformer.tasks.languages import spell_language, target_language, target_languages

    target_language(bundle, language)  # raises if the model does not write it
    return spell_language(target_languages(bundle), language) or language


def note_file_as_text(texts: Sequence[str] | None, bundle: Bundle) -> None:
    """Point to --file if the only text is the name of a file."""
    if texts and len(texts) == 1 and isfile(texts[0]):
        from glassformer.tasks.images import reads_images

        if not reads_images(bundle):
            message(f"note: {texts[0]!r} is used as text; to read the file, use --file {texts[0]}")
