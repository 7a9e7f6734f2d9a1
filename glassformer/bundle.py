"""Model folders: a model with its tokenizer and settings as one `Bundle`, loaded from and saved to a folder.

Tasks, training, export and the server share this data. The public functions of the same names in
`glassformer.api` add the task methods (`bundle.translate(...)`).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor, nn

import glassformer.pretrained as pretrained
from glassformer import schema
from glassformer.core import spec
from glassformer.core.attention import MultiHeadAttention
from glassformer.core.build import build_model, fill_meta_model, matches_spec, unique_state_dict
from glassformer.core.kernels import Kernel, choose_kernel
from glassformer.core.lora import has_lora, merge_lora
from glassformer.core.masks import Mask
from glassformer.core.model import AnyModel
from glassformer.core.positions import AlibiBias, DisentangledPositions, RelativeBias
from glassformer.core.precision import resolve_dtype
from glassformer.core.stack import Stack
from glassformer.errors import (
    ConflictError,
    FileExistsAlreadyError,
    FileMissingError,
    FileProblemError,
    GlassformerError,
    MissingDependencyError,
    UnsupportedError,
)
from glassformer.families.adapter import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    AdaptedWeights,
    adapter_files,
    read_adapter,
)
from glassformer.families.config import Config
from glassformer.families.family import Family
from glassformer.families.model_files import (
    published_files,
    quantized_state,
    read_own_layout,
    tensor_shapes,
    without_computed_tables,
)
from glassformer.families.registry import families, family_of_config, family_of_spec
from glassformer.families.sidecars import (
    IMAGE_PROCESSOR_FILE,
    INDEX_FILE,
    JOB_FILE,
    PROCESSOR_FILE,
    SCHEDULER_FILE,
    SIDECARS,
    JobInfo,
    check_sentence_files,
    read_config,
    read_image_processor,
    read_job,
)
from glassformer.inference.linear import WeightFormat
from glassformer.json_text import read_object
from glassformer.pretrained import model_folder
from glassformer.tokenization import Tokenizer, load_tokenizer
from glassformer.tokenization.folder import TOKENIZER_FILES
from glassformer.weights.atomic_write import STAGED, finish_staged, make_folder, staged_files, write_file
from glassformer.weights.checksums import CHECKSUMS_FILE, listed_files, verify_checksums, write_checksums
from glassformer.weights.convert import to_ours, to_theirs
from glassformer.weights.store import (
    STEMS,
    find_gguf,
    open_file,
    open_weights,
    pause_gc,
    save_file,
    save_weights,
    weight_files,
)

Layout = Literal["hf", "glassformer"]
Value = TypeVar("Value")
Encoded = TypeVar("Encoded", bound="SizedBytes")
_IMAGES_LOCK = threading.Lock()  # not in a bundle, which can be copied
CACHED_IMAGE_BYTES = 1 << 26  # of the encoded images that a bundle keeps
SPEC_FILE, CONFIG_FILE, GENERATION_FILE = "spec.json", "config.json", "generation_config.json"
ADAPTER = "adapter"  # subfolder with the LoRA adapter that is merged into the weights, in PEFT's layout
PUBLISHED_FILE = "published.json"  # in Glassformer's layout: the original published config


class SizedBytes(Protocol):
    """What knows its size in bytes, e.g. a tensor."""

    @property
    def nbytes(self) -> int: ...


@dataclass
class Bundle:
    """A model with its tokenizer, configs and metadata.

    config: the published `config.json` that it was loaded from. generation: its `generation_config.json`.
    job: the training job of the model. files: other JSON files of the folder, by name.
    weights: weights that tasks compute with: "own" (the model's), or quantized to "int8" or "int4".
    parts: of a folder with several models, each with its published config.
    """

    model: AnyModel
    tokenizer: Tokenizer | None = None
    family: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    generation: dict[str, Any] = field(default_factory=dict)
    job: JobInfo = field(default_factory=JobInfo)
    files: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    weights: WeightFormat = "own"
    parts: dict[str, Bundle] = field(default_factory=dict, repr=False)
    _prepared: tuple[Any, str, nn.Module] | None = field(default=None, init=False, repr=False, compare=False)
    _digest: tuple[Any, str] | None = field(default=None, init=False, repr=False, compare=False)
    _images: tuple[nn.Module, Any, OrderedDict[bytes, SizedBytes]] | None = field(
        default=None, init=False, repr=False, compare=False
    )
    _towers: dict[str, Bundle] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __repr__(self) -> str:
        count = sum(parameter.numel() for parameter in self.model.parameters())
        family = self.family or getattr(family_of_spec(self.spec), "name", None)
        folder = f", folder={str(self.folder)!r}" if self.folder else ""
        return f"{type(self).__name__}(family={family!r}, parameters={count:,}{folder})"

    def inference_model(self) -> nn.Module:
        """Return the model prepared for inference on this machine, cached until the model changes."""
        model, weights = self.model, self.weights
        if self._prepared is None or self._prepared[:2] != (model, weights):
            from glassformer.generation.inference_model import prepare_for_inference
            from glassformer.inference.encoder import InferenceEncoder, PackedModel, supports

            prepared: nn.Module
            if hasattr(model, "prefill") or getattr(model.spec, "yields", None) == "next tokens":
                prepared = prepare_for_inference(model, weights)
            elif supports(model):
                prepared = InferenceEncoder(model, weights)
            else:
                prepared = PackedModel(model, weights)
            self._prepared = model, weights, prepared
        return self._prepared[2]

    def weights_digest(self) -> str:
        """Return the SHA-256 of all parameters and buffers, cached until one of them changes."""
        tensors = unique_state_dict(self.model)
        versions = [(t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors.values()]
        state = self.model, versions
        if self._digest is None or self._digest[0] != state:
            digest = hashlib.sha256()
            for name, tensor in sorted(tensors.items()):
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                digest.update(tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data)
            self._digest = state, digest.hexdigest()
        return self._digest[1]

    def tower(self, name: Literal["image", "text", "decoder"]) -> Bundle:
        """Return one tower, or another part, of a model as a bundle of its own."""
        if name not in self.spec.children():
            raise UnsupportedError(self.display_name, "this task", hint="it needs an image and a text tower")
        model: AnyModel = getattr(self.model, name)
        if name not in self._towers or self._towers[name].model is not model:
            parts: dict[str, Any] = {"tokenizer": self.tokenizer, "files": self.files, "folder": self.folder}
            self._towers[name] = Bundle(model=model, job=self.job, weights=self.weights, **parts)
        return self._towers[name]

    def models(self) -> dict[str, Bundle]:
        """Return the models that a model that draws consists of, each as a bundle; {} for others."""
        names = self.spec.children() if self.spec.yields in ("images", "frames") else ()
        found: dict[str, Bundle] = {}
        for name in names:
            model: AnyModel = getattr(self.model, name)
            known = self.parts.get(name)
            same = known is not None and known.model is model
            found[name] = known if known and same else Bundle(model=model, weights=self.weights)
        return found

    def cached_image(self, key: bytes | None, encode: Callable[[], Encoded]) -> Encoded:
        """Return what `encode` returns for an image, from the cache if possible; see `cached_images`."""
        (encoded,) = self.cached_images([key], lambda missing: [encode()])
        return encoded

    def cached_images(
        self, keys: Sequence[bytes | None], encode: Callable[[list[int]], Iterable[Encoded]]
    ) -> list[Encoded]:
        """Return what `encode` returns for images, from a cache as long as the weights do not change.

        keys: digests of the images; None: do not cache. The least recently used images are dropped.
        encode: called with the indices of the images that are not in the cache.
        """
        from glassformer.inference.prepare import WeightFingerprint

        model, prepared = self.model, self.inference_model()
        found: dict[int, Any] = {}
        with _IMAGES_LOCK:
            if self._images is None or self._images[0] is not prepared or not self._images[1].matches(model):
                self._images = (prepared, WeightFingerprint(model), OrderedDict())
            cache = self._images[2]
            for index, key in enumerate(keys):
                if key is not None and key in cache:
                    cache.move_to_end(key)
                    found[index] = cache[key]
        if missing := [index for index in range(len(keys)) if index not in found]:
            found |= zip(missing, encode(missing), strict=True)
            with _IMAGES_LOCK:
                cache |= {key: found[index] for index in missing if (key := keys[index]) is not None}
                while len(cache) > 1 and sum(image.nbytes for image in cache.values()) > CACHED_IMAGE_BYTES:
                    cache.popitem(last=False)
        return [found[index] for index in range(len(keys))]

    @property
    def spec(self) -> spec.ModelSpec:
        return self.model.spec

    @property
    def device(self) -> torch.device:
        """The device of the model's parameters; the CPU for a model without parameters."""
        parameter = next(self.model.parameters(), None)
        return torch.device("cpu") if parameter is None else parameter.device

    @property
    def folder_name(self) -> str:
        """Name of the model's folder or training run; empty without one."""
        folder = self.folder
        if folder is not None and (folder.parent / "recipe.yaml").is_file():
            folder = folder.parent
        return folder.name if folder else ""

    @property
    def display_name(self) -> str:
        """Name of the model in error messages."""
        return f"the model '{self.folder_name}'" if self.folder_name else "this model"

    def kernels(self, length: int = 512) -> dict[str, Kernel]:
        """Return the attention kernel of each layer, by layer name, for a prefill of `length` tokens.

        >>> from glassformer import tiny
        >>> Bundle(model=tiny("gpt2")).kernels()
        {'decoder.blocks.0.self_attn': 'sdpa', 'decoder.blocks.1.self_attn': 'sdpa'}
        """
        modules = dict(self.model.named_modules(remove_duplicate=False))
        stacks = {name: module for name, module in modules.items() if isinstance(module, Stack)}
        kernels: dict[str, Kernel] = {}
        for name, module in modules.items():
            if not isinstance(module, MultiHeadAttention):
                continue
            path, _, layer = name.partition(".blocks.")
            stack = stacks.get(path) if layer.endswith(".self_attn") else None
            position = None if stack is None else stack.position
            kernels[name] = choose_kernel(
                mask=Mask(causal=stack is not None and stack.causal, window=module.window),
                queries=length,
                keys=length,
                device=self.device,
                biased=module.has_position_bias
                or isinstance(position, RelativeBias | AlibiBias | DisentangledPositions),
                softcap=module.softcap,
            )
        return kernels


def load(
    folder: str | Path,
    *,
    dtype: torch.dtype | str | None = None,
    device: str | torch.device = "cpu",
    mmap: bool = True,
    adapter: str | Path | None = None,
) -> Bundle:
    """Load a model folder as a plain `Bundle`; see `glassformer.load`."""
    bundle = _load(folder, dtype, device, mmap)
    if adapter is not None:
        from glassformer.model_index import merge_adapter

        merge_adapter(bundle, Path(adapter))
    return bundle


@pause_gc()
def _load(
    folder: str | Path, dtype: torch.dtype | str | None, device: str | torch.device, mmap: bool
) -> Bundle:
    path = model_folder(pretrained.resolve_name(folder))
    gguf_path = find_gguf(path)
    single = path.is_file() and path.suffix == ".safetensors"
    if path.is_file() and gguf_path is None and not single:
        raise FileProblemError(path, "is a file", hint=f"expected a folder that holds {CONFIG_FILE}")
    if not path.exists():
        close = get_close_matches(str(folder), pretrained.names(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else pretrained.hub_hint(folder)
        raise FileMissingError(folder, "model folder", hint)
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise UnsupportedError("this machine", "CUDA", hint="use the device cpu")
    if gguf_path is not None:
        return _load_gguf(gguf_path, dtype, device)
    if single:
        return _load_single_file(path, dtype, device, mmap)
    if (path / INDEX_FILE).is_file():
        from glassformer.model_index import load_pipeline  # here: it loads the parts

        return load_pipeline(path, dtype=dtype, device=device, mmap=mmap)
    finish_save(path)
    verify_checksums(path)
    adapter, base, described = None, path, path
    if (path / ADAPTER_CONFIG).is_file():
        adapter = read_adapter(path)
        base = model_folder(adapter.base)
        verify_checksums(base)
        described = path if (path / CONFIG_FILE).is_file() else base
    names = None if adapter is None else {*open_weights(base), *adapter.full}
    family, model_spec, config, files = _read_description(described, names)
    weights: Mapping[str, Tensor] = open_weights(base)
    with torch.device("meta"):
        model = _build_or_raise(path, lambda: build_from_spec(model_spec))
    if family is None:
        if adapter is not None:
            hint = "convert the base model to the layout hf"
            raise UnsupportedError(f"{base}, in the layout glassformer,", "an adapter", hint=hint)
        tensors = read_own_layout(weights, model, path)
    else:
        table = family.table(model_spec, list(weights))
        source = weights if adapter is None else AdaptedWeights(weights, adapter, table)
        tensors = to_ours(source, table, tensor_shapes(model), where=path)
    _fill(model, tensors, dtype, device, copy=not mmap)
    if (image_processor := read_image_processor(described)) is not None:
        files[IMAGE_PROCESSOR_FILE] = image_processor
    if (described / SCHEDULER_FILE).is_file():
        files[SCHEDULER_FILE] = read_object(described / SCHEDULER_FILE)
    generation = read_config(described / GENERATION_FILE)
    if family is not None:
        generation |= family.read_generation(Config(config, str(described / CONFIG_FILE)))
    return Bundle(
        model=model,
        tokenizer=load_tokenizer(path) or load_tokenizer(base),
        family=family.name if family else None,
        config=config,
        generation=generation,
        job=read_job(described / JOB_FILE, getattr(getattr(model_spec, "input", None), "channels", None)),
        files=files,
        folder=path,
        weights=weight_format(dtype),
    )


def _fill(
    model: AnyModel,
    tensors: dict[str, Tensor],
    dtype: torch.dtype | str | None,
    device: str | torch.device,
    *,
    copy: bool,
) -> None:
    """Move the tensors to the device and into the model, which is on the meta device."""
    compute_dtype = resolve_dtype(dtype if weight_format(dtype) == "own" else None, device, tensors.values())
    tensors = {name: _to_device(tensor, compute_dtype, device) for name, tensor in tensors.items()}
    if copy and torch.device(device).type == "cpu":
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    fill_meta_model(model, tensors, str(device))
    model.eval()


def weight_format(dtype: torch.dtype | str | None) -> WeightFormat:
    """Return the weights that tasks compute with, for a `dtype` of `load`."""
    return "int8" if dtype == "int8" else "int4" if dtype == "int4" else "own"


def _load_gguf(path: Path, dtype: torch.dtype | str | None, device: str | torch.device) -> Bundle:
    """Load a GGUF file; quantized weights become float32."""
    try:
        from glassformer.families.gguf import generation_ids, read_gguf
        from glassformer.tokenization.gguf import load_gguf_tokenizer
        from glassformer.weights.gguf import GGUFFile
    except ModuleNotFoundError as error:
        raise MissingDependencyError(str(error.name), extra="gguf") from None
    file = GGUFFile(path)
    values, published = read_gguf(file)
    config = Config(values, str(path), names=published)
    family = family_of_config(config)
    model_spec = _build_or_raise(path, lambda: family.from_config(config))
    with torch.device("meta"):
        model = _build_or_raise(path, lambda: build_from_spec(model_spec))
    table = family.table(model_spec, list(published))
    tensors = to_ours(published, table, tensor_shapes(model), where=path, config_file="its metadata")
    _fill(model, tensors, dtype, device, copy=False)
    return Bundle(
        model=model,
        tokenizer=load_gguf_tokenizer(file.metadata, path),
        family=family.name,
        config=values,
        generation=generation_ids(file),
        folder=path,
        weights=weight_format(dtype),
    )


def _load_single_file(
    path: Path, dtype: torch.dtype | str | None, device: str | torch.device, mmap: bool
) -> Bundle:
    """Load Stable Diffusion 1.x from one file; the tokenizer is next to it."""
    from glassformer.families import single_file

    weights = open_file(path)
    model_spec = _build_or_raise(path, lambda: single_file.read_spec(weights.shapes, path))
    with torch.device("meta"):
        model = build_from_spec(model_spec)
    table = single_file.weight_table(model_spec)
    source = {name: single_file.squeeze(name, tensor) for name, tensor in weights.items()}
    tensors = to_ours(source, table, tensor_shapes(model), where=path, config_file="the file")
    folder = path.parent / "tokenizer"
    tokenizer = load_tokenizer(folder if folder.is_dir() else path.parent)
    if tokenizer is None:
        hint = "the file has none: put CLIP's vocab.json and merges.txt, or tokenizer.json, into this folder"
        raise FileMissingError(folder, "tokenizer", hint)
    _fill(model, tensors, dtype, device, copy=not mmap)
    return Bundle(
        model=model,
        tokenizer=tokenizer,
        files={SCHEDULER_FILE: dict(single_file.SCHEDULER)},
        folder=path,
        weights=weight_format(dtype),
        parts={
            part: Bundle(model=getattr(model, part), family=family)
            for part, (family, _) in single_file.PARTS.items()
        },
    )


def _read_description(
    path: Path, names: Collection[str] | None = None
) -> tuple[Family | None, Any, dict[str, Any], dict[str, Any]]:
    """Read a folder's family (None in Glassformer's layout), spec, published config and other JSON files.

    names: the names of its tensors, if they are not in the folder itself.
    """
    if (path / SPEC_FILE).is_file():
        return None, read_spec(path / SPEC_FILE), read_config(path / PUBLISHED_FILE), {}
    if not (path / CONFIG_FILE).is_file():
        model_folder = path / "model"  # path is a training run
        hint = f"use '{model_folder}'" if model_folder.is_dir() else "use the folder of a saved model"
        raise FileProblemError(path, f"holds neither {CONFIG_FILE} nor {SPEC_FILE}", hint=hint)
    config = Config(read_config(path / CONFIG_FILE), str(path / CONFIG_FILE), path, names=names)
    family = family_of_config(config)
    model_spec = _build_or_raise(path, lambda: family.from_config(config))
    check_sentence_files(config.files, path)
    return family, model_spec, config.values, config.files


def _build_or_raise(path: Path, build: Callable[[], Value]) -> Value:
    """Call `build`; report an error in it as a problem of the folder."""
    try:
        return build()
    except GlassformerError:
        raise
    except Exception as error:  # torch and Python raise various errors for invalid values
        reason = str(error).partition("\n")[0]
        raise FileProblemError(path, f"does not describe a model that can be built ({reason})") from error


def save(
    model: Bundle | AnyModel,
    folder: str | Path,
    *,
    layout: Layout | None = None,
    dtype: Literal["int8"] | None = None,
) -> Path:
    """Write a model folder that `load` reads.

    model: a model, or a bundle that `load` returned
    layout: "hf" is the published layout, which transformers reads too; "glassformer" is `spec.json` with
    Glassformer's tensor names, and the original published config in `published.json`. Default: the published
    layout if the family has one.
    dtype: "int8" stores matrices quantized to int8; only in the layout "glassformer".
    A model with LoRA adapters is saved with the adapters merged, and `adapter/` has them in PEFT's layout.

    A folder that exists keeps its old model until the new one is complete; a save that was interrupted after
    that is finished by the next `load`. Only files that an earlier save wrote are replaced; other files are
    kept, and are an error if they are in the way.

    >>> from tempfile import TemporaryDirectory
    >>> from glassformer import tiny
    >>> with TemporaryDirectory() as folder:
    ...     sorted(path.name for path in save(tiny("gpt2"), folder).iterdir())
    ['checksums.json', 'config.json', 'model.safetensors']
    """
    bundle = model if isinstance(model, Bundle) else Bundle(model=model)
    path = Path(folder)
    if isinstance(bundle.model, AnyModel) and not matches_spec(bundle.model):
        raise UnsupportedError(
            "a model folder",
            "a model whose parts differ from its spec, e.g. with your own head",
            "save the weights with safetensors.torch.save_model, or train it with glassformer.Trainer",
        )
    if SCHEDULER_FILE in bundle.files and (
        layout == "hf" or (bundle.parts and layout is None and dtype is None)
    ):
        from glassformer.model_index import save_pipeline

        return save_pipeline(bundle, path)
    if bundle.family:
        family: Family | None = families()[bundle.family]
    else:
        family = family_of_spec(bundle.spec, *bundle.config.get("architectures", ())[:1])
    if layout is None:
        layout = "glassformer" if family is None or dtype == "int8" else "hf"
    if layout == "hf" and dtype == "int8":
        raise ConflictError(
            ("layout hf", "dtype int8"),
            "other libraries cannot read these weights",
            hint="use the layout glassformer",
        )
    if layout == "hf" and family is None:
        raise UnsupportedError("this model", "the layout hf", hint="use the layout glassformer")
    if path.exists() and not path.is_dir():
        raise FileProblemError(path, "is a file", hint="save into a folder")
    state = merge_lora(unique_state_dict(bundle.model), bundle.model)
    state = {name: tensor.detach().cpu() for name, tensor in state.items()}
    files: dict[str, Any] = {}
    if layout == "hf" and family is not None:
        state = to_theirs(state, family.table(bundle.spec, ()))
        files = published_files(
            family,
            bundle.model,
            config=bundle.config,
            files=bundle.files,
            generation=bundle.generation,
            names=state,
            classes=bundle.job.classes,
        )
    else:
        files[SPEC_FILE] = schema.to_dict(bundle.spec)
        files |= {PUBLISHED_FILE: bundle.config} if bundle.config else {}
        state = (
            quantized_state(bundle.model, state)
            if dtype == "int8"
            else without_computed_tables(bundle.model, state)
        )
    files |= sidecar_files(bundle)
    if bundle.generation:
        files[GENERATION_FILE] = bundle.generation
    adapter_tensors: dict[str, Tensor] = {}
    if layout == "hf" and family is not None and bundle.folder and has_lora(bundle.model):
        table = family.table(bundle.spec, ())
        config, adapter_tensors = adapter_files(
            bundle.model, table, bundle.folder, architecture=Config(files[CONFIG_FILE]).architecture
        )
        files |= {f"{ADAPTER}/{name}": files[name] for name in (CONFIG_FILE, JOB_FILE) if name in files}
        files[f"{ADAPTER}/{ADAPTER_CONFIG}"] = config
    with replaced_files(path) as staged:
        save_weights(
            staged, state, stem=STEMS[family.library if family and layout == "hf" else "transformers"]
        )
        if adapter_tensors:
            make_folder(staged / ADAPTER)
            save_file(staged / ADAPTER / ADAPTER_WEIGHTS, adapter_tensors)
        if bundle.tokenizer is not None:
            bundle.tokenizer.save(staged)
        else:
            for name in listed_files(path).intersection(TOKENIZER_FILES):  # of an earlier save: it stays
                shutil.copyfile(path / name, staged / name)
        for name, content in files.items():
            (staged / name).parent.mkdir(exist_ok=True)
            write_file(staged / name, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())
    return path


@contextmanager
def replaced_files(path: Path) -> Iterator[Path]:
    """Yield a temporary folder, whose files then replace those that an earlier save wrote into `path`.

    Raise if another file is in the way, i.e. one that the folder's `checksums.json` does not list.
    """
    finish_save(path)
    with staged_files(path) as staged:
        yield staged
        names = {file.relative_to(staged).as_posix() for file in staged.rglob("*") if file.is_file()}
        if unlisted := sorted(_existing_files(path, names) - listed_files(path)):
            hint = "it was not saved by Glassformer: choose another folder, or move it away"
            raise FileExistsAlreadyError(path / unlisted[0], hint=hint)
        write_checksums(staged, names)
    finish_save(path)


def _existing_files(path: Path, new_files: set[str]) -> set[str]:
    """Return the files in `path` that a save replaces or removes."""
    names = {SPEC_FILE, PUBLISHED_FILE, CONFIG_FILE, GENERATION_FILE, JOB_FILE}
    names |= {*SIDECARS, PROCESSOR_FILE, CHECKSUMS_FILE, *weight_files(path), *new_files}
    if not new_files.isdisjoint(TOKENIZER_FILES):  # else a tokenizer in the folder stays
        names.update(TOKENIZER_FILES)
    for family in families().values():
        names.update(family.marker_files)
    return {name for name in names if os.path.lexists(path / name)}


def finish_save(path: Path) -> None:
    """Finish a save if `.save` has a complete new model: move it into the folder, remove stale files."""
    staged = path / STAGED
    if (staged / CHECKSUMS_FILE).is_file():  # it is moved last
        new_files = listed_files(staged)
        for name in (_existing_files(path, new_files) & listed_files(path)) - new_files:
            (path / name).unlink()
        finish_staged(path, last=CHECKSUMS_FILE)
    elif staged.is_dir() and not any(file.is_file() for file in staged.rglob("*")):
        shutil.rmtree(staged, ignore_errors=True)


def sidecar_files(bundle: Bundle) -> dict[str, Any]:
    """Return the JSON files that accompany a model in any layout: `job.json` and the image processor."""
    job = bundle.job.to_dict()
    files = {JOB_FILE: job} if job else {}
    return files | {name: bundle.files[name] for name in SIDECARS if name in bundle.files}


def read_spec(path: Path) -> Any:
    """Read the spec of a folder in Glassformer's layout: a Transformer's or a baseline's."""
    data = read_object(path)
    if data.get("kind") not in schema.KINDS:
        from glassformer import baselines  # noqa: F401 (registers their specs)
    return schema.from_dict(data, str(path))


def build_from_spec(model_spec: Any) -> Any:
    """Build a fresh model from its spec; baselines have no heads."""
    if model_spec.heads():
        return build_model(model_spec)
    from glassformer import baselines

    return baselines.build_baseline(model_spec)


def _to_device(tensor: Tensor, dtype: torch.dtype | None, device: str | torch.device) -> Tensor:
    if dtype is not None and tensor.is_floating_point():
        tensor = tensor.to(dtype)
    # All are views of one mapped file, and autograd treats a write to one (a running mean) as a write to all;
    # `data` is a separate tensor on the same memory.
    return tensor.to(device=device).data
