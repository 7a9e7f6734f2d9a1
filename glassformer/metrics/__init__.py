"""Metrics, accumulated as sums over batches and divided once, so that batching does not change them."""

from glassformer.metrics.captions import caption_metric
from glassformer.metrics.vqa import vqa_metric

__all__ = ["caption_metric", "vqa_metric"]
