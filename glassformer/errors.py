"""Errors raised for invalid input: typed exceptions with structured fields.

Every error has a `code`, which is stable across releases and languages, and `fields`, the values that a
program or a translation needs. `str(error)` is the English message, built from the template of the class; do
not parse it. The command line prints it and exits with status 2, the server returns code, message and fields,
and the page translates by code.

>>> error = InputTooLongError(length=700, limit=512)
>>> error.code, error.fields
('input_too_long', {'length': 700, 'limit': 512, 'unit': 'tokens'})
>>> print(error)
the input has 700 tokens, but the model reads at most 512
"""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import wraps
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class GlassformerError(ValueError):
    """Base class of all errors for invalid input.

    code: derived from the class name: `InputTooLongError` -> `input_too_long`.
    hint: how to fix the problem; optional in every subclass.
    """

    template: ClassVar[str] = "{message}"

    @property
    def code(self) -> str:
        name = type(self).__name__.removesuffix("Error")
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()

    @property
    def fields(self) -> dict[str, Any]:
        """The values of the error by name, as JSON types."""
        return {name: _plain(value) for name, value in self._values().items() if name != "hint"}

    def __str__(self) -> str:
        if not is_dataclass(self):
            return super().__str__()
        hint = self._values().get("hint")
        message = self.message()
        return f"{message}{' ' if message.endswith('?') else '; '}{hint}" if hint else message

    def message(self) -> str:
        """Return the English message without the hint."""
        return self.template.format(**self._values())

    def _values(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)} if is_dataclass(self) else {}

    def __reduce__(self) -> Any:  # errors are pickled, and keyword arguments are not in `args`
        return (_restore, (type(self), self._values())) if is_dataclass(self) else super().__reduce__()


@dataclass(eq=False)
class InvalidValueError(GlassformerError):
    """A parameter, setting or field has an invalid value.

    name: as the caller writes it, e.g. `num_beams`, `training.lr`, `config.json: hidden_size`.
    """

    name: str
    value: Any
    expected: str
    hint: str = ""
    template: ClassVar[str] = "{name} is {value}; expected {expected}"

    def message(self) -> str:
        value = re.sub(r"\s*\n\s*", " ", repr(self.value))  # a module is shown on several lines
        value = value if len(value) <= 80 else f"{value[:78]}…{value[-1]}"
        return self.template.format(**{**self._values(), "value": value})


@dataclass(eq=False)
class ConflictError(GlassformerError):
    """Settings or inputs contradict each other."""

    names: Sequence[str]
    reason: str
    hint: str = ""

    def message(self) -> str:
        return f"{' and '.join(self.names)} conflict: {self.reason}"


@dataclass(eq=False)
class MissingValueError(GlassformerError):
    """A required value is missing. needed_for: completes the message "... is required".

    alternatives: names of values that may be given instead.
    """

    name: str
    needed_for: str
    hint: str = ""
    alternatives: tuple[str, ...] = ()
    template: ClassVar[str] = "{name} is required {needed_for}"

    def message(self) -> str:
        return self.template.format(
            name=" or ".join((self.name, *self.alternatives)), needed_for=self.needed_for
        )


@dataclass(eq=False)
class UnknownNameError(GlassformerError):
    """A name is not one of the known names.

    kind: e.g. `model`, `column`, `language`. where: the file, section or model it was looked up in.
    """

    kind: str
    name: str
    known: Iterable[str] = ()
    hint: str = ""
    where: str = ""

    def __post_init__(self) -> None:
        self.known = [str(name) for name in self.known]

    def message(self) -> str:
        known = list(self.known)
        text = f"unknown {self.kind} {self.name!r}" + (f" in {self.where}" if self.where else "")
        longer = [name for name in known if self.name and self.name in name]
        if close := get_close_matches(self.name, known, n=1) or longer[:5]:
            return f"{text}; did you mean {' or '.join(map(repr, close))}?"
        return f"{text}; choose from {', '.join(known)}" if 0 < len(known) <= 20 else text


@dataclass(eq=False)
class UnsupportedError(GlassformerError):
    """A model, device or file format (`subject`) does not support a feature."""

    subject: str
    feature: str
    hint: str = ""
    template: ClassVar[str] = "{subject} does not support {feature}"


@dataclass(eq=False)
class InputTooLongError(GlassformerError):
    """An input exceeds the model's maximum length. unit: e.g. tokens, characters, steps."""

    length: int
    limit: int
    unit: str = "tokens"
    hint: str = ""
    template: ClassVar[str] = "the input has {length:,} {unit}, but the model reads at most {limit:,}"


@dataclass(eq=False)
class EmptyInputError(GlassformerError):
    """An input is empty. what: e.g. `text`, `file`, `column`."""

    what: str
    hint: str = ""
    template: ClassVar[str] = "the {what} is empty"


@dataclass(eq=False)
class ShapeError(GlassformerError):
    """A tensor or array has the wrong shape."""

    what: str
    shape: Sequence[int]
    expected: str
    hint: str = ""

    def message(self) -> str:
        return f"{self.what} has shape {tuple(self.shape)}; expected {self.expected}"


@dataclass(eq=False)
class ImageTokensError(GlassformerError):
    """The placeholder tokens of a text do not match its images.

    num_images: the images. num_tokens: tokens of each image. found: placeholder tokens in the text.
    """

    num_images: int
    num_tokens: int
    found: int
    hint: str = "let the processor insert them"

    def message(self) -> str:
        expected = self.num_images * self.num_tokens
        images = "1 image takes" if self.num_images == 1 else f"{self.num_images} images take"
        return f"{images} {expected} placeholder tokens; the text has {self.found}"


@dataclass(eq=False)
class ImagePlaceholderError(GlassformerError):
    """The image tokens in a prompt do not match the images of a conversation.

    image: number of the first image without an image token, from 1; None if there are too many tokens.
    token: the image token. expected, found: numbers of image tokens.
    """

    image: int | None
    token: str
    expected: int
    found: int
    hint: str = ""

    def message(self) -> str:
        if self.image is None:
            problem = f"an image token {self.token} in the prompt belongs to no image"
        else:
            problem = f"image {self.image} has no image token {self.token} in the prompt"
        tokens = "token" if self.expected == 1 else "tokens"
        return f"{problem}: expected {self.expected} {tokens}, found {self.found}"


@dataclass(eq=False)
class NonFiniteError(GlassformerError):
    """A value contains NaN or infinity."""

    what: str
    hint: str = ""
    template: ClassVar[str] = "{what} contains NaN or infinity"


@dataclass(eq=False)
class FileProblemError(GlassformerError):
    """A file or folder cannot be read, parsed or written. line: counted from 1."""

    path: str | Path
    problem: str
    line: int | None = None
    hint: str = ""

    def message(self) -> str:
        where = f"{self.path}:{self.line}" if self.line is not None else f"{self.path}"
        return f"{where}: {self.problem}"


@dataclass(eq=False)
class FileMissingError(GlassformerError):
    """A file or folder does not exist. kind: e.g. `file`, `folder`, `model folder`."""

    path: str | Path
    kind: str = "file"
    hint: str = ""
    template: ClassVar[str] = "{kind} not found: {path}"


@dataclass(eq=False)
class FileExistsAlreadyError(GlassformerError):
    """A file or folder already exists and would be overwritten."""

    path: str | Path
    hint: str = ""
    template: ClassVar[str] = "{path} already exists"


@dataclass(eq=False)
class MissingDependencyError(GlassformerError):
    """An optional package is not installed. extra: the extra of Glassformer that has it, if there is one."""

    package: str
    extra: str = ""
    template: ClassVar[str] = "{package} is not installed"

    def message(self) -> str:
        return f"{super().message()}; run: {install_command(self.package, self.extra)}"


def install_command(package: str, extra: str, root: Path = Path(__file__).parents[1]) -> str:
    """Return the command that installs an extra: of the checkout `root`, else its packages by name.

    Glassformer itself is not on a package index.
    """
    if extra and (root / "pyproject.toml").is_file():
        return f"pip install -e '{root}[{extra}]'"
    packages = list(_packages_of(extra)) if extra else []
    return f"pip install {' '.join(map(shlex.quote, packages or [package]))}"


def _packages_of(extra: str) -> Iterator[str]:
    """Yield the packages of an extra of the installed distribution."""
    try:
        requirements = metadata.requires("glassformer") or []
    except metadata.PackageNotFoundError:
        return
    for requirement in requirements:
        package, _, marker = requirement.partition(";")
        if re.search(rf"extra == ['\"]{extra}['\"]", marker):
            yield package.strip()


# names of arguments in torch and in other texts, and what to write instead
_OTHER_NAMES = {
    **dict.fromkeys(("nhead", "n_head", "n_heads", "heads", "h"), "use num_heads"),
    **dict.fromkeys(("dim_feedforward", "ffn_hidden", "ffn_dim", "d_inner", "hidden_dim"), "use d_ff"),
    **dict.fromkeys(("embed_dim", "d_embed", "hidden_size", "emb_size", "embed_size"), "use d_model"),
    **dict.fromkeys(
        ("n_layers", "n_layer", "N", "num_encoder_layers", "num_decoder_layers"), "use num_layers"
    ),
    "vocab_size": "use src_vocab_size and tgt_vocab_size",
    **dict.fromkeys(("src_vocab", "input_vocab_size", "enc_voc_size"), "use src_vocab_size"),
    **dict.fromkeys(
        ("tgt_vocab", "target_vocab_size", "trg_vocab_size", "dec_voc_size"), "use tgt_vocab_size"
    ),
    **dict.fromkeys(("max_seq_length", "max_seq_len", "max_length", "seq_len"), "use max_len"),
    **dict.fromkeys(("pad_idx", "src_pad_idx", "padding_idx"), "use pad_token_id"),
    "device": "move the module with .to(device)",
    **dict.fromkeys(("drop_prob", "dropout_rate", "p_drop"), "use dropout"),
    **dict.fromkeys(("memory", "encoder_output", "enc_out"), "use enc_output"),
    **dict.fromkeys(("trg_mask", "self_mask", "look_ahead_mask"), "use tgt_mask"),
    **dict.fromkeys(("src_mask", "padding_mask"), "use mask in an encoder, memory_mask in a decoder"),
    "cross_mask": "use memory_mask",
    "return_weights": "use glassformer.observe(model, inputs), which records the weights of every layer",
    "batch_first": "leave it out: the batch is always the first dimension",
    **dict.fromkeys(("need_weights", "average_attn_weights", "return_attention"), "use return_weights=True"),
    **dict.fromkeys(("is_causal", "causal"), "use mask=Mask(causal=True)"),
    "tgt_is_causal": "leave it out: the decoder is causal",
    **dict.fromkeys(
        ("query", "key", "value", "q", "k", "v", "Q", "K", "V"),
        "for attention(q, k, v, mask) write attention(q, mask, k_v=k)",
    ),
    "attn_mask": "use mask, where true = may attend",
    "key_padding_mask": "use mask=real[:, None], where true = real token",
    "src_key_padding_mask": "use src_mask=real, or mask=real[:, None] in an encoder; true = real token",
    "tgt_key_padding_mask": "use tgt_mask=real[:, None], where true = real token",
    "memory_key_padding_mask": "use memory_mask=real, where true = real token",
}


def explain_torch_names(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a method so that wrong arguments are explained, also by names from torch or another text."""

    @wraps(function)
    def wrapped(*args: P.args, **options: P.kwargs) -> R:
        try:
            return function(*args, **options)
        except TypeError as error:
            _explain_arguments(function, args, options, str(error))
            raise

    return wrapped


class ExplainsArguments:
    """Base class of modules whose constructor and call explain wrong arguments; see `explain_torch_names`."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in ("__init__", "forward"):
            if name in vars(cls):
                setattr(cls, name, explain_torch_names(vars(cls)[name]))


def _explain_arguments(
    function: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any], problem: str
) -> None:
    """Raise an error about the arguments of a method, if the TypeError `problem` is about them."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    known = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
    positional = [p.replace(annotation=p.empty) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    where = type(args[0]).__name__
    method = where if function.__name__ == "__init__" else f"{where}.{function.__name__}"
    call = f"{method}({', '.join(map(str, positional))})"
    masks = any(p.kind is p.VAR_POSITIONAL for p in parameters)  # of an encoder-decoder
    for name in options:
        if masks and name in ("src_mask", "tgt_mask", "memory_mask"):
            hint = "pass src_mask, tgt_mask and memory_mask by position, or as Masks(src=, tgt=, memory=)"
            raise UnknownNameError("argument", name, where=where, hint=hint) from None
        if name in _OTHER_NAMES and name not in known:
            raise UnknownNameError("argument", name, where=where, hint=_OTHER_NAMES[name]) from None
        if f"unexpected keyword argument {name!r}" in problem:
            raise UnknownNameError("argument", name, known, where=where) from None
    if len(args) - 1 > len(positional) and not masks:
        expected, hint = f"at most {len(positional)}: {call}", _OTHER_NAMES["query"] if "k_v" in known else ""
        raise InvalidValueError("the number of arguments", len(args) - 1, expected, hint) from None
    for parameter in positional[len(args) - 1 :]:
        if parameter.default is parameter.empty and parameter.name not in options:
            raise MissingValueError(parameter.name, f"by {call}") from None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, numpy or torch ran out of memory, without importing torch."""
    # torch raises a plain RuntimeError if an allocation on the CPU fails
    if isinstance(error, RuntimeError):
        return type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
    return isinstance(error, MemoryError)


def attempt(
    function: Callable[..., R],
    *arguments: Any,
    errors: tuple[type[GlassformerError], ...] = (GlassformerError,),
) -> R | GlassformerError:
    """Return the result of a function, or its error."""
    try:
        return function(*arguments)
    except errors as error:
        return error


def _restore(kind: type[GlassformerError], values: dict[str, Any]) -> GlassformerError:
    return kind(**values)


def _plain(value: Any) -> Any:
    """Convert a value to a JSON type."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Iterable):
        return [_plain(item) for item in value]
    return str(value)
