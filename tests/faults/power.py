"""What a disk may hold after the power fails: the legal states of a recorded sequence of changes.

The model is as weak as POSIX lets it be. What was written to a file lasts once that file is fsynced; before,
any beginning of it may be there, or its length with zeros in place of bytes. A name (made, moved or removed)
lasts once its folder is fsynced; before, each change of a folder may have lasted or not, whatever became of
the others. fsync of a file says nothing of its name, and fsync of a folder nothing of what its names hold.
"""

from __future__ import annotations

import random
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Any

from tests.faults.disk import Call

Tree = dict[str, "bytes | Tree"]
EVERY_SUBSET_UP_TO = 5  # changes of one folder that no fsync has settled; of more, some subsets are drawn
DRAWN = 40
CUTS = 16  # parts of a write that may have lasted


@dataclass(eq=False)
class _File:
    synced: bytes = b""
    pending: bytes = b""

    def sync(self) -> None:
        self.synced, self.pending = self.synced + self.pending, b""

    def outcomes(self) -> list[bytes]:
        if not self.pending:
            return [self.synced]
        ends = [self.pending[: len(self.pending) * i // CUTS] for i in range(CUTS + 1)]
        ends += [end.ljust(len(self.pending), b"\0") for end in ends]
        return [self.synced + end for end in dict.fromkeys(ends)]


Change = tuple[
    str | None, str | None, "_File | _Folder | None"
]  # the name gone, the name made, what it names


@dataclass(eq=False)
class _Folder:
    synced: dict[str, _File | _Folder] = field(default_factory=dict)
    pending: list[Change] = field(default_factory=list)

    def after(self, changes: Sequence[Change]) -> dict[str, _File | _Folder]:
        names = dict(self.synced)
        for gone, made, node in changes:
            if gone is not None:
                names.pop(gone, None)
            if made is not None and node is not None:
                names[made] = node
        return names

    def sync(self) -> None:
        self.synced, self.pending = self.after(self.pending), []

    def now(self) -> dict[str, _File | _Folder]:
        return self.after(self.pending)

    def outcomes(self, chance: random.Random) -> list[dict[str, _File | _Folder]]:
        count = len(self.pending)
        if count <= EVERY_SUBSET_UP_TO:
            kept = list(product((False, True), repeat=count))
        else:
            kept = [tuple(i < length for i in range(count)) for length in range(count + 1)]
            kept += [tuple(i != one for i in range(count)) for one in range(count)]
            kept += [tuple(chance.random() < 0.5 for _ in range(count)) for _ in range(DRAWN)]
        return [self.after([c for c, keep in zip(self.pending, row, strict=True) if keep]) for row in kept]


def crash_states(
    calls: Sequence[Call], moments: Container[int], chance: random.Random
) -> Iterator[tuple[int, Tree]]:
    """For each of the moments, counted in changes that were asked for: the moment, and each state left."""
    root = _Folder()
    for moment in range(len(calls) + 1):
        if moment in moments:
            seen: set[str] = set()
            for tree in _states(root, chance):
                if (key := repr(tree)) not in seen:
                    seen.add(key)
                    yield moment, tree
        if moment < len(calls):
            _apply(root, calls[moment])


def put(tree: Tree, folder: Path) -> None:
    """Make the state real, in an empty folder."""
    for name, node in tree.items():
        if isinstance(node, bytes):
            (folder / name).write_bytes(node)
        else:
            (folder / name).mkdir()
            put(node, folder / name)


def _find(root: _Folder, path: str) -> _File | _Folder:
    node: _File | _Folder = root
    for name in PurePosixPath(path).parts:
        assert isinstance(node, _Folder)
        node = node.now()[name]
    return node


def _apply(root: _Folder, call: Call) -> None:
    path = PurePosixPath(call.path)
    if call.name == "fsync":
        _find(root, call.path).sync()
        return
    if call.name == "write":
        file = _find(root, call.path)
        assert isinstance(file, _File)
        file.pending += call.data
        return
    folder = _find(root, str(path.parent))
    assert isinstance(folder, _Folder)
    if call.name == "mkdir":
        folder.pending.append((None, path.name, _Folder()))
    elif call.name == "create":
        folder.pending.append((None, path.name, _File()))
    elif call.name == "rename":
        target = PurePosixPath(call.to)
        assert target.parent == path.parent, "a name moved to another folder is not modelled"
        folder.pending.append((path.name, target.name, folder.now()[path.name]))
    else:
        assert call.name in ("unlink", "rmdir")
        folder.pending.append((path.name, None, None))


def _states(root: _Folder, chance: random.Random) -> Iterator[Tree]:
    """All unsettled things lost, all kept, and the outcomes of each with the others lost or kept."""
    nodes = list(dict.fromkeys(_reachable(root)))
    for kept in (False, True):
        yield _tree(root, {}, kept)
        for node in nodes:
            outcomes = node.outcomes(chance) if isinstance(node, _Folder) else node.outcomes()
            for outcome in outcomes[: len(outcomes) if len(outcomes) > 1 else 0]:
                yield _tree(root, {node: outcome}, kept)
    choices = [(n, n.outcomes(chance) if isinstance(n, _Folder) else n.outcomes()) for n in nodes]
    for _ in range(DRAWN):
        yield _tree(root, {node: chance.choice(outcomes) for node, outcomes in choices}, True)


def _reachable(node: _File | _Folder) -> Iterator[_File | _Folder]:
    yield node
    if isinstance(node, _Folder):
        for below in [*node.synced.values(), *(n for _, _, n in node.pending if n is not None)]:
            yield from _reachable(below)


def _tree(folder: _Folder, chosen: dict[Any, Any], kept: bool) -> Tree:
    names = chosen.get(folder)
    if names is None:
        names = folder.now() if kept else folder.synced
    tree: Tree = {}
    for name, node in names.items():
        if isinstance(node, _Folder):
            tree[name] = _tree(node, chosen, kept)
        else:
            settled = node.synced + (node.pending if kept else b"")
            tree[name] = chosen.get(node, settled)
    return tree
