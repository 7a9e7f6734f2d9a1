"""Draw images with a model of image tokens: sample the codes of an image, then decode them to pixels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.errors import attempt
from glassformer.generation import GenerationConfig, GenerationParams
from glassformer.generation import Prompt as TokenPrompt
from glassformer.generation.engine import start_search
from glassformer.generation.loop import Search, run_search
from glassformer.generation.prompt import pad_prompts
from glassformer.generation.step_decoder import StepDecoder
from glassformer.inference.prepare import evaluation_mode
from glassformer.tasks.base import NO_CALLBACKS, Callbacks
from glassformer.tasks.drawing import ImageGenerator, Prompt, check_prompt, read_class, read_token_ids

DEFAULT_GUIDANCE = 3.0


class TokenImageGenerator(ImageGenerator):
    """Draw images by sampling codes one after another.

    guidance_scale: how strongly the images follow the prompts; 1 is without guidance.
    negative_prompt: a text that the images move away from; by default no text.
    temperature, top_k, top_p: as in the generation of text.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        guidance_scale: float = DEFAULT_GUIDANCE,
        negative_prompt: str = "",
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(bundle, **options)
        self.model: Any = bundle.model
        assert isinstance(bundle.spec, specs.ImageTokensModelSpec)
        self.spec, self.negative_prompt = bundle.spec, negative_prompt
        self.config = GenerationConfig(
            do_sample=True,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            guidance_scale=guidance_scale,
            max_new_tokens=self.spec.num_cells,
        )
        negative = self._prompt_ids(negative_prompt) if negative_prompt else self.spec.prompt(())
        self.negative_ids = torch.tensor(negative)

    def drawing_options(self) -> dict[str, Any]:
        names = ("guidance_scale", "temperature", "top_k", "top_p")
        shared = {name: getattr(self.config, name) for name in names}
        return {**shared, "negative_prompt": self.negative_prompt}

    def load(self, inputs: Iterable[Prompt]) -> Iterable[Any]:
        return [attempt(self._prompt_ids, prompt) for prompt in inputs]

    def _prompt_ids(self, prompt: Prompt) -> list[int]:
        """Return what the codes of an image follow, for a text or a class."""
        if self.spec.num_classes is not None:
            return self.spec.prompt([read_class(self.bundle, prompt, self.spec.num_classes)])
        return self.spec.prompt(read_token_ids(self.bundle, check_prompt(prompt), self.spec.max_text_len))

    @torch.inference_mode()
    def draw(
        self, prompts: Sequence[Any], seeds: Sequence[int], callbacks: Callbacks = NO_CALLBACKS
    ) -> Tensor:
        codes = self.sample(prompts, seeds, callbacks)
        pixels: Tensor = self.model.decode(codes)
        return pixels

    def sample(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], callbacks: Callbacks = NO_CALLBACKS
    ) -> Tensor:
        """Return the codes (B, N) of an image for each prompt and seed."""
        decoder = self.decoder()
        with evaluation_mode(decoder), torch.cuda.device_of(next(decoder.parameters())):
            steps, logits, search = self.start(decoder, prompts, seeds)
            for _ in run_search(steps, logits, search):
                callbacks.on_step()
        return torch.tensor([output.ids for (output,) in search.outputs()], device=self.bundle.device)

    def decoder(self) -> nn.Module:
        """Return the decoder of codes, prepared for inference."""
        return self.bundle.tower("decoder").inference_model()

    def start(
        self, decoder: nn.Module, prompts: Sequence[Sequence[int]], seeds: Sequence[int], **params: Any
    ) -> tuple[StepDecoder, Tensor, Search]:
        """Prefill the prompts; return what `run_search` takes to sample their codes. params: further ones."""
        device = self.bundle.device
        rows = [TokenPrompt(torch.tensor(ids), negative_ids=self.negative_ids) for ids in prompts]
        ids, mask, padded = pad_prompts(rows, device)
        options = GenerationParams(config=self.config, seeds=seeds, **params)
        limits = [self.spec.num_cells] * len(rows)
        return start_search(decoder, ids, options, mask, limits, options.generator(device), padded)
