"""Load a folder, build a model, save it: the few calls most people need.

bundle = glassformer.load("path/to/folder")       # a published folder, or one we saved
bundle = glassformer.load("pocket")               # or one that comes along
model = glassformer.build("original", d_model=256, src_vocab_size=8000)
glassformer.save(bundle, "path/to/other")
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from glassformer import baselines
from glassformer import pretrained as models
from glassformer.core import schema, spec
from glassformer.core.attention import MultiHeadAttention
from glassformer.core.build import build as build_spec
from glassformer.core.build import canonical, materialise
from glassformer.core.kernels import Kernel, choose
from glassformer.core.masks import Mask
from glassformer.core.model import AnyModel
from glassformer.core.positions import AlibiBias, RelativeBias
from glassformer.core.precision import dtype_for
from glassformer.core.stack import Stack
from glassformer.errors import GlassformerError
from glassformer.families.beside import checked_job, checked_pictures, checked_sentences, read_settings
from glassformer.families.beside import read_object as read_json
from glassformer.families.family import Config, Family
from glassformer.families.own_layout import in_eight_bits, own_names, shapes_of, without_tables
from glassformer.families.published import published_files
from glassformer.families.registry import families, family_for, family_of, spec_of
from glassformer.families.registry import tiny as tiny_spec
from glassformer.pretrained.run_folder import result_of
from glassformer.tokenization import Tokenizer, load_tokenizer
from glassformer.weights.checksums import verify_checksums, write_checksums
from glassformer.weights.collecting import collecting_later
from glassformer.weights.convert import to_ours, to_theirs
from glassformer.weights.replacing import replacing
from glassformer.weights.store import open_weights, save_weights

if TYPE_CHECKING:
    from glassformer.tasks.answer import Answer
    from glassformer.tasks.forecast import Forecast

Layout = Literal["hf", "glassformer"]
JOB = "job.json"  # what a model was trained to do: its labels, its scaling
PICTURES = "preprocessor_config.json"  # how pictures are made ready for a model, as it is published
PUBLISHED = "published.json"  # in our own layout, the published config that the model came with
KEPT = (JOB, PICTURES)  # files beside a model that its spec does not tell


@dataclass
class Bundle:
    """A model and what belongs to it: tokenizer, the published config it came with, generation settings."""

    model: AnyModel
    tokenizer: Tokenizer | None = None
    family: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    generation: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Any] = field(default_factory=dict)  # further JSON files that describe the model
    folder: Path | None = None
    weights: Literal["own", "int8"] = "own"  # what the verbs multiply by: the model's own, or rounded ones
    _ready: tuple[Any, str, nn.Module] | None = field(default=None, init=False, repr=False, compare=False)

    def ready(self) -> nn.Module:
        """The model as the verbs run it, its weights laid out for this machine once (`decoding.ready`)."""
        model, weights = self.model, self.weights
        if self._ready is None or self._ready[:2] != (model, weights):
            from glassformer.generation.inference_model import prepare_for_inference
            from glassformer.inference.reader import reader, takes

            made = reader(model, weights) if takes(model) else prepare_for_inference(model, weights)
            self._ready = model, weights, made
        return self._ready[2]

    @property
    def spec(self) -> spec.Model:
        return self.model.spec

    def kernels(self, length: int = 512) -> dict[str, Kernel]:
        """The kernel each attention runs on here, by its name, when a sequence of `length` is read whole.

        >>> Bundle(model=tiny("gpt2")).kernels()
        {'decoder.blocks.0.self_attn': 'sdpa', 'decoder.blocks.1.self_attn': 'sdpa'}
        """
        device = next(self.model.parameters()).device
        chosen: dict[str, Kernel] = {}
        for name, stack in self.model.named_modules():
            if not isinstance(stack, Stack):
                continue
            for path, part in stack.named_modules(prefix=name):
                if isinstance(part, MultiHeadAttention):
                    own = path.endswith(".self_attn")
                    mask = Mask(causal=own and stack.causal, window=part.window)
                    biased = own and isinstance(stack.position, RelativeBias | AlibiBias)
                    chosen[path] = choose(
                        mask=mask, queries=length, keys=length, device=device, biased=biased
                    )
        return chosen

    def classify(self, inputs: Any, **words: Any) -> Any:
        """The labels of texts or picture files with their probabilities: `verbs.classify`.

        One input gives its labels, a list a list, an iterator an iterator.
        """
        from glassformer.tasks.classify import classify
        from glassformer.tasks.reading import as_given

        return as_given(inputs, classify(self, inputs, **words))

    def embed(self, inputs: Any, **words: Any) -> Tensor:
        """A vector for each text or picture file (N, D): `verbs.embed`."""
        from glassformer.tasks.embed import embed

        return embed(self, inputs, **words)

    def similar(self, queries: Any, candidates: Any, **words: Any) -> Any:
        """The candidates nearest to each query, by the cosine of their vectors: `verbs.embed.similar`."""
        from glassformer.tasks.embed import similar
        from glassformer.tasks.reading import as_given

        return as_given(queries, similar(self, queries, candidates, **words))

    def fill(self, texts: Any, **words: Any) -> Any:
        """Guesses for every [MASK] of the texts: `verbs.fill`."""
        from glassformer.tasks.fill import fill
        from glassformer.tasks.reading import as_given

        return as_given(texts, fill(self, texts, **words))

    def answer(self, question: str, context: str, **words: Any) -> Answer:
        """The stretch of the context that answers the question, and how likely it is: `verbs.answer`."""
        from glassformer.tasks.answer import answer

        return answer(self, question, context, **words)

    def forecast(self, series: Any, **words: Any) -> Forecast:
        """How the series of a file, a data frame or a dict of columns go on: `verbs.forecast`."""
        from glassformer.tasks.forecast import forecast

        return forecast(self, series, **words)

    def translate(self, texts: str | Iterable[str], **settings: Any) -> Any:
        """Translate texts; see `glassformer.tasks.writing.translate`."""
        from glassformer.tasks.writing import translate

        return translate(self, texts, **settings)

    def summarize(self, texts: str | Iterable[str], **settings: Any) -> Any:
        """Summarise texts; see `glassformer.tasks.writing.summarize`."""
        from glassformer.tasks.writing import summarize

        return summarize(self, texts, **settings)

    def restore(self, texts: str | Iterable[str], **settings: Any) -> Any:
        """Mend damaged sentences; see `glassformer.tasks.writing.restore`."""
        from glassformer.tasks.writing import restore

        return restore(self, texts, **settings)

    def generate(self, prompts: str | Iterable[str], **settings: Any) -> Any:
        """Go on from prompts; see `glassformer.tasks.writing.generate`."""
        from glassformer.tasks.writing import generate

        return generate(self, prompts, **settings)

    def stream(self, prompt: str, **settings: Any) -> Iterator[str]:
        """Go on from a prompt, piece by piece; see `glassformer.tasks.writing.stream`."""
        from glassformer.tasks.writing import stream

        return stream(self, prompt, **settings)


def build(what: str | spec.Model, **words: Any) -> AnyModel:
    """A fresh model from a preset's name (and changed words), or from a spec.

    >>> build("original", d_model=32, num_heads=4, d_ff=64, num_layers=1, src_vocab_size=50).spec.tied
    ()
    """
    return build_spec(spec_of(what, **words) if isinstance(what, str) else what)


def tiny(family: str, **words: Any) -> AnyModel:
    """A fresh model of a few thousand parameters of the named family.

    >>> sum(p.numel() for p in tiny("gpt2").parameters()) < 100_000
    True
    """
    return build_spec(tiny_spec(family, **words))


@collecting_later()
def load(
    folder: str | Path, *, dtype: torch.dtype | str | None = None, device: str | torch.device = "cpu"
) -> Bundle:
    """Read a model folder: a published one, one that `save` wrote, or by its name one that comes along.

    Of a run's folder the model that it made, or while it trains the best so far. The model is in evaluation
    mode.

    Weights are memory-mapped and not copied where their layout allows. On a CPU they are float32
    unless `dtype` says otherwise; on a GPU they keep the precision they were stored in. dtype "stored"
    keeps it anywhere, for converting: not every CPU can compute in it. With dtype "int8" the verbs multiply
    by weights rounded to eight bits; the model itself keeps its own.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     bundle = load(save(tiny("gpt2"), folder))
    >>> bundle.family, bundle.model(torch.ones(2, 5).long()).shape          # (B, T, V)
    ('gpt2', torch.Size([2, 5, 101]))
    """
    if not isinstance(folder, str | PathLike):
        raise GlassformerError(f"load takes a folder or the name of a model; it was given {folder!r:.60}")
    path = result_of(models.located(folder))
    if not path.is_dir():
        found = f"'{folder}' is a file" if path.is_file() else f"there is no folder '{folder}'"
        raise GlassformerError(f"{found}; give the folder that holds config.json{models.meant(folder)}")
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise GlassformerError("there is no CUDA device here; load with device='cpu'")
    weights_kind: Literal["own", "int8"] = "int8" if dtype == "int8" else "own"
    dtype = None if dtype == "int8" else dtype
    verify_checksums(path)
    config: dict[str, Any] = {}
    files: dict[str, Any] = {}
    family: Family | None = None
    if (path / "spec.json").is_file():
        what = read_spec(path / "spec.json")
        config = read_settings(path / PUBLISHED)
    elif (path / "config.json").is_file():
        config = read_settings(path / "config.json")
        reader = Config(config, str(path / "config.json"), path)
        family = family_of(reader)
        what = read_config(family, reader)
        files = checked_sentences(reader.files, path)
    else:
        inside = path / "model"  # as a run's folder holds it
        hint = f"give '{inside}'" if inside.is_dir() else "give the folder of a saved model"
        raise GlassformerError(f"'{folder}' holds neither config.json nor spec.json; {hint}")
    weights = open_weights(path)
    try:
        with torch.device("meta"):
            model = build_any(what)
    except GlassformerError as error:
        raise GlassformerError(f"'{folder}' describes no model: {error}") from None
    except (RuntimeError, TypeError, OverflowError, MemoryError) as error:
        told = str(error).splitlines()[0]
        raise GlassformerError(
            f"'{folder}' describes a model too large to build ({told}); check its sizes"
        ) from None
    if family is None:
        tensors = own_names(weights, model, path)
    else:
        tensors = to_ours(weights, family.table(what, list(weights)), shapes_of(model), where=path)
    wanted = dtype_for(dtype, device, tensors.values())
    materialise(model, {n: _placed(t, wanted, device) for n, t in tensors.items()}, str(device))
    model.eval()
    if (path / JOB).is_file():
        files[JOB] = checked_job(read_json(path / JOB), path / JOB, what)
    if (path / PICTURES).is_file():
        files[PICTURES] = checked_pictures(read_json(path / PICTURES), path / PICTURES)
    return Bundle(
        model=model,
        tokenizer=load_tokenizer(path),
        family=family.name if family else None,
        config=config,
        generation=read_settings(path / "generation_config.json"),
        files=files,
        folder=path,
        weights=weights_kind,
    )


def save(
    what: Bundle | AnyModel,
    folder: str | Path,
    *,
    layout: Layout | None = None,
    dtype: Literal["int8"] | None = None,
) -> Path:
    """Write a model folder that `load` reads.

    layout "hf" is the published one, which the reference library reads too; "glassformer" is `spec.json`
    with our own names, beside the published config that it came with (`published.json`). By default the
    published one where the family has one. dtype "int8" stores matrices rounded to eight bits
    (`weights.rounded`), in our own layout only. `checksums.json` comes last: a save into an older folder that
    stops half-way, like any later damage, is noticed at load.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     sorted(path.name for path in save(tiny("gpt2"), folder).iterdir())
    ['checksums.json', 'config.json', 'model.safetensors']
    """
    if not isinstance(what, Bundle) and not hasattr(what, "spec"):
        raise GlassformerError(f"save writes a Bundle, or a model of ours, not a {type(what).__name__}")
    if not isinstance(folder, str | PathLike):
        raise GlassformerError(f"save takes the folder to write into; it was given {folder!r:.60}")
    bundle = what if isinstance(what, Bundle) else Bundle(model=what)
    path = Path(folder)
    family = families()[bundle.family] if bundle.family else family_for(bundle.spec)
    if layout is None:
        layout = "glassformer" if family is None or dtype == "int8" else "hf"
    if layout == "hf" and dtype == "int8":
        raise GlassformerError(
            "other programs could not read eight bits in the published layout; save with layout='glassformer'"
        )
    if layout == "hf" and family is None:
        raise GlassformerError(
            "no published family describes this model, so it has no published layout; "
            "save it with layout='glassformer'"
        )
    if path.exists() and not path.is_dir():
        raise GlassformerError(f"'{folder}' is a file; give a folder to save into")
    state = {name: tensor.detach().cpu() for name, tensor in canonical(bundle.model).items()}
    files: dict[str, Any] = {}
    if layout == "hf" and family is not None:
        state = to_theirs(state, family.table(bundle.spec, ()))
        files = published_files(
            family,
            bundle.model,
            config=bundle.config,
            files=bundle.files,
            names=state,
            classes=bundle.files.get(JOB, {}).get("classes"),
        )
    else:
        files["spec.json"] = spec_dict(bundle.spec)
        files |= {PUBLISHED: bundle.config} if bundle.config else {}
        state = in_eight_bits(bundle.model, state) if dtype == "int8" else without_tables(bundle.model, state)
    files |= {name: bundle.files[name] for name in KEPT if name in bundle.files}
    if bundle.generation:
        files["generation_config.json"] = bundle.generation
    names = [*save_weights(path, state), *files]
    for name, content in files.items():
        (path / name).parent.mkdir(exist_ok=True)
        with replacing(path / name) as file:
            file.write((json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())
    if bundle.tokenizer is not None:
        names += bundle.tokenizer.save(path)
    clear_folder(path, keep=names)
    write_checksums(path, names)
    return path


def clear_folder(path: Path, keep: Collection[str]) -> None:
    """Remove what an earlier save left and this one did not write: it would contradict the new files."""
    stale = ["spec.json", PUBLISHED, "config.json", "generation_config.json", *KEPT]
    stale += [name for family in families().values() for name in family.beside]
    for name in stale:
        if name not in keep:
            (path / name).unlink(missing_ok=True)


def read_spec(path: Path) -> Any:
    """The spec of a folder in our own layout: a Transformer's or a baseline's."""
    data = read_json(path)
    reader = baselines.from_dict if str(data.get("kind")) in baselines.spec.KINDS else schema.from_dict
    return reader(data, str(path))


def spec_dict(what: Any) -> dict[str, Any]:
    """What `read_spec` reads, as plain data."""
    written: dict[str, Any] = (
        baselines.to_dict(what) if type(what).__name__ in baselines.spec.KINDS else schema.to_dict(what)
    )
    return written


def build_any(what: Any) -> Any:
    """A fresh Transformer or baseline."""
    if type(what).__name__ in baselines.spec.KINDS:
        return baselines.build_baseline(what)
    return build_spec(what)


def read_config(family: Family, config: Config) -> spec.Model:
    """The spec a published config describes; values that make no model are a sentence too."""
    try:
        return family.from_config(config)
    except GlassformerError as error:
        raise error if config.where in str(error) else GlassformerError(f"{config.where}: {error}") from None
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        raise GlassformerError(
            f"{config.where} holds a value that makes no {family.name} model ({error}); check its sizes"
        ) from error


def _placed(tensor: Tensor, dtype: torch.dtype | None, device: str | torch.device) -> Tensor:
    if dtype is not None and tensor.is_floating_point():
        tensor = tensor.to(dtype)
    # All are views of one mapped file, and autograd takes a write to one (a running mean) for a write to all;
    # `data` is the same memory as a tensor of its own.
    return tensor.to(device=device).data
