"""The outline of a model (its kind, stacks and sizes), and the stages and attentions of its data flow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.core.observe import Record
from glassformer.core.vision.stages import Stages
from glassformer.errors import UnsupportedError
from glassformer.interpret import schema
from glassformer.schema import Spec
from glassformer.tasks.registry import tasks_of

DERIVED = ("table", "table_ahead", "similarity")  # computed from the position scheme, not recorded
Step = tuple[str, Any, int | None, dict[str, str]]  # name, kind, layer, roles


def find_submodule(model: nn.Module, path: str, kinds: tuple[type[nn.Module], ...]) -> Any:
    try:
        module = model.get_submodule(path) if path else None
    except AttributeError:
        return None
    return module if isinstance(module, kinds) else None


def model_kind(bundle: Bundle) -> schema.Kind:
    """Return the kind of a model: the view of the first task that it can do and that has one."""
    if not bundle.spec.stacks():
        raise UnsupportedError(
            bundle.display_name, f"tracing: it is a baseline without attention ({bundle.spec.kind})"
        )
    views = ((task.name, task.view(bundle.spec)) for task in tasks_of(bundle.spec))
    kind: Any = next((name if view is True else view for name, view in views if view), None)
    if kind is None:
        done = ", ".join(task.name for task in tasks_of(bundle.spec)) or f"{bundle.spec.yields} as output"
        hint = "its commands, routes and `glassformer inspect` work"
        raise UnsupportedError(bundle.display_name, f"the explorer, which has no view for {done}", hint=hint)
    found: schema.Kind = kind
    return found


# how the page draws a wiring; sandwich norms are drawn as pre-norm whose output is normed before the sum
WIRINGS: dict[specs.Wiring, Any] = {
    "pre": "pre",
    "sandwich": "pre",
    "post": "post",
    "parallel": "parallel",
    "parallel_split": "parallel",
    "res_post": "res_post",
}


class InputNames(NamedTuple):
    """The names of the forward argument and the modules for one input sequence of a model."""

    argument: str
    embed: str
    stack: schema.StackName


# of each kind of single model, in the order of the data flow
_INPUT_NAMES: dict[str, dict[Any, InputNames]] = {
    "EncoderDecoder": {
        "source": InputNames("src", "src_embed", "encoder"),
        "target": InputNames("tgt", "tgt_embed", "decoder"),
    },
    "EncoderOnly": {"input": InputNames("inputs", "embed", "encoder")},
    "DecoderOnly": {"input": InputNames("inputs", "embed", "decoder")},
    "DiffusionModel": {},  # its steps are observed one by one
    "ImageTokensModel": {},
}


def input_names(model: Any) -> dict[Any, InputNames]:
    """Return the names of each input sequence; none if a trace only contains parts of the model."""
    if model.spec.kind in _INPUT_NAMES:
        return _INPUT_NAMES[model.spec.kind]
    towers = model.spec.children()
    return {name: InputNames(f"{name}s", f"{name}.embed", f"{name}.encoder") for name in towers}


class StackNames(NamedTuple):
    """The name of a stack, its module, the module before it, and the sequence that it reads.

    input: path of the input's spec; empty for a stack that reads the output of another.
    """

    name: schema.StackName
    path: str
    embed: str
    sequence: schema.SequenceName
    input: str


def stack_names(model: nn.Module) -> tuple[StackNames, ...]:
    """Return the stacks of a model, in the order of the data flow."""
    stacks: list[StackNames] = []
    for sequence, names in input_names(model).items():
        stack = model.get_submodule(names.stack)
        if not isinstance(stack, Stages):
            tower, _, _ = names.stack.rpartition(".")
            read = f"{tower}.input" if tower else sequence
            stacks.append(StackNames(tower or names.stack, names.stack, names.embed, sequence, read))
            continue
        for n in range(len(stack.stages)):
            name, path = f"stage{n + 1}", f"{names.stack}.stages.{n}"
            before = f"{names.stack}.merging.{n - 1}" if n else names.embed
            stacks.append(StackNames(name, path, before, name if n else sequence, "" if n else sequence))
    return tuple(stacks)


def _has_final_norm(model: nn.Module, names: StackNames) -> bool:
    """Whether a norm follows the stack; of several stages, the last."""
    owner, stages, number = names.path.partition(".stages.")
    stack: Any = model.get_submodule(owner)
    return stack.final_norm is not None and (not stages or int(number) == len(stack.stages) - 1)


def _spec_at(spec: Any, path: str) -> Any:
    """Return the part of a spec at a module path, e.g. `encoder.stages.0`; None for an empty path."""
    for part in path.split(".") if path else ():
        spec = spec[int(part)] if part.isdigit() else getattr(spec, part)
    return spec if path else None


def describe_stacks(bundle: Bundle) -> tuple[schema.StackInfo, ...]:
    return tuple(_describe_stack(bundle, names) for names in stack_names(bundle.model))


def _describe_stack(bundle: Bundle, names: StackNames) -> schema.StackInfo:
    stack, read = _spec_at(bundle.spec, names.path), _spec_at(bundle.spec, names.input)
    block, attention = stack.block, stack.block.attention
    _check_parts(bundle, stack, read)
    return schema.StackInfo(
        name=names.name,
        path=names.path,
        embed=names.embed,
        merging=not names.input,
        d_model=stack.d_model,
        embed_scale=getattr(read, "scale", 1.0),
        sequence=names.sequence,
        layers=stack.num_layers,
        wiring=WIRINGS[block.wiring],
        causal=stack.causal,
        window=attention.window,
        norm=block.norm.kind,
        final_norm=_has_final_norm(bundle.model, names),
        heads=attention.num_heads,
        kv_heads=attention.num_kv_heads or attention.num_heads,
        head_dim=attention.head_dim or stack.d_model // attention.num_heads,
        d_ff=block.feed_forward.d_ff,
        activation=block.feed_forward.activation,
        gated=block.feed_forward.gated,
        biases=block.feed_forward.biases,
        cross=block.cross_attention is not None,
        position=_describe_position(names.path, stack, names.embed, read),
        parameters=_count_parameters(bundle.model, names),
    )


# the parts that a description has words for
_NORMS = (specs.LayerNormSpec, specs.RMSNormSpec, specs.BatchNormSpec)
_FEED_FORWARDS = (specs.FeedForwardSpec, specs.GatedFeedForwardSpec)
_POSITIONS = (
    *(specs.SinusoidalSpec, specs.LearnedSpec, specs.Sinusoidal2dSpec, specs.Learned2dSpec),
    *(specs.RotarySpec, specs.RelativeSpec, specs.AlibiSpec, specs.DisentangledSpec),
    *(specs.RelativeBias2dSpec, specs.QueryBias2dSpec, specs.LogBias2dSpec),
)


def _check_parts(bundle: Bundle, stack: specs.StackSpec, read: Any) -> None:
    """Raise if a stack or its input has a part that cannot be described."""
    own = (getattr(part, "position", None) for part in (read.parts() if read is not None else ()))
    positions = (stack.position, stack.local_position, *own)
    parts = [part for part in positions if isinstance(part, Spec)]
    for block in stack.blocks:
        parts += [part for part in (block.norm, block.feed_forward, block.attention.position_bias) if part]
    for part in parts:
        if type(part) not in (*_NORMS, *_FEED_FORWARDS, *_POSITIONS):
            raise UnsupportedError(bundle.display_name, f"tracing: it has the part {part.kind}")


def _describe_position(
    name: str, stack: specs.StackSpec, embed: str, read: specs.InputSpec | None
) -> schema.PositionInfo:
    """Describe the positions of a stack, whose parts are known."""
    inside, before = f"{name}.position", f"{embed}.position"
    match stack.position:
        case specs.RotarySpec(base=base):
            return schema.PositionInfo(kind="rotary", base=base, name=inside)
        case specs.RelativeSpec(max_distance=far):
            return schema.PositionInfo(kind="relative", max_len=far, name=inside)
        case specs.AlibiSpec():
            return schema.PositionInfo(kind="alibi", name=inside)
        case specs.DisentangledSpec(span=span):  # its table has one vector per distance
            return schema.PositionInfo(kind="learned", max_len=span, name=inside)
    match read:
        case specs.TokensAndPatchesSpec(image=image):  # the positions of the image
            return _describe_position(name, stack, f"{embed}.image", image)
        case specs.TokensSpec(position=specs.SinusoidalSpec(max_len=max_len, base=base, layout=layout)):
            return schema.PositionInfo(
                kind="sinusoidal", max_len=max_len, base=base, layout=layout, name=before
            )
        case specs.TokensSpec(position=specs.LearnedSpec(max_len=max_len)):
            return schema.PositionInfo(kind="learned", max_len=max_len, name=before)
        case specs.ImagePatchesSpec() | specs.SeriesPatchesSpec():
            rows = read.prefix + read.num_patches
            if read.position == "none":
                return schema.PositionInfo(kind="none")
            if read.position == "learned":
                return schema.PositionInfo(kind="learned", max_len=rows, name=before)
            layout = "interleaved"
            return schema.PositionInfo(kind="sinusoidal", max_len=rows, base=1e4, layout=layout, name=before)
        case (  # positions of another stack, of image cells, of queries or none: nothing to draw
            None
            | specs.TokensSpec(position=None)
            | specs.FeatureMapSpec()
            | specs.ConvolutionStemSpec()
            | specs.ObjectQueriesSpec()
            | specs.VectorsSpec()
        ):
            return schema.PositionInfo(kind="none")
    raise UnsupportedError("tracing", f"positions of the input {read.kind}")


_PARTS = {"self_attn": "self_attention", "cross_attn": "cross_attention", "ffn": "feed_forward"}


def _count_parameters(model: nn.Module, names: StackNames) -> dict[str, int]:
    embed = model.get_submodule(names.embed)
    counts = {"embedding": sum(parameter.numel() for parameter in embed.parameters())}
    for name, parameter in model.get_submodule(names.path).named_parameters():
        parts = name.split(".")
        part = _PARTS.get(parts[2], "norm") if parts[0] == "blocks" else parts[0].removeprefix("final_")
        counts[part] = counts.get(part, 0) + parameter.numel()
    return counts


def describe_attentions(model: nn.Module, record: Record) -> tuple[schema.AttentionInfo, ...]:
    """Describe the recorded attention layers, in the order of the data flow."""
    stacks = stack_names(model)
    attentions = []
    for name in record.attentions():
        path, _, place = name.partition(".blocks.")
        stack = next((stack for stack in stacks if stack.path == path), None)
        if stack is None:  # of a head
            continue
        cross = name.endswith("cross_attn")
        attentions.append(
            describe_attention(
                model,
                record,
                name,
                stack=stack.name,
                layer=int(place.split(".")[0]),
                kind="cross" if cross else "self",
                queries=stack.sequence,
                keys=stacks[-2].sequence if cross else stack.sequence,
                causal=not cross and bool(getattr(model.get_submodule(path), "causal", False)),
            )
        )
    return tuple(attentions)


def describe_attention(
    model: nn.Module, record: Record, name: str, *, causal: bool = False, **place: Any
) -> schema.AttentionInfo:
    """Describe a recorded attention layer. place: its stack, layer and kind, its queries and keys."""
    module: Any = model.get_submodule(name)
    used = record.attention_contexts[name]
    windows = used.windows
    return schema.AttentionInfo(
        name=name,
        heads=module.num_heads,
        kv_heads=module.num_kv_heads,
        scale=used.scale,
        head_dim=module.head_dim,
        biased=used.bias is not None,
        causal=causal,
        window=module.window,
        windows=None if windows is None else schema.WindowInfo(**windows._asdict()),
        bias_table=f"{name}.bias_table" if _has_bias_table(module, used.bias) else None,
        **place,
    )


def _has_bias_table(attention: Any, bias: Tensor | None) -> bool:
    """Whether the bias of an attention layer depends only on the 2-D offset between its tokens."""
    owned = getattr(attention, "position_bias", None) is not None
    return owned and bias is not None and bias.shape[0] == 1


def residual_sites(stack: schema.StackInfo, record: Record) -> list[str]:
    """Return the recorded sites of a stack's residual stream, from the embedding to the last layer."""
    sites = [f"{stack.embed}.out"]
    for layer in range(stack.layers):
        at = f"{stack.path}.blocks.{layer}"
        sites += [f"{at}.resid_{part}" for part in ("self", "cross", "out")]
    return [site for site in sites if site in record]


def _final_norm(path: str) -> str:
    """Return the name of the norm after a stack; after stages, it belongs to the encoder of all."""
    return f"{path.partition('.stages.')[0]}.final_norm"


def stack_output(stack: schema.StackInfo) -> str:
    if stack.final_norm:
        return _final_norm(stack.path)
    return f"{stack.path}.blocks.{stack.layers - 1}.resid_out" if stack.layers else f"{stack.embed}.out"


def describe_stages(stacks: Sequence[schema.StackInfo], record: Record) -> tuple[schema.Stage, ...]:
    """Describe the stages of the data flow; roles whose tensor was not recorded are left out."""
    stages = []
    memory = "connector" if "connector" in record else stack_output(stacks[-2]) if len(stacks) > 1 else ""
    for stack in stacks:
        for name, kind, layer, roles in _steps(stack, memory, record):
            path = stack.name if layer is None else f"{stack.name}.{layer}"
            stages.append(
                schema.Stage(
                    id=f"{path}.{name}",
                    kind=kind,
                    stack=stack.name,
                    layer=layer,
                    sequence=stack.sequence,
                    tensors={role: name for role, name in roles.items() if name in record or role in DERIVED},
                )
            )
    heads = {name.removeprefix("head."): name for name in record if name.startswith("head.")}
    heads |= {name.split(".")[0]: name for name in record if name.endswith(".head.embedding")}  # of towers
    last = stacks[-1].sequence if stacks else ""
    tensors = {"before": stack_output(stacks[-1]), **heads} if stacks else heads
    head = schema.Stage(id="head", kind="head", stack=None, layer=None, sequence=last, tensors=tensors)
    return (*stages, head)


def _steps(stack: schema.StackInfo, memory: str, record: Record) -> Iterator[Step]:
    yield "tokens", "tokens", None, {}
    if stack.merging:
        yield "merge", "merging", None, {"out": f"{stack.embed}.out"}
    else:
        yield from _embedding_steps(stack, record)
    for layer in range(stack.layers):
        at = f"{stack.path}.blocks.{layer}"
        steps = (
            _parallel_layer(at, record) if stack.wiring == "parallel" else _layer(stack, at, memory, record)
        )
        for name, kind, roles in steps:
            yield name, kind, layer, roles
    if stack.final_norm:
        roles = {"before": residual_sites(stack, record)[-1], "after": stack_output(stack)}
        yield "final", "final_norm", None, roles


def _embedding_steps(stack: schema.StackInfo, record: Record) -> Iterator[Step]:
    parts = ("scaled", "token", "patch", "kind", "norm", "out")
    roles = {part: f"{stack.embed}.{part}" for part in parts}
    if f"{stack.embed}.image.patch" in record:  # words and patches in one sequence
        own = [name for name in record if name.startswith((f"{stack.embed}.text.", f"{stack.embed}.image."))]
        roles = {"patch": f"{stack.embed}.image.patch", "out": roles["out"], "kinds": roles["kind"]}
        roles |= {name.removeprefix(f"{stack.embed}."): name for name in own}
    yield "embed", "embedding", None, roles
    position = stack.position
    if position.name is not None:
        roles = {"added": position.name, "after": f"{stack.embed}.out"}
        roles |= {table: f"{position.name}.{table}" for table in DERIVED}
        if stack.causal or position.kind not in ("relative", "alibi"):
            del roles["table_ahead"]
        yield "position", "position", None, roles


def _layer(
    stack: schema.StackInfo, at: str, memory: str, record: Record
) -> Iterator[tuple[str, Any, dict[str, str]]]:
    """Yield the steps of a layer: each sublayer with its norm, in the order of the data."""
    before = f"{at}.resid_in"
    for part in ("self", "cross", "ffn") if stack.cross else ("self", "ffn"):
        norm, after = f"{at}.norm_{part}", f"{at}.resid_{'out' if part == 'ffn' else part}"
        sublayer = _sublayer(at, part, norm if stack.wiring == "pre" else before, memory)
        added = f"{norm}_out"  # with sandwich norms, the normed output is added to the residual stream
        if added not in record:
            added = f"{at}.ffn.down" if part == "ffn" else f"{at}.{part}_attn.out"
        roles = {
            "before": before,
            "sublayer": added,
            "sum": f"{norm}_in" if stack.wiring == "post" else after,
            "normed": norm,
            "after": after,
        }
        steps = (f"norm_{part}", "add_norm", roles), sublayer
        yield from steps if stack.wiring == "pre" else reversed(steps)
        before = after


def _parallel_layer(at: str, record: Record) -> Iterator[tuple[str, Any, dict[str, str]]]:
    roles = {
        "before": f"{at}.resid_in",
        "normed": f"{at}.norm_self",
        "normed_ffn": f"{at}.norm_ffn",
        "sublayer": f"{at}.self_attn.out",
        "sublayer_ffn": f"{at}.ffn.down",
        "sum": f"{at}.resid_out",
        "after": f"{at}.resid_out",
    }
    yield "norm_self", "add_norm", roles
    yield _sublayer(at, "self", f"{at}.norm_self")
    yield _sublayer(at, "ffn", f"{at}.norm_ffn" if f"{at}.norm_ffn" in record else f"{at}.norm_self")


def _sublayer(at: str, part: str, read: str, memory: str = "") -> tuple[str, Any, dict[str, str]]:
    roles = {"in": read, **({"memory": memory} if part == "cross" else {})}
    if part == "ffn":
        tensors = {name: f"{at}.ffn.{name}" for name in ("gate", "up", "act", "down")}
        return part, "feed_forward", roles | tensors
    tensors = {name: f"{at}.{part}_attn.{name}" for name in ("q", "k", "v", "heads", "out")}
    return part, "attention", roles | tensors
