"""Chat: generate the next message of a conversation, with the chat template of the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

from glassformer.bundle import Bundle
from glassformer.errors import GlassformerError, InputTooLongError, UnsupportedError, attempt
from glassformer.processors.text import check_characters, require_tokenizer
from glassformer.tasks.text_generation import (
    Document,
    PromptTask,
    SpecialTokens,
    TextOptions,
    generation_architecture,
)
from glassformer.tokenization.chat_template import Conversation, Message

__all__ = ["ChatGenerator", "Conversation", "Message", "has_chat_template"]


class ChatGenerator(PromptTask[Conversation]):
    """Answer conversations: lists of messages such as {"role": "user", "content": "Hello"}.

    tools: JSON schemas of functions, for templates that support them; the model's calls are part of the text.
    documents: documents for templates that support retrieval.
    chat_template: the name of one of several templates, or a template (default: the folder's).
    chat_template_kwargs: further variables of the template, e.g. {"enable_thinking": False}.
    """

    default_new_tokens = 1024

    def __init__(
        self,
        bundle: Bundle,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[TextOptions],
    ) -> None:
        if generation_architecture(bundle) != "decoder-only" or not (
            chat_template or has_chat_template(bundle)
        ):
            raise UnsupportedError(
                bundle.display_name,
                "chat: it has no chat template",
                hint="generate a completion of a plain prompt instead",
            )
        super().__init__(bundle, options)
        self.template_options: dict[str, Any] = {
            **(chat_template_kwargs or {}),
            "tools": tools,
            "documents": documents,
            "chat_template": chat_template,
        }

    def special_tokens(self, bundle: Bundle) -> SpecialTokens:
        """Return the special tokens; a message also ends with the tokenizer's end token."""
        special, own = super().special_tokens(bundle), require_tokenizer(bundle).eos_id
        ends = special.eos_token_id if own is None else dict.fromkeys((*special.eos_token_id, own))
        return special._replace(eos_token_id=tuple(ends))

    def is_single(self, inputs: Any) -> bool:
        """Whether `inputs` is one conversation rather than several."""
        return not (isinstance(inputs, Sequence) and inputs and isinstance(inputs[0], Sequence))

    def load(self, inputs: Iterable[Conversation]) -> list[Document | GlassformerError]:
        return [attempt(self._encode, conversation, errors=(InputTooLongError,)) for conversation in inputs]

    def _encode(self, conversation: Conversation) -> Document:
        options = {"add_generation_prompt": True, **self.template_options}
        text = self.tokenizer.apply_chat_template(conversation, tokenize=False, **options)
        check_characters(text, self.max_input_tokens)
        return self.document(self.tokenizer.encode(text, special=False, parse_special=True).ids, text)


def has_chat_template(bundle: Bundle) -> bool:
    """Whether the model folder has a chat template."""
    return bundle.tokenizer is not None and bool(bundle.tokenizer.chat_templates)
