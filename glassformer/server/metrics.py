"""What Prometheus is told: requests, seconds, tokens, queue, slots and memory, in a registry of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

KIND = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """Counts of one server; `routes` are templates such as /trace/{id}, never what a client wrote."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        words: dict[str, Any] = {"registry": self.registry}
        self._requests = Counter(
            "glassformer_requests", "Requests answered.", ("route", "method", "status"), **words
        )
        self._seconds = Histogram(
            "glassformer_request_seconds",
            "Seconds to the end of an answer.",
            ("route",),
            buckets=SECONDS,
            **words,
        )
        self._read = Counter("glassformer_tokens_read", "Tokens read.", ("model",), **words)
        self._written = Counter("glassformer_tokens_written", "Tokens written.", ("model",), **words)
        self._under_way = Gauge("glassformer_requests_under_way", "Requests that have begun.", **words)
        self._left = Counter("glassformer_clients_left", "Clients gone before their answer.", **words)

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        """One request is done."""
        method = method if method in ("GET", "POST") else "other"
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def tokens(self, model: str, *, read: int, written: int) -> None:
        """So many tokens went through a model."""
        self._read.labels(model).inc(read)
        self._written.labels(model).inc(written)

    def under_way(self, count: int) -> None:
        """How many requests have begun and are not answered."""
        self._under_way.set(count)

    def left(self) -> None:
        """A client went away."""
        self._left.inc()

    def watch(self, name: str, about: str, label: str, values: Callable[[], dict[str, float]]) -> None:
        """A gauge that is read when somebody looks: a value for each label."""
        self.registry.register(_Watched(f"glassformer_{name}", about, label, values))

    def page(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self.registry)


class _Watched:
    def __init__(self, name: str, about: str, label: str, values: Callable[[], dict[str, float]]) -> None:
        self._name, self._about, self._label, self._values = name, about, label, values

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(self._name, self._about, labels=[self._label])
        for label, value in self._values().items():
            family.add_metric([label], value)
        yield family


def memory() -> dict[str, float]:
    """Bytes of this process that are in memory; nothing where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return {}
    import resource

    return {"resident": float(pages * resource.getpagesize())}
