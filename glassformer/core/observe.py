"""Record and edit the activations of a forward pass.

An `Observer` is passed to the forward as `obs=`. It stores only what the fast kernel computes anyway (q, k,
v, head outputs, residuals, norms, feed-forward). `Record.weights` recomputes a layer's attention matrix on
demand from the stored q, k, mask and bias with the explicit kernel, so observing never changes the output.
Names are module paths plus the tensor's name: `decoder.blocks.3.self_attn.q`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from glassformer.core.kernels import PreparedMask, attention_scores, attention_weights
from glassformer.errors import InvalidValueError, UnknownNameError, UnsupportedError

if TYPE_CHECKING:
    from glassformer.core.vision.attention import Layout
    from glassformer.explorer.notebook import ExplorerPage

TensorEdit = Callable[[Tensor], Tensor]


class AttentionContext(NamedTuple):
    """Inputs of an attention layer besides q, k and v."""

    mask: PreparedMask
    bias: Tensor | None
    scale: float
    softcap: float | None = None
    windows: Layout | None = None  # the batch holds the windows of each image


class Record:
    """Tensors recorded by an observer, by name; attention matrices are recomputed on demand.

    >>> from glassformer.core.attention import MultiHeadAttention
    >>> observer = Observer()
    >>> out = MultiHeadAttention(16, num_heads=4)(torch.randn(2, 5, 16), obs=observer.scope("self_attn"))
    >>> observer.record["self_attn.q"].shape                                # (B, H, T, K)
    torch.Size([2, 4, 5, 4])
    >>> observer.record.weights("self_attn", head=2).shape                  # (B, T, S)
    torch.Size([2, 5, 5])
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.attention_contexts: dict[str, AttentionContext] = {}
        self.output: Any = None
        self.model: nn.Module | None = None  # that `observe` ran, and its inputs
        self.inputs: Any = None

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise UnknownNameError(
                "recorded tensor", name, list(self.tensors), hint="record.names() lists them"
            )
        return self.tensors[name]

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def names(self, pattern: str = "*") -> list[str]:
        """Return the recorded names, in the order of the forward pass."""
        return [name for name in self.tensors if fnmatchcase(name, pattern)]

    def show(
        self,
        tokens: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
        *,
        view: str = "heads",
        height: int = 720,
    ) -> ExplorerPage:
        """Show a record of `observe` in a notebook: every head and every tensor, without a server.

        tokens: the token at each position, by default its id or number; of an encoder-decoder, a dict with
        "source" and "target"
        view: the explorer's view to open: "heads" or "model"
        height: of the frame, in pixels
        """
        from glassformer.explorer.notebook import show_record

        return show_record(self, tokens, view=view, height=height)

    def double(self) -> Record:
        """Return a copy with tensors in float64, from which scores and weights are recomputed in float64."""
        copy = Record()
        copy.tensors = {name: tensor.double() for name, tensor in self.tensors.items()}
        copy.attention_contexts, copy.output = self.attention_contexts, self.output
        copy.model, copy.inputs = self.model, self.inputs
        return copy

    def attentions(self) -> list[str]:
        """Return the attention layers whose q and k were recorded."""
        return [n for n in self.attention_contexts if f"{n}.q" in self.tensors and f"{n}.k" in self.tensors]

    def scores(
        self,
        name: str,
        head: int | None = None,
        stage: Literal["dot", "scaled", "masked"] = "scaled",
    ) -> Tensor:
        """Return the scores of an attention layer, (B, H, T, S), or (B, T, S) for one head.

        stage: "dot" Q K^T alone; "scaled" times the scale, softcapped, plus the bias; "masked" also with -inf
        at masked keys.
        """
        if stage not in ("dot", "scaled", "masked"):
            raise UnknownNameError("score stage", str(stage), ("dot", "scaled", "masked"))
        edited = self.tensors.get(f"{name}.scores")  # recorded because the forward used edited ones
        if edited is not None and stage != "dot":
            scores = _of_head(edited, name, head)
        else:
            q, k, context = self._queries_keys(name, head)
            bias = context.bias
            if head is not None and bias is not None:
                bias = bias[:, head : head + 1]
            scores = (
                attention_scores(q, k, None, 1.0)
                if stage == "dot"
                else attention_scores(q, k, bias, context.scale, context.softcap)
            )
        if stage == "masked" and (allowed := self._allowed(name, head, scores)) is not None:
            scores = scores.masked_fill(~allowed, float("-inf"))
        return scores if head is None else scores[:, 0]

    def weights(self, name: str, head: int | None = None) -> Tensor:
        """Return attention weights (B, H, T, S), or (B, T, S) for one head; fully masked rows are 0."""
        edited = self.tensors.get(f"{name}.weights")  # recorded because the forward used edited ones
        if edited is not None:
            weights = _of_head(edited, name, head)
        else:
            scores = self.scores(name, head)
            scores = scores if head is None else scores[:, None]
            weights = attention_weights(scores, self._allowed(name, head, scores))
        return weights if head is None else weights[:, 0]

    def token_weights(self, name: str, head: int, token: int) -> Tensor:
        """Return the weights (B, S) with which one token attends to every token, whatever the windows.

        With windows, S counts the tokens of the grid; those outside of the token's window get 0.
        """
        windows = self.attention_contexts[name].windows if name in self.attention_contexts else None
        weights = self.weights(name, head)  # (B, T, S), or (B * N, T, T) with windows
        if windows is None:
            return weights[:, token]
        ids = windows.token_ids(weights.device)  # (N, T)
        window, place = (int(i) for i in (ids == token).nonzero()[0])
        row: Tensor = weights.view(-1, len(ids), *weights.shape[1:])[:, window, place]  # (B, T)
        real = ids[window] >= 0
        spread = row.new_zeros(len(row), math.prod(windows.grid))
        spread[:, ids[window][real]] = row[:, real]
        return spread

    def _allowed(self, name: str, head: int | None, scores: Tensor) -> Tensor | None:
        """Return the mask of an attention layer, for one head or all."""
        allowed = self.attention_contexts[name].mask.to_dense(
            scores.shape[-2], scores.shape[-1], scores.device
        )
        if allowed is not None and head is not None and allowed.shape[1] > 1:
            allowed = allowed[:, head : head + 1]
        return allowed

    def _queries_keys(self, name: str, head: int | None) -> tuple[Tensor, Tensor, AttentionContext]:
        if name not in self.attention_contexts:
            hint = "" if self.attentions() else "want '*.q' and '*.k'"
            raise UnknownNameError("recorded attention", name, self.attentions(), hint=hint)
        q, k = self[f"{name}.q"], self[f"{name}.k"]
        if head is not None:
            group = head * k.shape[1] // q.shape[1]
            q, k = _of_head(q, name, head), k[:, group : group + 1]
        return q, k, self.attention_contexts[name]


def _of_head(x: Tensor, name: str, head: int | None) -> Tensor:
    """Return x (B, H, T, ...), or one head of it (B, 1, T, ...)."""
    if head is None:
        return x
    if not 0 <= head < x.shape[1]:
        raise InvalidValueError(f"head of {name}", head, f"0 to {x.shape[1] - 1}")
    return x[:, head : head + 1]


class Observer:
    """Record the tensors whose names match `want`, and apply edits; pass it as `obs=` to any forward.

    want: one glob or several ("decoder.blocks.*", "*.q")
    edit: name or glob -> function that returns the tensor to use instead. Editing "...self_attn.weights" or
    ".scores" makes that layer use the explicit kernel.

    >>> from glassformer.core.feedforward import FeedForward
    >>> observer = Observer(want="*up", edit={"ffn.up": torch.zeros_like})
    >>> out = FeedForward(16, d_ff=64)(torch.randn(2, 5, 16), obs=observer.scope("ffn"))
    >>> observer.record["ffn.up"].shape, bool(observer.record["ffn.up"].any())
    (torch.Size([2, 5, 64]), False)
    """

    def __init__(
        self, want: str | tuple[str, ...] = "*", edit: Mapping[str, TensorEdit] | None = None
    ) -> None:
        self.record = Record()
        self._want = (want,) if isinstance(want, str) else tuple(want)
        self._edit = dict(edit or {})
        self._applied: set[str] = set()
        self._prefix = ""

    def scope(self, name: str) -> Observer:
        """Return this observer with `name` added to the prefix of recorded names."""
        view = object.__new__(Observer)
        view.__dict__.update(self.__dict__)
        view._prefix = f"{self._prefix}{name}."
        return view

    def __call__(self, name: str, x: Tensor) -> Tensor:
        full = self._prefix + name
        for pattern, edit in self._edit.items():
            if fnmatchcase(full, pattern):
                self._applied.add(pattern)
                x = _apply_edit(edit, x, full)
        # edited matrices are always recorded: `Record.scores` and `Record.weights` must return them
        if name in ("scores", "weights") or any(fnmatchcase(full, pattern) for pattern in self._want):
            self.record.tensors[full] = x
        return x

    def edits(self, *names: str) -> bool:
        """Whether one of these names has an edit in this scope."""
        return any(fnmatchcase(self._prefix + n, pattern) for n in names for pattern in self._edit)

    def record_attention(self, context: AttentionContext) -> None:
        """Store what is needed to recompute the matrices of an attention layer, besides q and k."""
        self.record.attention_contexts[self._prefix.rstrip(".")] = context

    def record_windows(self, windows: Layout) -> None:
        """Store that the batch of the recorded attention layer consists of windows."""
        contexts, name = self.record.attention_contexts, self._prefix.rstrip(".")
        contexts[name] = contexts[name]._replace(windows=windows)

    def matched_nothing(self) -> bool:
        """Whether `want` is not empty but matched no name."""
        names = self.record.tensors
        return bool(self._want) and not any(fnmatchcase(n, pattern) for n in names for pattern in self._want)

    def unused_edits(self) -> list[str]:
        return [pattern for pattern in self._edit if pattern not in self._applied]


def _apply_edit(edit: TensorEdit, x: Tensor, name: str) -> Tensor:
    result = edit(x)
    if not isinstance(result, Tensor) or result.shape != x.shape:
        shape = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise InvalidValueError(f"the result of the edit of {name}", shape, f"a tensor of {tuple(x.shape)}")
    return result


def tap(obs: Observer | None, name: str, x: Tensor) -> Tensor:
    """Pass x to the observer, if any, and return x or its edited version."""
    return x if obs is None else obs(name, x)


def scope(obs: Observer | None, name: str) -> Observer | None:
    """Return the observer for a submodule; None without an observer."""
    return None if obs is None else obs.scope(name)


def run_with_weights(module: Callable[..., Any], *inputs: Any, **options: Any) -> tuple[Any, list[Tensor]]:
    """Return the output of a module or its forward, and the attention weights (B, H, T, S) of its layers.

    The weights keep the gradient, and are those before dropout.
    """
    observer = Observer(want=("*.q", "*.k", "*.weights"))
    output = module(*inputs, **options, obs=observer.scope("module"))
    record = observer.record
    return output, [record.weights(name) for name in record.attentions()]


def observe(
    model: nn.Module,
    inputs: Any,
    want: str | tuple[str, ...] = "*",
    edit: Mapping[str, TensorEdit] | None = None,
    **options: Any,
) -> Record:
    """Run `model` once in evaluation mode, without gradients, and return the record.

    For a compiled model, the original module is run. `record.output` is the model's output. To get
    gradients, pass an `Observer` to the model's forward instead.

    inputs: a tensor, a tuple of positional inputs, or a dict of named ones
    want: names of the tensors to record, one glob or several
    edit: name or glob -> function that returns the tensor to use instead
    options: passed to the forward, e.g. kernel="explicit"

    >>> from glassformer.core import build, spec
    >>> stack = build.build_stack(spec.StackSpec(d_model=16, num_layers=2, block=spec.BlockSpec(
    ...     attention=spec.AttentionSpec(num_heads=4), feed_forward=spec.FeedForwardSpec(d_ff=64))))
    >>> record = observe(stack, torch.randn(2, 5, 16), want="blocks.1.*")
    >>> record.weights("blocks.1.self_attn").shape                          # (B, H, T, S)
    torch.Size([2, 4, 5, 5])
    """
    plain = getattr(model, "_orig_mod", model)
    parameters = inspect.signature(plain.forward).parameters.values()
    if not any(p.name == "obs" or p.kind is p.VAR_KEYWORD for p in parameters):
        hint = "use a model of this library or a part of one"
        if type(plain).__module__.startswith("torch.nn"):
            hint += "; glassformer.from_torch converts torch's Transformer modules"
        raise UnsupportedError(f"a {type(plain).__name__}", "an observer", hint=hint)
    observer = Observer(want, edit)
    training = [module for module in plain.modules() if module.training]
    plain.eval()
    try:
        with torch.no_grad():
            if isinstance(inputs, Mapping):
                output = plain(**inputs, **options, obs=observer)
            elif isinstance(inputs, tuple | list):
                output = plain(*inputs, **options, obs=observer)
            else:
                output = plain(inputs, **options, obs=observer)
    finally:
        for module in training:
            module.training = True
    if unused := observer.unused_edits():
        raise UnknownNameError("name to edit", unused[0], hint="observe(model, inputs).names() lists them")
    if observer.matched_nothing():
        raise UnknownNameError("name to record", str(want), hint="observe(model, inputs).names() lists them")
    record = observer.record
    record.output, record.model, record.inputs = output, plain, inputs
    return record
