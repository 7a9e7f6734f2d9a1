"""Traces kept for a while: the least recently used go when there are too many or they hold too much."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from glassformer.interpret.kinds import UnknownNameError
from glassformer.interpret.taken import Trace

TRACES = 48
BYTES = 1 << 30


class Store:
    """Traces by their id; may be used from several threads.

    The newest is always kept, however large it is.
    """

    def __init__(self, *, traces: int = TRACES, bytes: int = BYTES) -> None:
        self._most, self._room = traces, bytes
        self._held: OrderedDict[str, tuple[Trace, int]] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def bytes(self) -> int:
        """What all the traces hold."""
        with self._lock:
            return sum(size for _, size in self._held.values())

    def put(self, trace: Trace, *, beside: int = 0) -> None:
        """Keep a trace, and drop the oldest where it is too much. beside: bytes it holds of weights alone."""
        size = trace.bytes + beside
        with self._lock:
            self._held.pop(trace.id, None)
            self._held[trace.id] = trace, size
            held = sum(size for _, size in self._held.values())
            while len(self._held) > 1 and (len(self._held) > self._most or held > self._room):
                _, (_, size) = self._held.popitem(last=False)
                held -= size

    def find(self, id: str) -> Trace | None:
        """The trace, which is then the most recently used; None where it was dropped or never taken."""
        with self._lock:
            if id not in self._held:
                return None
            self._held.move_to_end(id)
            return self._held[id][0]

    def get(self, id: str) -> Trace:
        """The same, or a sentence."""
        trace = self.find(id)
        if trace is None:
            raise UnknownNameError(
                f"there is no trace '{id[:40]}'; it was dropped, or never taken: ask for it again"
            )
        return trace
