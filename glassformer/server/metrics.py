"""Metrics for Prometheus: requests, latency, tokens, queue, slots and memory."""

from __future__ import annotations

import mmap
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from glassformer.server.api_keys import count_tokens
from glassformer.server.models import ModelRegistry, ServedModel

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """The metrics of one server; routes are labeled by their template, e.g. /trace/{id}."""

    def __init__(self, models: ModelRegistry) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry, namespace="glassformer")
        gauge = partial(Gauge, registry=self.registry, namespace="glassformer")
        self._requests = counter("requests", "Requests answered.", ("route", "method", "status"))
        self._seconds = Histogram(
            "request_seconds",
            "Seconds to the end of the response.",
            ("route",),
            buckets=BUCKETS,
            registry=self.registry,
            namespace="glassformer",
        )
        self._read = counter("tokens_read", "Prompt tokens.", ("model",))
        self._generated = counter("tokens_generated", "Generated tokens.", ("model",))
        self.active = gauge("requests_active", "Requests in progress or queued.")
        self.disconnects = counter("disconnects", "Clients that disconnected before the end of the response.")
        gauge("memory_bytes", "Memory of this process.", ("kind",)).labels("resident").set_function(_memory)
        slots = gauge("slots_used", "Texts being generated.", ("model",))
        queue = gauge("queue_length", "Texts waiting for a slot.", ("model",))
        looked_up = gauge("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", ("model",))
        hits = gauge("prefix_cache_hits", "Prompt tokens found in the prefix cache.", ("model",))
        for name, model in models.items():
            slots.labels(name).set_function(partial(_stat, model, "rows"))
            queue.labels(name).set_function(partial(_stat, model, "waiting"))
            looked_up.labels(name).set_function(partial(_stat, model, "prefix_cache_queries"))
            hits.labels(name).set_function(partial(_stat, model, "prefix_cache_hits"))

    def record(self, route: str, method: str, status: int, seconds: float) -> None:
        method = method if method in ("GET", "POST") else "other"
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def count_tokens(self, model: str, *, read: int, generated: int) -> None:
        """Count the tokens of the current request, also for the limits of its API key."""
        count_tokens(read + generated)
        self._read.labels(model).inc(read)
        self._generated.labels(model).inc(generated)

    def render(self) -> bytes:
        return generate_latest(self.registry)


def _stat(model: ServedModel, name: str) -> float:
    return 0.0 if model.generation is None else float(getattr(model.generation.stats(), name))


def _memory() -> float:
    """Return the resident memory of this process in bytes; 0 if unknown."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0.0
