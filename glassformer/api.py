"""The public API: load a folder, build a model, train and save it, and run tasks on it.

pipeline = glassformer.load("path/to/folder")     # a published folder, or one that `save` wrote
pipeline = glassformer.load("pocket")             # or a model that ships with the package
pipeline.translate("Good morning.", to="de")
model = glassformer.build("original", d_model=256, src_vocab_size=8000)
glassformer.save(pipeline, "path/to/other")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from os import PathLike
from os.path import isdir
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

import torch
from torch import Tensor

from glassformer import bundle as bundles
from glassformer.bundle import Bundle, save
from glassformer.core import spec
from glassformer.core.build import build_model
from glassformer.core.model import AnyModel
from glassformer.errors import InvalidValueError
from glassformer.families.registry import preset_spec, tiny_spec

if TYPE_CHECKING:
    from glassformer.data.annotations import Annotation
    from glassformer.data.image_files import ImageLike
    from glassformer.data.series import Fill
    from glassformer.tasks.chat import Conversation
    from glassformer.tasks.classification import Label
    from glassformer.tasks.embedding import Match
    from glassformer.tasks.encoder import EncoderTaskOptions
    from glassformer.tasks.fill_mask import FilledText
    from glassformer.tasks.forecasting import Forecast
    from glassformer.tasks.image_segmentation import SegmentationOptions
    from glassformer.tasks.question_answering import Answer
    from glassformer.tasks.streaming import TextStream
    from glassformer.tasks.text_generation import TextGenerationTask, TextOptions
    from glassformer.tasks.token_classification import AggregationStrategy, Entity
    from glassformer.tasks.translation import Split
    from glassformer.tasks.zero_shot import ZeroShotClassifier
    from glassformer.training.callbacks import TrainerCallback
    from glassformer.training.recipe import Recipe

Texts = TypeVar("Texts", str, list[str])  # one text gives one result, a list gives a list

__all__ = ["Pipeline", "build", "load", "save", "tiny", "train"]


class Pipeline(Bundle):
    """A loaded model with one method per task.

    One input gives one result; a list of inputs gives a list of results. Each method constructs a task of
    `glassformer.tasks` and calls it; construct the task yourself for details such as scores, for an iterator
    over any number of inputs (`task.run`), or to validate options before there is input.

    options: generation options, with transformers' names; defaults come from generation_config.json in the
    folder.
    batch_tokens: tokens per batch, including padding.
    """

    @classmethod
    def of(cls, bundle: Bundle) -> Pipeline:
        """Create a pipeline with the model and settings of a bundle."""
        return cls(**{field.name: getattr(bundle, field.name) for field in fields(bundle) if field.init})

    def translate(
        self,
        texts: Texts,
        *,
        to: str | None = None,
        prefix: str | None = None,
        split: Split | None = None,
        **options: Unpack[TextOptions],
    ) -> Texts:
        """Translate texts; see `glassformer.tasks.Translator`.

        >>> load("pocket").translate("Good morning.", to="de")
        'Guten Morgen.'
        """
        from glassformer.tasks.translation import Translator

        task = Translator(self, to=to, prefix=prefix, split=split, **options)
        return _texts(task, texts)

    def summarize(self, texts: Texts, *, prefix: str | None = None, **options: Unpack[TextOptions]) -> Texts:
        """Summarize texts; see `glassformer.tasks.Summarizer`."""
        from glassformer.tasks.translation import Summarizer

        return _texts(Summarizer(self, prefix=prefix, **options), texts)

    def restore(self, texts: Texts, **options: Unpack[TextOptions]) -> Texts:
        """Restore sentences with missing or shuffled words; see `glassformer.tasks.Restorer`."""
        from glassformer.tasks.translation import Restorer

        return _texts(Restorer(self, **options), texts)

    def generate(
        self, prompts: Texts, *, parse_special: bool = False, **options: Unpack[TextOptions]
    ) -> Texts:
        """Continue prompts; see `glassformer.tasks.TextGenerator`. Results do not include the prompt."""
        from glassformer.tasks.text_generation import TextGenerator

        task = TextGenerator(self, parse_special=parse_special, **options)
        return _texts(task, prompts)

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

    @overload
    def classify(
        self,
        inputs: ImageLike,
        text_pair: str | None = None,
        *,
        top: int | None = None,
        labels: Sequence[str] | None = None,
        template: str | Sequence[str] | None = None,
        **options: Unpack[EncoderTaskOptions],
    ) -> list[Label]: ...

    @overload
    def classify(
        self,
        inputs: Iterable[ImageLike],
        text_pair: Iterable[str] | None = None,
        *,
        top: int | None = None,
        labels: Sequence[str] | None = None,
        template: str | Sequence[str] | None = None,
        **options: Unpack[EncoderTaskOptions],
    ) -> list[list[Label]]: ...

    def classify(
        self,
        inputs: Any,
        text_pair: Any = None,
        *,
        top: int | None = None,
        labels: Sequence[str] | None = None,
        template: str | Sequence[str] | None = None,
        **options: Unpack[EncoderTaskOptions],
    ) -> list[Label] | list[list[Label]]:
        """Classify texts, images or time series: labels with probabilities.

        An image is a path, bytes, a PIL image or an array; a folder means all its images.
        For a model of time series, `inputs` is an array (B, T, C), a list of arrays (T, C), one such array,
        or a file.

        text_pair: the second text of each pair, e.g. the hypothesis; as many as `inputs`.
        top: number of labels; None: all.
        labels: names of the classes, for a model with an image and a text tower (zero-shot classification).
        template: text with {} in place of a label, by default "a photo of a {}"; several are averaged.
        """
        from glassformer.tasks.base import input_kind
        from glassformer.tasks.classification import Classifier
        from glassformer.tasks.series_classification import SeriesClassifier, reads_series, series_inputs

        if reads_series(self):
            classifier, inputs = SeriesClassifier(self, top=top), series_inputs(inputs)
            if classifier.is_single(inputs):
                return next(classifier.run([inputs])).labels
            return [result.labels for result in classifier.run(inputs)]

        task: Classifier | ZeroShotClassifier
        if labels is not None or isinstance(self.spec, spec.TwoTowerSpec):
            from glassformer.tasks.zero_shot import TEMPLATE, ZeroShotClassifier

            task = ZeroShotClassifier(self, labels or (), template=template or TEMPLATE, top=top, **options)
        else:
            task = Classifier(self, top=top, **options)
        inputs = _expand_folder(inputs, or_text=input_kind(self.spec) == "text")
        single = task.is_single(inputs)
        if text_pair is not None:
            firsts, seconds = ([inputs], [text_pair]) if single else (list(inputs), list(text_pair))
            if len(firsts) != len(seconds):
                raise InvalidValueError(
                    "text_pair", f"{len(seconds)} texts", f"{len(firsts)}, as many as inputs"
                )
            results = task(list(zip(firsts, seconds, strict=True)))
        else:
            results = task([inputs] if single else inputs)
        return results[0].labels if single else [result.labels for result in results]

    @overload
    def ner(
        self,
        texts: str,
        *,
        aggregation_strategy: AggregationStrategy | None = None,
        **options: Unpack[EncoderTaskOptions],
    ) -> list[Entity]: ...

    @overload
    def ner(
        self,
        texts: Iterable[str],
        *,
        aggregation_strategy: AggregationStrategy | None = None,
        **options: Unpack[EncoderTaskOptions],
    ) -> list[list[Entity]]: ...

    def ner(
        self,
        texts: Any,
        *,
        aggregation_strategy: AggregationStrategy | None = None,
        **options: Unpack[EncoderTaskOptions],
    ) -> list[Entity] | list[list[Entity]]:
        """Find named entities, with their labels, scores and character offsets.

        aggregation_strategy: how tokens form entities; see `glassformer.tasks.TokenClassifier`.
        """
        from glassformer.tasks.token_classification import TokenClassifier

        entities: list[Entity] | list[list[Entity]] = TokenClassifier(
            self, aggregation_strategy=aggregation_strategy, **options
        )(texts)
        return entities

    @overload
    def detect(
        self, images: ImageLike, *, threshold: float = 0.5, batch_size: int = 16
    ) -> list[Annotation]: ...

    @overload
    def detect(
        self, images: Iterable[ImageLike], *, threshold: float = 0.5, batch_size: int = 16
    ) -> list[list[Annotation]]: ...

    def detect(
        self, images: Any, *, threshold: float = 0.5, batch_size: int = 16
    ) -> list[Annotation] | list[list[Annotation]]:
        """Detect objects: for each image a list of label, score and box, the highest score first.

        Boxes are x_min, y_min, x_max, y_max in pixels of the original image.

        images: a path, bytes, a PIL image or an array, or several; a folder means all its images
        threshold: minimum score of an object, from 0 to 1
        batch_size: largest number of images per batch
        """
        from glassformer.tasks.detection import Detector

        task = Detector(self, threshold=threshold, batch_size=batch_size)
        return task(_expand_folder(images))

    @overload
    def segment(self, images: ImageLike, **options: Unpack[SegmentationOptions]) -> list[Annotation]: ...

    @overload
    def segment(
        self, images: Iterable[ImageLike], **options: Unpack[SegmentationOptions]
    ) -> list[list[Annotation]]: ...

    def segment(
        self, images: Any, **options: Unpack[SegmentationOptions]
    ) -> list[Annotation] | list[list[Annotation]]:
        """Segment images: masks of objects and regions, with labels, boxes and scores.

        A promptable model (SAM) segments the objects that points and boxes name, or everything; scores are
        predicted IoUs. The best mask comes first; after a single point, it is the largest whose predicted IoU
        is within 0.05 of the highest.
        An image is encoded once; a second prompt for the same image only runs the decoder.
        The other models (EoMT, MaskFormer, Mask2Former, models of the job `segment`) segment whole images.

        images: a path, bytes, a PIL image or an array, or several; a folder means all its images
        points: (x, y) in pixels, inside one object
        background_points: (x, y) outside of it
        boxes: (x_min, y_min, x_max, y_max) in pixels, each around an object
        everything: segment everything, with a grid of points; `MaskGeneration` sets its filters
        points_per_side: rows and columns of this grid (default: 32)
        multimask_output: three masks per prompt; by default for a single point, which is ambiguous
        mode: "semantic" (classes of all pixels), "instance" (objects) or "panoptic" (objects and regions that
        do not overlap); by default what the model was trained for
        threshold: minimum score of an object or region, without prompts (default: 0.5)
        stuff_classes: classes whose segments are merged into one in panoptic mode, such as sky
        """
        from glassformer.tasks.image_segmentation import make_segmenter

        return make_segmenter(self, **options)(_expand_folder(images))

    def embed(
        self, inputs: Any, *, prompt: str | None = None, **options: Unpack[EncoderTaskOptions]
    ) -> Tensor:
        """Embed a text or image as a vector (D,), several as a matrix (N, D); float32, on the CPU.

        A folder means all its images; for a model that also reads texts, pass it as a `Path`.

        prompt: name of a prompt defined in the folder of a sentence encoder.
        """
        from glassformer.tasks.base import input_kind
        from glassformer.tasks.embedding import Embedder, embedding_size

        task = Embedder(self, prompt=prompt, **options)
        inputs = _expand_folder(inputs, or_text=input_kind(self.spec) != "images")
        if task.is_single(inputs):
            vector: Tensor = task(inputs)
            return vector
        vectors = task(inputs)
        return torch.stack(vectors) if vectors else torch.empty(0, embedding_size(self))

    @overload
    def similar(
        self,
        queries: ImageLike,
        candidates: Iterable[ImageLike],
        *,
        top: int | None = None,
        **options: Unpack[EncoderTaskOptions],
    ) -> list[Match]: ...

    @overload
    def similar(
        self,
        queries: Iterable[ImageLike],
        candidates: Iterable[ImageLike],
        *,
        top: int | None = None,
        **options: Unpack[EncoderTaskOptions],
    ) -> list[list[Match]]: ...

    def similar(
        self, queries: Any, candidates: Any, *, top: int | None = None, **options: Unpack[EncoderTaskOptions]
    ) -> list[Match] | list[list[Match]]:
        """Rank candidates by the cosine similarity of their embeddings to each query, the nearest first.

        Folders mean all their images, as in `embed`.

        queries: one text or image, or several
        candidates: texts or images to rank
        """
        from glassformer.tasks.base import input_kind
        from glassformer.tasks.embedding import SimilaritySearch

        or_text = input_kind(self.spec) != "images"
        task = SimilaritySearch(self, _expand_folder(candidates, or_text=or_text), top=top, **options)
        return task(_expand_folder(queries, or_text=or_text))

    @overload
    def fill(self, texts: str, *, top: int = 5, batch_tokens: int = ...) -> FilledText: ...

    @overload
    def fill(self, texts: Iterable[str], *, top: int = 5, batch_tokens: int = ...) -> list[FilledText]: ...

    def fill(self, texts: Any, *, top: int = 5, batch_tokens: int = 16_384) -> FilledText | list[FilledText]:
        """Predict the `top` most likely tokens for every [MASK] of the texts."""
        from glassformer.tasks.fill_mask import MaskFiller

        filled: FilledText | list[FilledText] = MaskFiller(self, top=top, batch_tokens=batch_tokens)(texts)
        return filled

    def answer(
        self,
        question: str,
        context: str,
        *,
        max_answer_tokens: int = 15,
        window: int | None = None,
        stride: int = 128,
        handle_impossible_answer: bool = False,
    ) -> Answer:
        """Answer a question with a span of the context; see `glassformer.tasks.QuestionAnswerer`.

        max_answer_tokens: maximum length of the answer
        window, stride: tokens per window of a long context, and tokens that two windows share
        handle_impossible_answer: return an empty answer if it is more likely than the best span
        """
        from glassformer.tasks.question_answering import QuestionAnswerer

        task = QuestionAnswerer(
            self,
            max_answer_tokens=max_answer_tokens,
            window=window,
            stride=stride,
            handle_impossible_answer=handle_impossible_answer,
        )
        answer = task((question, context))
        assert answer is not None  # only skipped questions have no answer
        return answer

    def forecast(
        self,
        series: str | PathLike[str] | Mapping[str, Sequence[Any]] | Any,
        *,
        time: str | None = None,
        columns: Sequence[str] | None = None,
        fill: Fill = "error",
        quantile_levels: Sequence[float] | None = None,
        encoding: str = "utf-8",
    ) -> Forecast:
        """Forecast the series of a file, a data frame or a dict of columns; see `tasks.Forecaster`.

        series: a CSV or Parquet file, a data frame, or a dict of columns
        time: the time column; None: detected, or the rows are numbered if there is none
        columns: columns to forecast; None: all numeric ones
        fill: how to handle missing or repeated timestamps
        quantile_levels: quantiles to predict, e.g. (0.1, 0.5, 0.9)
        encoding: of a CSV file
        """
        from glassformer.tasks.forecasting import LEVELS, Forecaster

        return Forecaster(
            self,
            time=time,
            columns=columns,
            fill=fill,
            quantile_levels=quantile_levels or LEVELS,
            encoding=encoding,
        )(series)


def _expand_folder(inputs: Any, *, or_text: bool = False) -> Any:
    """Return the images of a folder, and anything else unchanged. or_text: a str is a text, not a folder."""
    is_path = isinstance(inputs, PathLike) or (isinstance(inputs, str) and not or_text)
    if not is_path or not isdir(inputs):
        return inputs
    from glassformer.data.image_files import list_images

    return list_images([inputs])


def _texts(task: TextGenerationTask[str], texts: Texts) -> Texts:
    """Run a task; return the text of one result, or a list of texts."""
    if task.params.config.num_return_sequences > 1:
        hint = "construct the task, whose results hold the alternatives"
        raise InvalidValueError(
            "num_return_sequences", task.params.config.num_return_sequences, "1", hint=hint
        )
    return task(texts).text if isinstance(texts, str) else [result.text for result in task(texts)]


def load(
    folder: str | Path,
    *,
    dtype: torch.dtype | str | None = None,
    device: str | torch.device = "cpu",
    mmap: bool = True,
) -> Pipeline:
    """Load a model folder: a published one, one that `save` wrote, or a model that ships with the package.

    A GGUF file of llama.cpp loads too; quantized weights become float32.

    For the folder of a training run, load the trained model, or the best so far. The model is in evaluation
    mode.

    mmap: map the weights from the file, and copy only what the layout requires. False copies them, so that
    changes to the file cannot affect the model; the server does this.
    dtype: float32 on a CPU by default; on a GPU weights keep the dtype they are stored in. "stored" keeps it
    on any device, for converting. With "int8" or "int4", tasks run with quantized weights; the model keeps
    its original weights.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     pipeline = load(save(tiny("gpt2"), folder))
    >>> pipeline.family, pipeline.model(torch.ones(2, 5).long()).shape          # (B, T, V)
    ('gpt2', torch.Size([2, 5, 101]))
    """
    return Pipeline.of(bundles.load(folder, dtype=dtype, device=device, mmap=mmap))


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
