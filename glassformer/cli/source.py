"""What the argument MODEL may be: a folder, a model that comes along, a preset's name, or tiny:family."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from glassformer import pretrained as models
from glassformer.cli.taken import say
from glassformer.errors import GlassformerError

if TYPE_CHECKING:
    from glassformer.bundle import Bundle

Presets = Literal["described", "refused"]
Fresh = Literal["offered", "unsaid"]  # a small fresh model, which has nothing to say to who wants an answer
TINY = "tiny:"
MOST_THREADS = 1024  # of a million the system refuses some, and the process dies of it
MODEL_HELP = "A model folder, a model that comes along (pocket), or tiny:FAMILY for a small fresh one."


def bundle_of(
    model: str,
    *,
    presets: Presets = "refused",
    fresh: Fresh = "offered",
    dtype: str | None = None,
    device: str = "cpu",
) -> Bundle:
    """The model that an argument names. A preset is built on the meta device: shapes, but no numbers."""
    where = named(model)
    if not model.startswith(TINY) and (where.exists() or "/" in model):
        return _loaded(str(where), dtype, device)
    import torch

    import glassformer
    from glassformer.core.precision import dtype_for
    from glassformer.families import registry

    if model.startswith(TINY):
        torch.manual_seed(0)
        made = glassformer.tiny(model.removeprefix(TINY))
        stored = dtype_for(None if dtype == "stored" else dtype, checked_device(device))
        return glassformer.Bundle(model=made.to(device=device, dtype=stored).eval())
    known = registry.presets()
    if model not in known:
        raise GlassformerError(_unknown(model, [*known] if presets == "described" else [], fresh))
    if presets == "refused":
        tried = f", or try {TINY}{known[model].name}" if fresh == "offered" else ", as runs/x/model"
        raise GlassformerError(f"'{model}' is a preset, a size without numbers; give a folder{tried}")
    with torch.device("meta"):
        return glassformer.Bundle(model=glassformer.build(model).eval(), family=known[model].name)


def _unknown(model: str, presets: list[str], fresh: Fresh) -> str:
    """What to give instead of a word that names nothing: one much like it, else whatever there is."""
    from difflib import get_close_matches

    close = get_close_matches(model, models.names(), n=1) or get_close_matches(model, presets, n=1)
    told = f"there is no folder or model '{model}'"
    if close:
        return f"{told}; did you mean '{close[0]}'?"
    shipped = ", ".join(models.names())
    ways = ["a folder, as runs/x/model", f"a model that comes along ({shipped})"]
    ways += [f"{TINY}FAMILY"] if fresh == "offered" else []
    ways += [f"a preset ({', '.join(presets)})"] if presets else []
    return f"{told}; give {', '.join(ways[:-1])}, or {ways[-1]}"


def named(model: str) -> Path:
    """Where the model of an argument lies; that a folder here hides one that comes along is said."""
    where = models.located(model)
    if models.is_shipped(model) and where == Path(model):
        say(f"note: this is the folder ./{model}, not the model that comes along (say ./{model} to be plain)")
    return where


def opened(model: str, *, device: str, dtype: str | None, threads: int | None) -> Bundle:
    """The model, ready on its device; auto is a GPU where there is one."""
    if threads is not None and threads > MOST_THREADS:
        raise GlassformerError(
            f"--threads is {threads:,}; at most {MOST_THREADS:,} are taken, and as many as cores serve best"
        )
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return bundle_of(model, fresh="unsaid", dtype=dtype, device=checked_device(device))


def _loaded(folder: str, dtype: str | None, device: str) -> Bundle:
    import glassformer

    return glassformer.load(folder, dtype=dtype, device=checked_device(device))


def checked_device(name: str) -> str:
    """The device's name, if it is there."""
    import torch

    try:
        if torch.empty(0, device=name).is_meta:  # holds no numbers, so nothing can run there
            raise RuntimeError
    except (RuntimeError, AssertionError):
        raise GlassformerError(f"there is no device '{name}' here; `glassformer env` lists them") from None
    return name
