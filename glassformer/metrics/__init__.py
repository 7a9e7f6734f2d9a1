"""Metrics: summed over batches and divided once, so that batching changes nothing."""
