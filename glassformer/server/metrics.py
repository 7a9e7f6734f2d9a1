"""Metrics for Prometheus: requests, latency, tokens, queue, slots and memory."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """The metrics of one server; a route is its template, e.g. /trace/{id}."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        options: dict[str, Any] = {"registry": self.registry}
        self._requests = Counter(
            "glassformer_requests", "Requests answered.", ("route", "method", "status"), **options
        )
        self._seconds = Histogram(
            "glassformer_request_seconds",
            "Seconds to the end of the response.",
            ("route",),
            buckets=BUCKETS,
            **options,
        )
        self._read = Counter("glassformer_tokens_read", "Prompt tokens.", ("model",), **options)
        self._generated = Counter("glassformer_tokens_generated", "Generated tokens.", ("model",), **options)
        self._active = Gauge("glassformer_requests_active", "Requests in progress or queued.", **options)
        self._disconnects = Counter(
            "glassformer_disconnects", "Clients that left before the end of their response.", **options
        )

    def record(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request that is done."""
        method = method if method in ("GET", "POST") else "other"
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def count_tokens(self, model: str, *, read: int, generated: int) -> None:
        """Count tokens that went through a model."""
        self._read.labels(model).inc(read)
        self._generated.labels(model).inc(generated)

    def set_active(self, count: int) -> None:
        """Set the number of requests in progress or queued."""
        self._active.set(count)

    def count_disconnect(self) -> None:
        """Count a client that left early."""
        self._disconnects.inc()

    def add_gauge(self, name: str, about: str, label: str, values: Callable[[], dict[str, float]]) -> None:
        """Add a gauge that is computed when it is read: one value for each label."""
        self.registry.register(_ComputedGauge(f"glassformer_{name}", about, label, values))

    def render(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self.registry)


class _ComputedGauge:
    def __init__(self, name: str, about: str, label: str, values: Callable[[], dict[str, float]]) -> None:
        self._name, self._about, self._label, self._values = name, about, label, values

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(self._name, self._about, labels=[self._label])
        for label, value in self._values().items():
            family.add_metric([label], value)
        yield family


def memory() -> dict[str, float]:
    """Resident bytes of this process; empty if the system does not say."""
    try:
        pages = int(Path(f"/proc/{os.getpid()}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return {}
    return {"resident": float(pages * resource.getpagesize())}
