"""Chat: generate the next message of a conversation, with the chat template of the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from glassformer.bundle import Bundle
from glassformer.errors import (
    GlassformerError,
    ImagePlaceholderError,
    InputTooLongError,
    UnsupportedError,
    attempt,
)
from glassformer.generation.prompt import EmbeddingSpan
from glassformer.processors.text import check_characters, require_tokenizer
from glassformer.tasks.base import RejectedInputError
from glassformer.tasks.text_generation import (
    Document,
    PromptTask,
    SpecialTokens,
    TextOptions,
    generation_architecture,
)
from glassformer.tokenization.chat_template import IMAGE_TYPES, Conversation, Message, check_conversation

if TYPE_CHECKING:
    from glassformer.processors.image_prompt import GivenImage, ImagePromptProcessor, PromptImage

INPUT_ERRORS = (InputTooLongError, ImagePlaceholderError, RejectedInputError)

__all__ = ["ChatGenerator", "Conversation", "Message", "has_chat_template"]


class ChatGenerator(PromptTask[Conversation]):
    """Answer conversations: lists of messages such as {"role": "user", "content": "Hello"}.

    tools: JSON schemas of functions, for templates that support them; the model's calls are part of the text.
    documents: documents for templates that support retrieval.
    chat_template: the name of one of several templates, or a template (default: the folder's).
    chat_template_kwargs: further variables of the template, e.g. {"enable_thinking": False}.
    max_image_tokens: maximum number of tokens of an image, which is then read in less detail.
    files: whether a message may contain the path of an image file.
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
        max_image_tokens: int | None = None,
        files: bool = True,
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
        self.images: ImagePromptProcessor | None = None
        if bundle.spec.modalities != ("text",):  # here: text models need no images
            from glassformer.processors.image_prompt import ImagePromptProcessor

            self.images = ImagePromptProcessor(bundle, max_image_tokens=max_image_tokens)
        self.files = files
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
        return [attempt(self._encode, conversation, errors=INPUT_ERRORS) for conversation in inputs]

    def _encode(self, conversation: Conversation) -> Document:
        check_conversation(conversation)
        messages, sources = self._separate_images(conversation)
        images = [] if self.images is None else load_images(self.images, sources, self.max_input_tokens)
        options = {"add_generation_prompt": True, **self.template_options}
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, **options)
        check_characters(text, self.max_input_tokens)
        expanded = text if self.images is None else self.images.expand(text, images)
        ids = self.tokenizer.encode(expanded, special=False, parse_special=True).ids
        return self.document(ids, text, partial(self._spans, ids, images))

    def _separate_images(self, conversation: Conversation) -> tuple[Conversation, list[GivenImage]]:
        """Return the messages without images, and the images."""
        if self.images is not None:
            return self.images.separate_images(conversation, files=self.files)
        contents = [message.get("content") for message in conversation]  # none next to tool calls
        parts = [part for content in contents if isinstance(content, list | tuple) for part in content]
        if any(isinstance(part, Mapping) and part.get("type") in IMAGE_TYPES for part in parts):
            raise UnsupportedError(
                self.bundle.display_name, "images in a chat", hint="use a vision-language model"
            )
        return conversation, []

    def _spans(self, ids: list[int], images: Sequence[PromptImage]) -> tuple[EmbeddingSpan, ...]:
        return self.images.spans(ids, images) if self.images is not None and images else ()


def load_images(
    processor: ImagePromptProcessor, images: Sequence[GivenImage], limit: int | None
) -> list[PromptImage]:
    """Load the images of a conversation; raise before their tokens exceed the context of the model.

    limit: tokens of the context.
    """
    smallest = len(images) * processor.tile_tokens
    if limit is not None and smallest > limit:
        hint = f"send at most {limit // processor.tile_tokens} images"
        raise InputTooLongError(smallest, limit, "image tokens", hint)
    loaded: list[PromptImage] = []
    total = 0
    for number, image in enumerate(images, 1):
        one = attempt(partial(processor.load, in_detail=image.in_detail), image.source)
        if isinstance(one, GlassformerError):
            raise RejectedInputError("image", number, one)
        loaded.append(one)
        total += one.num_tokens
        if limit is not None and total > limit:
            hint = "send fewer images, or lower max_image_tokens"
            raise InputTooLongError(total, limit, "image tokens", hint)
    return loaded


def has_chat_template(bundle: Bundle) -> bool:
    """Whether the model folder has a chat template."""
    return bundle.tokenizer is not None and bool(bundle.tokenizer.chat_templates)
