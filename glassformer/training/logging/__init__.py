"""Training logs: the console, metrics.jsonl, TensorBoard, and the report."""

from __future__ import annotations
