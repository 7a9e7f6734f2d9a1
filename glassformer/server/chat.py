"""Chat completions: messages through the chat template, and answers as messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from glassformer.errors import InvalidValueError, MissingValueError
from glassformer.generation import GeneratedToken, GenerationOutput
from glassformer.server.completions import FINISH_REASONS, Generation, StreamedChoice, generation_options
from glassformer.server.models import GenerationTask, ServedModel
from glassformer.server.schema import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatCompletionResponse,
    ChatLogprobs,
    ChatMessage,
    FinishReason,
    MessageDelta,
    TextPart,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from glassformer.tasks.chat import ChatGenerator
from glassformer.tasks.text_generation import segments_of
from glassformer.tokenization import Tokenizer


class ChatCompletion(Generation):
    """A request of /v1/chat/completions."""

    id_prefix = "chatcmpl"
    task: ChatGenerator

    def __init__(self, model: ServedModel, request: ChatCompletionRequest) -> None:
        top = (request.top_logprobs or 0) if request.logprobs else None
        if request.top_logprobs and not request.logprobs:
            raise MissingValueError("logprobs", "for top_logprobs")
        max_tokens = request.max_completion_tokens or request.max_tokens
        super().__init__(model, request, max_tokens=max_tokens, top_logprobs=top)
        if request.tool_choice not in (None, "none", "auto"):
            raise InvalidValueError("tool_choice", request.tool_choice, "none or auto")
        tools = None if request.tool_choice == "none" else request.tools
        self.task = ChatGenerator(
            model.bundle,
            tools=[tool.model_dump() for tool in tools] if tools else None,
            documents=request.documents,
            chat_template_kwargs=request.chat_template_kwargs,
            max_image_tokens=model.max_image_tokens,
            files=False,
            **generation_options(request, max_tokens),
        )
        (document,) = self.task.preprocess([[template_message(one) for one in request.messages]])
        self.segments = segments_of(document)

    def choice(self, index: int, outputs: list[GenerationOutput], task: GenerationTask) -> ChatChoice:
        output = outputs[0]
        return ChatChoice(
            index=index,
            message=AssistantMessage(content=self.text(index, output)),
            logprobs=self.logprobs(task.tokens[: len(output.ids)]),
            finish_reason=FINISH_REASONS[output.finish_reason],
        )

    def logprobs(self, tokens: Sequence[GeneratedToken]) -> ChatLogprobs | None:
        """Return the log-probabilities of tokens, if they were requested."""
        if self.top_logprobs is None:
            return None
        content = [
            TokenLogprob(
                **_token(self.tokenizer, token.id),
                logprob=token.logprob,
                top_logprobs=[
                    TopLogprob(**_token(self.tokenizer, other), logprob=logprob)
                    for other, logprob in token.top
                ],
            )
            for token in tokens
        ]
        return ChatLogprobs(content=content)

    def streamed_choice(self, index: int) -> StreamedChoice:
        return _StreamedMessage(self, index)

    def response(
        self, choices: list[Any], usage: Usage | None, *, streamed: bool = False
    ) -> ChatCompletionResponse | ChatCompletionChunk:
        kind = ChatCompletionChunk if streamed else ChatCompletionResponse
        return kind(**self.header, choices=choices, usage=usage)


class _StreamedMessage(StreamedChoice):
    def __init__(self, completion: ChatCompletion, index: int) -> None:
        super().__init__(completion, index)
        self.completion = completion

    def begin(self) -> ChatChunkChoice:
        delta = MessageDelta(role="assistant", content="")
        return ChatChunkChoice(index=self.index, delta=delta, finish_reason=None)

    def piece(self, text: str, tokens: list[GeneratedToken], reason: FinishReason | None) -> ChatChunkChoice:
        return ChatChunkChoice(
            index=self.index,
            delta=MessageDelta(content=text or None),
            logprobs=self.completion.logprobs(tokens) if tokens else None,
            finish_reason=reason,
        )


def template_message(message: ChatMessage) -> dict[str, Any]:
    """Convert a message to the form that chat templates read, as vLLM does.

    Text parts without images are joined by line breaks, and the arguments of tool calls are parsed.
    """
    values: dict[str, Any] = message.model_dump(exclude_none=True, exclude={"refusal"})
    if message.role == "developer":  # OpenAI's newer name, which few templates know
        values["role"] = "system"
    if isinstance(message.content, list):
        texts = [part.text for part in message.content if isinstance(part, TextPart)]
        if len(texts) == len(message.content):
            values["content"] = "\n".join(texts)
    values.setdefault("content", "")
    for call in values.get("tool_calls", ()):
        function = call["function"]
        try:
            function["arguments"] = json.loads(function["arguments"] or "{}")
        except (ValueError, RecursionError):
            raise InvalidValueError("arguments", function["arguments"], "a JSON object") from None
    return values


def _token(tokenizer: Tokenizer, token: int) -> dict[str, Any]:
    (part,) = tokenizer.parts([token], side="target")
    data = part.encode() if isinstance(part, str) else part
    return {"token": data.decode("utf-8", "replace"), "bytes": list(data)}
