"""The public API: load a folder, build a model, train and save it, and run tasks on it.

pipeline = glassformer.load("path/to/folder")     # a published folder, or one that `save` wrote
pipeline = glassformer.load("pocket")             # or a model that ships with the package
pipeline.translate("Good morning.", to="de")
model = glassformer.build("original", d_model=256, src_vocab_size=8000)
glassformer.save(pipeline, "path/to/other")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch

from glassformer import bundle as bundles
from glassformer.bundle import Bundle, save
from glassformer.core import spec
from glassformer.core.build import build_model
from glassformer.core.model import AnyModel
from glassformer.families.registry import preset_spec, tiny_spec
from glassformer.tasks.methods import TaskMethods

if TYPE_CHECKING:
    from glassformer.explorer.notebook import ExplorerPage
    from glassformer.tasks.chat import Conversation
    from glassformer.tasks.streaming import TextStream
    from glassformer.tasks.text_generation import TextOptions
    from glassformer.training.callbacks import TrainerCallback
    from glassformer.training.recipe import Recipe

__all__ = ["Pipeline", "build", "load", "save", "tiny", "train"]


class Pipeline(TaskMethods, Bundle):
    """A loaded model with one method per task, from the declarations in `glassformer/tasks`.

    One input gives one result; a list of inputs gives a list of results. Each method constructs a task of
    `glassformer.tasks` and calls it; construct the task yourself for details such as scores, for an iterator
    over any number of inputs (`task.run`), or to validate options before there is input.

    >>> load("pocket").translate("Good morning.", to="de")
    'Guten Morgen.'

    options: generation options, with transformers' names; defaults come from generation_config.json in the
    folder.
    batch_tokens: tokens per batch, including padding.
    """

    def explore(
        self,
        text: str | None = None,
        *,
        image: str | Path | bytes | None = None,
        question: str | None = None,
        to: str | None = None,
        view: str = "model",
        height: int = 720,
    ) -> ExplorerPage:
        """Show the explorer's page of one input in a notebook, or save it as a file; it needs no server.

        text, image, question, to: the input, by default the model's example; an image is a file or its bytes
        view: the view to open: "model", "heads", "decoding", "change" or "learning"
        height: of the frame, in pixels
        """
        from glassformer.explorer.notebook import explore, image_input
        from glassformer.interpret.examples import example_input

        given: dict[str, Any] = {"text": text, "question": question, "to": to}
        if image is not None:
            given["image"] = image_input(image)
        values = {name: value for name, value in given.items() if value is not None}
        if image is not None:  # the prompt of the example belongs to its image
            values |= {"points": None, "background_points": None, "box": None}
        input = replace(example_input(self), **values) if values else None
        return explore(self, input, view=view, height=height)

    @classmethod
    def of(cls, bundle: Bundle) -> Pipeline:
        """Create a pipeline with the model and settings of a bundle."""
        return cls(**{field.name: getattr(bundle, field.name) for field in fields(bundle) if field.init})

    def stream(
        self, prompt: str, *, parse_special: bool = False, **options: Unpack[TextOptions]
    ) -> TextStream:
        """Continue one prompt and yield the text of each token; joined, they equal the result of `generate`.

        No piece ends within a character. `close` stops generating; afterwards, `result` has the details.

        prompt: the text to continue
        """
        from glassformer.tasks.streaming import TextStream
        from glassformer.tasks.text_generation import TextGenerator

        return TextStream(TextGenerator(self, parse_special=parse_special, **options), prompt)

    def chat(
        self,
        messages: Conversation,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **options: Unpack[TextOptions],
    ) -> str:
        """Answer a conversation; see `glassformer.tasks.ChatGenerator`.

        messages: e.g. [{"role": "user", "content": "Hello"}]
        tools: JSON schemas of functions, if the chat template supports them
        documents: documents, if the chat template supports them
        """
        from glassformer.tasks.chat import ChatGenerator

        return ChatGenerator(self, tools=tools, documents=documents, **options)(messages).text

    def stream_chat(
        self,
        messages: Conversation,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **options: Unpack[TextOptions],
    ) -> TextStream:
        """Answer a conversation and yield the text of each token; joined, they equal the result of `chat`.

        messages: e.g. [{"role": "user", "content": "Hello"}]
        tools: JSON schemas of functions, if the chat template supports them
        documents: documents, if the chat template supports them
        """
        from glassformer.tasks.chat import ChatGenerator
        from glassformer.tasks.streaming import TextStream

        return TextStream(ChatGenerator(self, tools=tools, documents=documents, **options), messages)


def load(
    folder: str | Path,
    *,
    dtype: torch.dtype | str | None = None,
    device: str | torch.device = "cpu",
    mmap: bool = True,
    adapter: str | Path | None = None,
) -> Pipeline:
    """Load a model folder: a published one, one that `save` wrote, or a model that ships with the package.

    A GGUF file of llama.cpp loads too; quantized weights become float32. So does one safetensors file with
    Stable Diffusion 1.x, if a folder `tokenizer` is next to it.

    For the folder of a training run, load the trained model, or the best so far. The model is in evaluation
    mode.

    mmap: map the weights from the file, and copy only what the layout requires. False copies them, so that
    changes to the file cannot affect the model; the server does this.
    dtype: float32 on a CPU by default; on a GPU weights keep the dtype they are stored in. "stored" keeps it
    on any device, for converting. With "int8" or "int4", tasks run with quantized weights; the model keeps
    its original weights.
    adapter: a LoRA adapter of a diffusion model in one safetensors file, to merge into the weights.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     pipeline = load(save(tiny("gpt2"), folder))
    >>> pipeline.family, pipeline.model(torch.ones(2, 5).long()).shape          # (B, T, V)
    ('gpt2', torch.Size([2, 5, 101]))
    """
    return Pipeline.of(bundles.load(folder, dtype=dtype, device=device, mmap=mmap, adapter=adapter))


def train(
    recipe: Recipe | Mapping[str, Any] | str | Path,
    folder: str | Path,
    *,
    log: Callable[[str], None] | None = None,
    callbacks: Sequence[TrainerCallback] = (),
) -> Pipeline:
    """Train in a run folder, as `glassformer train` does, and load the trained model.

    recipe: path or contents of a recipe; only `job` and `data` are required.
    folder: if it holds an unfinished run of the same recipe, the run is resumed.
    log: called with messages; by default they go to standard error.
    callbacks: run during training; see `TrainerCallback`.

    Ctrl-C saves a checkpoint and raises KeyboardInterrupt; another signal raises SystemExit.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "sea.txt").write_text("the old captain sang to the sea. " * 99)
    ...     recipe = {
    ...         "job": "lm",
    ...         "data": {"train": f"{folder}/sea.txt"},
    ...         "tokenizer": {"kind": "char"},
    ...         "model": {"d_model": 16, "num_heads": 2, "d_ff": 32, "num_layers": 1},
    ...         "training": {"max_steps": 2, "device": "cpu"},
    ...     }
    ...     pipeline = train(recipe, f"{folder}/run", log=lambda message: None)
    >>> pipeline.family
    'gpt2'
    """
    from glassformer.training import run

    return Pipeline.of(run.train(recipe, folder, log=log or run.log_to_stderr, callbacks=callbacks))


def build(what: str | spec.ModelSpec, **overrides: Any) -> AnyModel:
    """Build a fresh model from a preset's name and overrides, or from a spec.

    what: a preset, a family or a spec
    overrides: options of the family, e.g. d_model=256, num_layers=4

    >>> build("original", d_model=32, num_heads=4, d_ff=64, num_layers=1, src_vocab_size=50).spec.tied
    ()
    """
    return build_model(preset_spec(what, **overrides) if isinstance(what, str) else what)


def tiny(family: str, **overrides: Any) -> AnyModel:
    """Build a fresh model of a few thousand parameters of the named family.

    family: name of a family
    overrides: options of the family

    >>> sum(p.numel() for p in tiny("gpt2").parameters()) < 100_000
    True
    """
    return build_model(tiny_spec(family, **overrides))
