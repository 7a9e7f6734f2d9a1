"""The models and runs that are looked into, and the traces taken of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from glassformer.bundle import Bundle
from glassformer.errors import GlassformerError
from glassformer.interpret.kinds import Given, UnknownNameError
from glassformer.interpret.models import model_info
from glassformer.interpret.store import Store
from glassformer.interpret.taken import Trace, take, trace_id


class Explored:
    """Models and runs by id, with a store of traces; may be used from several threads.

    A question that was asked before is answered from the store; new traces are taken one at a time.
    """

    def __init__(
        self,
        bundles: Mapping[str, Bundle],
        runs: Mapping[str, Path] | None = None,
        *,
        store: Store | None = None,
    ) -> None:
        self.bundles, self.runs = dict(bundles), dict(runs or {})
        self.store = store or Store()
        self._infos: dict[str, dict[str, Any] | None] = {}
        self._taking, self._telling = Lock(), Lock()

    def bundle(self, id: str) -> Bundle:
        """The model of that id."""
        if id not in self.bundles:
            known = ", ".join(self.bundles) or "none"
            raise UnknownNameError(f"there is no model '{id[:80]}'; there are: {known}")
        return self.bundles[id]

    def models(self) -> list[dict[str, Any]]:
        """What there is to say of every model that can be looked into; baselines cannot."""
        with self._telling:
            for id, bundle in self.bundles.items():
                if id not in self._infos:
                    try:
                        self._infos[id] = model_info(bundle, id)
                    except GlassformerError:
                        self._infos[id] = None
            return [info for id in self.bundles if (info := self._infos[id]) is not None]

    def take(self, request: Mapping[str, Any]) -> Trace:
        """The trace of `model`, of an input's words and of `changes`."""
        words = dict(request)
        model, changes = words.pop("model", None), tuple(words.pop("changes", None) or ())
        if not isinstance(model, str):
            raise GlassformerError("say which model is to be looked into, as `model`")
        bundle, given = self.bundle(model), Given.of(words)
        if (known := self.store.find(trace_id(model, given, changes))) is not None:
            return known
        with self._taking:
            if (known := self.store.find(trace_id(model, given, changes))) is not None:
                return known  # taken while this one waited
            trace = take(bundle, given, changes, model=model)
            self.store.put(trace)
        return trace

    def trace(self, id: str) -> Trace:
        """A trace that was taken."""
        return self.store.get(id)
