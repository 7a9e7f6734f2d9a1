"""Chat templates: render messages to the prompt that a chat model was trained on.

A template is a Jinja program from the model folder. It runs in Jinja's immutable sandbox, in the environment
that transformers uses: it cannot reach Python's internals or change its arguments, and its output is bounded.
The sandbox bounds neither time nor the memory of one expression, so a template can still be slow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from glassformer.errors import FileProblemError, GlassformerError, InvalidValueError, UnknownNameError
from glassformer.json_text import parse_json
from glassformer.tokenization.folder import (
    CHAT_TEMPLATE,
    CONFIG,
    MORE_TEMPLATES,
    OLD_CHAT_TEMPLATE,
    TokenizerConfig,
)

if TYPE_CHECKING:
    from jinja2 import Environment, Template

Message = Mapping[str, Any]
Conversation = Sequence[Message]
IMAGE_TYPES = ("image", "image_url")  # of the parts of a message
MAX_CHARACTERS = 8_000_000  # of a rendered conversation


@dataclass(eq=False)
class ChatTemplateError(GlassformerError):
    """A chat template refused its messages, or failed. reason: the template's own message, if it has one."""

    reason: str
    hint: str = ""
    template: ClassVar[str] = "the chat template failed: {reason}"


def read_templates(config: TokenizerConfig) -> dict[str, str]:
    """Return the chat templates of a folder by name; a folder with one template calls it "default"."""
    value = config.config.get("chat_template")
    if (old := config.copied.get(OLD_CHAT_TEMPLATE)) is not None:
        try:
            value = parse_json(old)["chat_template"]
        except (ValueError, TypeError, LookupError):
            problem = "is not a JSON object with a chat_template"
            raise FileProblemError(config.folder / OLD_CHAT_TEMPLATE, problem) from None
    templates: dict[str, Any] = {}
    if isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
        templates = {str(entry.get("name")): entry.get("template") for entry in value}
    elif value is not None:
        templates = {"default": value}
    for name, text in templates.items():
        if not isinstance(text, str):
            place = f"{config.folder / CONFIG}: chat_template"
            raise InvalidValueError(place, name, "a template for this name")
    for name, content in config.copied.items():
        if name == CHAT_TEMPLATE:
            templates["default"] = content.decode("utf-8", "replace")
        elif name.startswith(f"{MORE_TEMPLATES}/"):
            key = name.removeprefix(f"{MORE_TEMPLATES}/").removesuffix(".jinja")
            templates[key] = content.decode("utf-8", "replace")
    return templates


def choose_template(templates: Mapping[str, str], name: str | None, *, tools: bool) -> str:
    """Return a template by its name, or as transformers chooses; an unknown name is itself a template."""
    if name is not None:
        return templates.get(name, name)
    if tools and "tool_use" in templates:
        return templates["tool_use"]
    if "default" not in templates:
        raise UnknownNameError("chat template", "default", sorted(templates))
    return templates["default"]


def render_chat(template: str, conversation: Conversation, **variables: Any) -> str:
    """Render a conversation.

    template: the source of the template
    conversation: messages, each with a `role` and usually `content`
    variables: other variables of the template, e.g. tools, add_generation_prompt, bos_token

    >>> render_chat("{% for m in messages %}{{ m.role }}: {{ m.content }}\\n{% endfor %}",
    ...             [{"role": "user", "content": "Hi"}])
    'user: Hi\\n'
    """
    from jinja2 import TemplateError

    check_conversation(conversation)
    compiled = _compile(template)
    pieces, size = [], 0
    try:
        for piece in compiled.generate(messages=conversation, **variables):
            size += len(piece)
            if size > MAX_CHARACTERS:
                raise ChatTemplateError(f"its output has more than {MAX_CHARACTERS:,} characters")
            pieces.append(piece)
    except GlassformerError:
        raise
    except TemplateError as error:
        raise ChatTemplateError(error.message or type(error).__name__) from error
    except Exception as error:  # a template can raise anything that an expression can
        raise ChatTemplateError(f"{type(error).__name__}: {error}") from error
    return "".join(pieces)


def check_conversation(conversation: object) -> None:
    """Raise unless this is a non-empty list of messages, each a mapping with a role."""
    if isinstance(conversation, str | Mapping) or not isinstance(conversation, Sequence) or not conversation:
        raise InvalidValueError("messages", conversation, "a list of messages")
    for number, message in enumerate(conversation, 1):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidValueError(f"message {number}", message, 'a dict with "role" and "content"')


@lru_cache
def _compile(template: str) -> Template:
    from jinja2 import TemplateSyntaxError

    try:
        return _environment().from_string(template)
    except TemplateSyntaxError as error:
        problem = f"is not a valid Jinja template ({error.message})"
        raise FileProblemError("the chat template", problem, error.lineno) from error


@lru_cache(1)
def _environment() -> Environment:
    """Create the environment in which transformers renders chat templates."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationBlock(Extension):
        """`{% generation %}`, which marks the assistant's tokens for training and renders its content."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = tojson  # Jinja's own escapes HTML
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment
