"""Metrics, accumulated as sums over batches and divided once, so that batching does not change them."""
