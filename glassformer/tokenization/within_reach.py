"""Long work in compiled code, such as learning a vocabulary, that a signal can still break off."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")


def within_reach(work: Callable[[Iterator[Item]], Made], items: Iterable[Item]) -> Made:
    """`work(items)`, done in a thread that the caller waits for.

    Python tells of a signal between two steps of its main thread, and compiled code is one long step. A wait
    can be broken off; what was waited for then gets no more items, and ends with the program at the latest.

    >>> within_reach(sum, [1, 2, 3])
    6
    """
    made: Future[Made] = Future()
    left = threading.Event()

    def wanted() -> Iterator[Item]:
        for item in items:
            if left.is_set():
                return
            yield item

    def do() -> None:
        try:
            made.set_result(work(wanted()))
        except BaseException as fault:  # told to whoever waits; a panic in compiled code is no Exception
            made.set_exception(fault)

    threading.Thread(target=do, name="within reach", daemon=True).start()
    try:
        return made.result()
    finally:
        left.set()
