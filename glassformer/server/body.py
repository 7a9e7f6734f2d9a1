"""A body that is JSON, and holds nothing that a later reader would stumble over."""

from __future__ import annotations

import json
import math
from typing import NoReturn

from glassformer.server.answers import BadBody, TooLarge
from glassformer.server.limits import DEPTH, ITEMS


def check(body: bytes) -> None:
    """Refuse with a sentence what is not plain JSON: bad UTF-8, NaN, half letters, bombs.

    >>> check(b'{"text": "a", "n": [1, 2.5]}')
    >>> check(b'{"n": NaN}')
    Traceback (most recent call last):
    ...
    glassformer.server.answers.BadBody: the body holds NaN, which is no number; leave it out
    """
    # counted before anything is made of them
    if body.count(b",") + body.count(b"[") + body.count(b"{") > ITEMS:
        raise TooLarge(f"the body holds more than {ITEMS:,} values; send less at once")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadBody(f"the body is not UTF-8: byte {error.start} cannot be read") from None
    try:
        found = json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise BadBody(f"the body is not JSON: {error.msg} at letter {error.pos}") from None
    except RecursionError:
        raise BadBody(_DEEP) from None
    except ValueError:  # a whole number of thousands of digits
        raise BadBody("the body holds a number too long to read") from None
    if body.count(b"[") + body.count(b"{") > DEPTH and _deep(found):
        raise BadBody(_DEEP)
    if b"\\u" in body:
        try:
            json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise BadBody("the body holds half a letter (an unpaired surrogate); mend it") from None


_DEEP = f"the body's lists stand in each other more than {DEPTH} deep"


def _no_number(word: str) -> NoReturn:
    raise BadBody(f"the body holds {word}, which is no number; leave it out")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise BadBody(f"the body holds {digits[:40]}, which is too large for a number")
    return value


def _deep(found: object) -> bool:
    level: list[object] = [found]
    for _ in range(DEPTH):
        inner: list[object] = []
        for one in level:
            if isinstance(one, dict):
                inner += one.values()
            elif isinstance(one, list):
                inner += one
        if not inner:
            return False
        level = inner
    return True
