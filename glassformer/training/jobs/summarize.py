"""Job `summarize`: train a model that summarizes texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from glassformer.data.sources import Source, TableSource, pairs
from glassformer.metrics.text import Case, rouge
from glassformer.schema import setting
from glassformer.tasks.text_generation import task_prefix
from glassformer.tokenization import Tokenizer
from glassformer.training import sections
from glassformer.training.encoding import Encoded, Row
from glassformer.training.job_spec import JobSpec
from glassformer.training.model_setup import max_input_length
from glassformer.training.sections import Columns, Paths, TableSection
from glassformer.training.seq2seq_job import Seq2SeqJob, encode_pairs


@dataclass(frozen=True, kw_only=True)
class SummaryData(TableSection):
    """Texts and their summaries, one per row."""

    train: Paths = sections.train_files(
        "tables with a text and its summary in a row, or two line-aligned files"
    )
    valid: Paths | float = sections.valid_split(0.02)
    columns: Columns | None = sections.column_names("text and summary column")
    prefix: str | None = setting(
        None, "text before every source, e.g. `summarize: ` for T5; null: the one of the base model, if any"
    )
    max_len: int | None = sections.maximum_length(
        "a text; longer texts are truncated and counted", default=512
    )
    max_summary_len: int = setting(
        128, "maximum length of a summary; longer ones are truncated", interval="[2, inf)", unit="tokens"
    )


class SummarizeJob(Seq2SeqJob[SummaryData]):
    """Train a model to summarize texts."""

    default_max_len = 512

    @cached_property
    def prefix(self) -> str:
        """The text before every source: that of the recipe, else of the base model."""
        if self.data.prefix is not None or self.base is None:
            return self.data.prefix or ""
        if self.base_info.prefix is not None:
            return self.base_info.prefix
        return task_prefix(self.base, lambda name: name.startswith("summarization"))

    def adopt_base_settings(self) -> None:
        if self.base is not None:
            limit = max_input_length(self.base.spec)
            self.update_data(max_len=min(limit, self.base_info.max_len or limit))

    @property
    def cache_key(self) -> tuple[object, ...]:
        return *super().cache_key, self.data.max_summary_len, self.prefix

    def open_files(self, files: Sequence[str]) -> Source:
        source = pairs(files, columns=self.data.columns, **self.data.table_options)
        if files == self.data.train and self.data.columns is None and isinstance(source, TableSource):
            self.log(source.column_summary)
        return source

    def encode(self, tokenizer: Tokenizer, rows: list[Row]) -> Encoded:
        sources, targets = encode_pairs(tokenizer, [(self.prefix + text, summary) for text, summary in rows])
        truncated = int((sources.lengths > self.max_len).sum())
        fields = sources.truncate(self.max_len), targets.truncate(self.data.max_summary_len)
        return fields, {"truncated": truncated}

    def max_new_tokens(self, length: int) -> int:
        return self.data.max_summary_len

    def score(
        self, outputs: list[str], expected: list[str], case: Case
    ) -> tuple[dict[str, float], dict[str, str]]:
        return rouge(outputs, expected), {}

    def info(self) -> Mapping[str, Any]:
        return {"max_len": self.max_len, "prefix": self.prefix or None}


JOB = JobSpec(
    name="summarize",
    summary="Train a model that summarizes texts.",
    factory=SummarizeJob,
    data=SummaryData,
    metrics=("loss", "perplexity", "rouge1", "rouge2", "rougeL"),
    metric="rougeL",
    preset="original",
    defaults={"label_smoothing": 0.1},
)
