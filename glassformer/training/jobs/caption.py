"""Job `caption`: train a model that describes images, in one or several languages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from glassformer.bundle import Bundle
from glassformer.data.captions import CaptionTargets
from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import Source
from glassformer.data.store import Ragged, Store
from glassformer.errors import MissingValueError
from glassformer.generation import GenerationParams
from glassformer.generation.engine import generate
from glassformer.generation.inference_model import prepare_for_inference
from glassformer.metrics.captions import caption_metric
from glassformer.metrics.text import perplexity
from glassformer.tasks.text_generation import special_tokens
from glassformer.tokenization import Tokenizer, tag_ids
from glassformer.training import sections
from glassformer.training.encoding import Encoded, Row, eos_id
from glassformer.training.hardware import Hardware
from glassformer.training.image_text_job import CaptionData, ImageTextJob
from glassformer.training.job_spec import JobSpec
from glassformer.training.learner import PairLearner, count_labels
from glassformer.training.model_setup import build_initialized, new_model_spec, supported_options
from glassformer.training.recipe import BatchLimits
from glassformer.training.seq2seq_job import TAG
from glassformer.training.task import Sample, ValidationResult, mean_loss
from glassformer.training.text_job import check_vocabulary

GENERATED_ROWS = 64  # images that are described together in a validation


@dataclass(frozen=True, kw_only=True)
class ImageCaptionData(CaptionData):
    """Images and their captions, in one or several languages."""

    language_column: str | int | None = sections.column_name(
        "column with the language of the caption; null trains one language"
    )


class CaptionJob(ImageTextJob[ImageCaptionData]):
    """Train an image encoder with a text decoder to describe images."""

    template = "eos"
    unit, count = "tokens", staticmethod(count_labels)
    min_valid_images = 2  # CIDEr compares images
    text_cost = 5 / 3
    languages: tuple[str, ...] = ()

    def base_image_input(self) -> Any:
        if self.base is None:
            return None
        spec: Any = self.base.spec
        if spec.modalities != ("image",) or spec.yields != "next tokens":
            raise self.unsupported_model("use an image encoder with a text decoder, e.g. of this job")
        return spec.source

    def check_model(self) -> None:
        super().check_model()
        if not self.fine_tuning and not supported_options(self.preset, {"decoder_d_model": 1}):
            raise self.unsupported_model("use vit-gpt2 or vit-gpt2-mini")

    def fill_max_len(self) -> None:
        limit = self.default_max_len
        if self.base is not None:
            spec: Any = self.base.spec
            limit = spec.target.position.max_len - 1  # the language is one more token
        self.update_data(max_len=min(limit, self.max_len or limit) if self.base else self.max_len or limit)

    def prepare_data(self) -> None:
        column = self.data.language_column
        self.language_column = self.base_info.to if column is None else column
        super().prepare_data()
        notes = self.corpus.notes.values()
        self.languages = tuple(sorted({language for split in notes for language in split["languages"]}))
        if len({row[0] for row in self.valid_texts()}) < 2:
            raise MissingValueError("a second image for validation", "by CIDEr")

    def tags(self, train: Source) -> Iterable[str]:
        if self.language_column is None:
            return ()
        return sorted({TAG.format(row[2]) for row in train.rows(RowErrors())})

    def encode(self, tokenizer: Tokenizer, rows: list[Row]) -> Encoded:
        encoded = tokenizer.encode_batch([row[1] for row in rows], special=False)
        prompts, end = [self.prompt(tokenizer, row[2:]) for row in rows], self.end_id(tokenizer)
        captions = [[*text.ids[: max(0, self.max_len - 1)], end] for text in encoded]
        counts = Counter(("language", language) for row in rows for language in row[2:])
        return [Ragged.of([[*first, *ids] for first, ids in zip(prompts, captions, strict=True)])], counts

    def prompt(self, tokenizer: Tokenizer, language: Sequence[str]) -> list[int]:
        """Return the tokens before a caption: the tag of its language, if there are several."""
        return tag_ids(tokenizer, map(TAG.format, language))

    def end_id(self, tokenizer: Tokenizer) -> int:
        """Return the token that ends a caption: that of the base model, which its tokenizer may not know."""
        ends = () if self.base is None else special_tokens(self.base).eos_token_id
        return ends[0] if ends else eos_id(tokenizer)

    def notes(self, counts: Counter[Any]) -> dict[str, Any]:
        return {"languages": sorted(language for _, language in counts)}

    @property
    def start_id(self) -> int:
        """The decoder start token: that of the base model, else the end token."""
        spec: Any = None if self.base is None else self.base.spec
        start: int | None = getattr(spec, "start_id", None)
        return self.end_id(self.corpus.tokenizer) if start is None else start

    def examples(self, store: Store, *, augment: bool = False) -> CaptionTargets:
        prompt = int(self.language_column is not None)
        options = self.example_options(store, augment=augment)
        return CaptionTargets(start_id=self.start_id, prompt=prompt, **options)

    def choose_defaults(self, hardware: Hardware) -> list[str]:
        return self.choose_image_model(hardware)

    def build(self) -> Bundle:
        corpus, bundle, start = self.corpus, self.base, self.start_id
        if bundle is None:
            fixed = {
                "vocab_size": corpus.tokenizer.vocab_size,
                "max_len": self.max_len + 1,
                "image_size": self.image_size,
                "start_id": start,
            }
            ids = {"eos_token_id": corpus.eos_id, "pad_token_id": corpus.pad_id}
            generation = {"decoder_start_token_id": start, **ids}
            model = build_initialized(new_model_spec(self.recipe.model, fixed))
            bundle = Bundle(model=model, generation=generation)
        else:
            target: Any = bundle.spec
            check_vocabulary(corpus, target.target.vocab_size)
        languages = sorted({*self.languages, *(self.base_info.languages or ())})
        several = {"languages": tuple(languages), "to": self.language_column} if languages else {}
        return self.with_sidecars(bundle, **several)

    def learner(self, model: Any) -> PairLearner:
        options = self.recipe.training
        return PairLearner(model, label_smoothing=options.label_smoothing or 0.0, r_drop=options.r_drop)

    def validate(self, learner: PairLearner, valid: CaptionTargets, device: torch.device) -> ValidationResult:
        """Compute the loss on all examples, and the scores of the first ones, whose images are described."""
        limits = self.recipe.training.batch_limits(BatchLimits(batch_size=128))
        loss = mean_loss(learner, valid, device, batch=limits)
        references: dict[tuple[str, ...], list[str]] = {}  # by image and language
        rows: dict[tuple[str, ...], int] = {}
        for row, (image, caption, *language) in enumerate(self.valid_texts()):
            references.setdefault((image, *language), []).append(caption)
            rows.setdefault((image, *language), row)
        outputs: dict[tuple[str, ...], str] = {}
        model = prepare_for_inference(learner.model)
        for spoken in sorted({key[1:] for key in rows}):
            keys = [key for key in rows if key[1:] == spoken]
            for start in range(0, len(keys), GENERATED_ROWS):
                part = keys[start : start + GENERATED_ROWS]
                texts = self._describe(model, valid, [rows[key] for key in part], spoken, device)
                outputs |= zip(part, texts, strict=True)
        captions, expected = [outputs[key] for key in rows], [references[key] for key in rows]
        scores = caption_metric(captions, expected)
        exact = sum(one in wanted for one, wanted in zip(captions, expected, strict=True)) / len(captions)
        metrics = {name: score.score for name, score in scores.items()}
        return ValidationResult(
            metrics={"loss": loss, "perplexity": perplexity(loss), **metrics, "exact": exact},
            samples=[
                Sample(source=" ".join(key), expected=references[key][0], got=outputs[key]) for key in rows
            ],
            signatures={name: score.signature for name, score in scores.items()},
        )

    def _describe(
        self,
        model: Any,
        valid: CaptionTargets,
        rows: Sequence[int],
        language: Sequence[str],
        device: torch.device,
    ) -> list[str]:
        """Return the captions of the images of these rows in one language."""
        tokenizer = self.corpus.tokenizer
        params = GenerationParams(
            start_ids=(self.start_id, *self.prompt(tokenizer, language)),
            eos_token_id=self.end_id(tokenizer),
            pad_token_id=self.corpus.pad_id,
            max_new_tokens=self.max_len,
        )
        images = torch.from_numpy(valid.batch(np.array(rows), epoch=0)["src"]).to(device)
        return [tokenizer.decode(best.ids).strip() for best, *_ in generate(model, images, params)]


JOB = JobSpec(
    name="caption",
    summary="Train a model that describes images, in one or several languages.",
    factory=CaptionJob,
    data=ImageCaptionData,
    metrics=("loss", "perplexity", "cider", "bleu", "exact"),
    metric="cider",
    preset="vit-gpt2-mini",
    batch_unit="examples",
)
