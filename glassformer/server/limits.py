"""How much, how many and how long: the bounds of what a client may ask for."""

from __future__ import annotations

from dataclasses import dataclass

BODY = 32 << 20  # bytes of a body
LOGIN = 4096  # of one by somebody who has not shown the token yet
ITEMS = 500_000  # values in a body
DEPTH = 64  # lists in lists
LETTERS = 100_000  # of one text
TEXTS = 256  # of one request
SOURCE = 4096  # tokens of a source: it is read at once, while the others wait
READ = 8192  # tokens of a text that is embedded, where the model itself has no bound
IDS = 32_768  # tokens of one prompt that is given as ids
CHOICES = 16  # answers to one prompt
ROWS = 128  # answers of one request
PIECES = 4096  # sentences of one request to translate
STOPS, STOP_LETTERS = 4, 256
TOKENS = 4096  # written for one prompt
BEAMS = 16
IMAGES, IMAGE_LETTERS = 32, 24 << 20  # as base64
COLUMNS, STEPS = 1024, 100_000  # of a series
TOP = 5  # likeliest tokens told beside the one written


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a server was started with.

    queue: requests that are answered or wait at a time. seconds: for one answer. reading: seconds for a
    client to send its body. body, bodies: bytes of one, and of all that are held at a time.
    """

    queue: int = 256
    seconds: float = 300.0
    reading: float = 30.0
    body: int = BODY
    bodies: int = 16 * BODY
