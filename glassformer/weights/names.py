"""The notation of tensor names in a weight table.

`{a,b}` lists names, as a shell does: `self_attn.{q,k,v}_proj.weight` is three names.
`{i}` is a blank that `expand` fills: `h.{i}.ln.{p}`, `i=12, p=("weight", "bias")`, is 24 names.
`{base}` is the one blank left open: the published prefix, found out when a file is read.
"""

import re
from collections.abc import Iterable

BASE = "{base}"
_LIST = re.compile(r"\{([^{}]*,[^{}]*)\}")
_BLANK = re.compile(r"\{(\w+)\}")

Names = str | tuple[str, ...]


def listed(names: Names) -> tuple[str, ...]:
    """Write out every `{a,b}` list, leftmost list slowest.

    >>> listed("{q,k}.{weight,bias}")
    ('q.weight', 'q.bias', 'k.weight', 'k.bias')
    """
    if isinstance(names, str):
        names = (names,)
    found: list[str] = []
    for name in names:
        match = _LIST.search(name)
        if match is None:
            found.append(name)
            continue
        head, tail = name[: match.start()], name[match.end() :]
        for choice in match[1].split(","):
            found.extend(listed(head + choice + tail))
    return tuple(found)


def blanks(names: Iterable[str]) -> set[str]:
    """The names of the blanks still open.

    >>> sorted(blanks(("{base}h.{i}.weight",)))
    ['base', 'i']
    """
    return {blank for name in names for blank in _BLANK.findall(name)}


def filled(names: Iterable[str], blank: str, value: object) -> tuple[str, ...]:
    """Put `value` into one blank of every name.

    >>> filled(("h.{i}.weight",), "i", 3)
    ('h.3.weight',)
    """
    return tuple(name.replace("{" + blank + "}", str(value)) for name in names)
