"""The training jobs by name."""

from __future__ import annotations

from typing import Any

from glassformer.training.jobs.base import Job
from glassformer.training.jobs.classification import ClassifyJob, ImagesJob
from glassformer.training.jobs.contrastive import ContrastiveJob
from glassformer.training.jobs.detection import DetectJob
from glassformer.training.jobs.forecast import ForecastJob
from glassformer.training.jobs.lm import LanguageModelingJob
from glassformer.training.jobs.question_answering import AnswerJob
from glassformer.training.jobs.segmentation import SegmentJob
from glassformer.training.jobs.sentence_embedding import EmbedJob
from glassformer.training.jobs.seq2seq import RestoreJob, SummarizeJob, TranslateJob
from glassformer.training.jobs.series_classification import ClassifySeriesJob
from glassformer.training.jobs.token_classification import NamedEntityJob

JOBS: dict[str, type[Job[Any]]] = {
    "translate": TranslateJob,
    "lm": LanguageModelingJob,
    "restore": RestoreJob,
    "summarize": SummarizeJob,
    "embed": EmbedJob,
    "contrastive": ContrastiveJob,
    "classify": ClassifyJob,
    "ner": NamedEntityJob,
    "answer": AnswerJob,
    "images": ImagesJob,
    "detect": DetectJob,
    "segment": SegmentJob,
    "forecast": ForecastJob,
    "classify-series": ClassifySeriesJob,
}
