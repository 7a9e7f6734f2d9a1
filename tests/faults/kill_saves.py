"""Kill a process at random moments inside a save, and look at what it left."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

from glassformer.errors import GlassformerError
from tests.faults.saving import Saved, loaded, save

BEGUN, DONE = b"b", b"d"
WIDTHS = (4, 4000)  # 64 bytes, or many pages, of the largest tensor


def plan(step: int, number: int, seed: int) -> tuple[Saved, int, int]:
    """The save after so many others: the same step again one time in three, of one size or the other."""
    chance = random.Random(f"{seed} {number}")
    again = step > 0 and chance.random() < 1 / 3
    return (step if again else step + 1, number), chance.choice(WIDTHS), chance.choice((1, 1, 2, 3))


def save_without_end(folder: Path, step: int, number: int, seed: int, pipe: int) -> None:
    while True:
        number += 1
        saved, width, keep = plan(step, number, seed)
        os.write(pipe, BEGUN)
        save(folder, saved, width=width, keep=keep)
        os.write(pipe, DONE)
        step = saved[0]


def trial(folder: Path, step: int, number: int, seed: int, delay: float, saves: int) -> bytes:
    """What a child told of its saves before it was killed, `delay` seconds into one of them."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            save_without_end(folder, step, number, seed, writing)
        finally:
            os._exit(1)
    os.close(writing)
    told = b""
    while told.count(BEGUN) < saves and (more := os.read(reading, 1)):
        told += more
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(reading, 1 << 12):
        told += more
    os.close(reading)
    return told


def kill_saves(folder: Path, count: int, seed: int) -> tuple[int, list[str]]:
    """So many kills that fell inside a save, and what was wrong after any of them."""
    chance = random.Random(seed)
    failures: list[str] = []
    inside = outside = number = 0
    completed: Saved | None = None
    begun = time.perf_counter()
    for _ in range(5):
        number += 1
        completed, width, keep = plan(completed[0] if completed else 0, number, seed)
        save(folder, completed, width=width, keep=keep)
    typical = (time.perf_counter() - begun) / 5
    while inside < count and outside < 20 * count + 100:
        step = completed[0] if completed else 0
        told = trial(folder, step, number, seed, chance.uniform(0, 1.2 * typical), chance.randint(1, 2))
        flight: Saved | None = None
        for event in told.decode():
            if event == "b":
                number += 1
                flight = plan(completed[0] if completed else 0, number, seed)[0]
            else:
                completed, flight = flight, None
        inside, outside = inside + (flight is not None), outside + (flight is None)
        try:
            found = loaded(folder)
        except (GlassformerError, AssertionError) as error:
            failures.append(f"kill {inside + outside}: {error}")
            break
        if found != completed and (flight is None or found != flight):
            failures.append(f"kill {inside + outside}: {found} where {completed} was saved, {flight} begun")
        if found is None:
            break
        completed = found
    if inside < count:
        failures.append(f"only {inside} of {count} kills fell inside a save, {outside} elsewhere")
    return inside, failures
