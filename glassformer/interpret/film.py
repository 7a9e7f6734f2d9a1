"""The steps of one drawing, an image or a video, computed as far as they are looked at.

Only small samples are kept; pictures and attention of a step are computed again when they are asked for.
C channels, D d_model, F frames, K head width, L layers, N steps, T patches, h and w rows and columns.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from threading import RLock
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.core.attention import MultiHeadAttention
from glassformer.core.block import Block
from glassformer.core.diffusion.modulation import AdaptiveNorm
from glassformer.core.inputs import LatentInputs
from glassformer.core.observe import Observer, Record, observe
from glassformer.errors import InvalidValueError, UnsupportedError
from glassformer.interpret import schema
from glassformer.tasks.drawing import DiffusionImageGenerator, ImageGenerator

MODULATION = "film.modulation"
MAX_SIDE, MAX_PIXELS = 320, 1 << 19  # of a picture of the film, and of all pictures of a video
MAX_MATRIX = 1 << 25  # weights of an attention layer; larger ones are not listed


class Film(ABC):
    """The film of one prompt and seed.

    words: tokens of the prompt. start: the step from which on interventions apply.
    module: the part of the model whose heads can be switched off. defaults: settings that are not the task's.
    """

    task: Any  # an ImageGenerator
    module: ClassVar[str]
    defaults: ClassVar[Mapping[str, Any]] = {}

    def __init__(
        self,
        task: ImageGenerator,
        prompt: Any,
        *,
        words: schema.TokenSequence,
        interventions: Iterable[schema.Intervention] = (),
        start: int = 0,
    ) -> None:
        self.task, self.prompt, self.words, self.start = task, prompt, words, start
        self.model: Any = task.bundle.model
        self.edits: dict[str, Callable[[Tensor], Tensor]] = {}
        self.hidden_words: list[int] = []
        self._last: tuple[int, Record] | None = None
        self._lock = RLock()
        for intervention in interventions:
            self._add(intervention)

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of steps."""

    @abstractmethod
    def outcome(self) -> tuple[schema.DrawOutcome, dict[str, Tensor]]:
        """Describe the film, and return the tensors that the description names."""

    @abstractmethod
    def frames(self, step: int) -> Tensor:
        """Return the pictures of a step, or after the last one."""

    @abstractmethod
    def record(self, step: int) -> Record:
        """Return queries and keys of a step, of the row with the condition."""

    def tensor(self, name: str, step: int | None = None) -> Tensor | None:
        """Return another tensor, of the film or of a step; None if there is none of this name."""
        return self.frames(step) if name == "frames" and step is not None else None

    def names(self) -> Iterator[str]:
        """Yield the names of the tensors that show the film without a model."""
        yield from (f"step.{step}.frames" for step in self.outcome()[0].pictures)

    @property
    def bytes(self) -> int:
        """The memory of the samples, and of the queries and keys of one step."""
        return sum(x.nbytes for x in self._last[1].tensors.values()) if self._last else 0

    def _add(self, intervention: schema.Intervention) -> None:
        match intervention:
            case schema.AblateHead(attention=name, head=head):
                attentions = dict(self.attention_layers())
                if name not in attentions:
                    raise schema.ItemNotFoundError("attention", name, attentions)
                if not 0 <= head < attentions[name].num_heads:
                    raise InvalidValueError("head", head, f"0 to {attentions[name].num_heads - 1}")
                self.edits[f"{name}.heads"] = _without_head(head, self.edits.get(f"{name}.heads"))
            case schema.MaskToken(sequence="text", position=position) if self.words.name == "text":
                if not 0 <= position < len(self.words):
                    raise InvalidValueError("text position", position, f"0 to {len(self.words) - 1}")
                self.hidden_words.append(position)
            case _:
                name = self.task.bundle.display_name
                raise UnsupportedError(name, f"the intervention {intervention.kind} on this input")

    def attention_layers(self) -> Iterator[tuple[str, MultiHeadAttention]]:
        """Yield the attention layers whose heads can be switched off."""
        for name, module in self.model.named_modules():
            if isinstance(module, MultiHeadAttention) and name.startswith(f"{self.module}."):
                yield name, module


class DenoisingFilm(Film):
    """The film of a diffusion model.

    latents: what the denoiser is given at each step (1, C, h, w), and after the last step the sample. Those
    of a video are (1, C, F, h, w).
    clean: the clean sample that it predicts at each step.
    """

    task: DiffusionImageGenerator
    module = "denoiser"
    defaults: ClassVar[Mapping[str, Any]] = {"num_inference_steps": 20}

    def __init__(self, task: DiffusionImageGenerator, prompt: Any, **options: Any) -> None:
        super().__init__(task, prompt, **options)
        self.latents: list[Tensor] = []
        self.clean: list[Tensor] = []
        with torch.no_grad():
            self.condition, _ = task.conditions([prompt])
            self._steps: Iterator[Any] = task.steps(self._predict, [prompt], task.seeds)

    def __len__(self) -> int:
        return len(self.task.sampler)

    @property
    def num_frames(self) -> int | None:
        """The number of frames of a video; None for an image."""
        return self.task.num_frames if len(self.task.latent_shape) == 4 else None

    def outcome(self) -> tuple[schema.DrawOutcome, dict[str, Tensor]]:
        attentions, modulation = self.attentions(), self.modulation()
        outcome = schema.DrawOutcome(
            steps=len(self),
            pictures=tuple(range(len(self) + 1)),
            size=self.task.size,
            num_frames=self.num_frames,
            attentions=attentions,
            timesteps=tuple(self.task.sampler.timesteps.tolist()),
            modulation=None if modulation is None else MODULATION,
        )
        return outcome, {} if modulation is None else {MODULATION: modulation}

    def _predict(self, inputs: LatentInputs) -> Tensor:
        """Take the next step: run the denoiser on one row, or on one without and one with the condition."""
        step = len(self.latents)
        self.latents.append(inputs.latents[-1:])
        edits = self._edits(step)
        output: Tensor = self.task.model(self._hide(inputs, step), obs=Observer((), edits) if edits else None)
        return output

    def _edits(self, step: int) -> Mapping[str, Callable[[Tensor], Tensor]]:
        return self.edits if step >= self.start else {}

    def _hide(self, inputs: LatentInputs, step: int) -> LatentInputs:
        """Mask the words that are switched off, in the row with the condition."""
        if not self.hidden_words or step < self.start or inputs.text is None:
            return inputs
        mask = inputs.text_mask
        shown = (
            mask.clone() if isinstance(mask, Tensor) else inputs.text.new_ones(inputs.text.shape[:2]).bool()
        )
        shown[-1, self.hidden_words] = False
        return replace(inputs, text_mask=shown)

    def run(self, step: int) -> None:
        """Take all steps up to this one."""
        if not 0 <= step < len(self):
            raise InvalidValueError("step", step, f"0 to {len(self) - 1}")
        with self._lock:
            while len(self.clean) <= step:
                _, taken = next(self._steps)
                self.clean.append(taken.pred_original_sample)
                if len(self.clean) == len(self):
                    self.latents.append(taken.prev_sample)
                    next(self._steps, None)  # checks that the sample is finite

    @torch.inference_mode()
    def frames(self, step: int) -> Tensor:
        """Return two pictures (2, h, w, C): what a step is given, and the clean image that it predicts.

        Videos are (2, F, h, w, C). step: the number of steps gives the drawing, twice.
        """
        done = step == len(self)
        self.run(step - done)
        latents = [self.latents[step], self.latents[step] if done else self.clean[step]]
        pixels = torch.cat([self.task.model.decode(x) for x in latents])
        return to_bytes(pixels)

    def record(self, step: int) -> Record:
        """Return queries and keys of a step, of the row with the condition; those of one step are kept."""
        self.run(step)
        with self._lock:
            if self._last is None or self._last[0] != step:
                timestep = self.task.sampler.timesteps[step].to(self.task.bundle.device)
                inputs = self._hide(LatentInputs(self.latents[step], timestep, **self.condition), step)
                edits = self._edits(step)
                self._last = step, observe(self.task.model, inputs, want=("*.q", "*.k"), edit=edits)
            return self._last[1]

    def attentions(self) -> tuple[schema.DrawingAttention, ...]:
        """Describe the attention layers whose weights can be shown, in the order of the data flow."""
        record, found = self.record(0), []
        for name in record.attentions():
            (_, heads, queries, _), keys = record[f"{name}.q"].shape, record[f"{name}.k"].shape[2]
            windows = record.attention_contexts[name].windows
            patches = queries if windows is None else math.prod(windows.grid)
            grid = _grid(patches // (self.num_frames or 1), self.latents[0].shape[-2:])
            if grid is not None and heads * queries * keys <= MAX_MATRIX:
                over_time = windows is not None and windows.axis == "time"
                kind: Any = "cross" if name.endswith("cross_attn") else "time" if over_time else "self"
                found.append(schema.DrawingAttention(name=name, kind=kind, heads=heads, grid=grid))
        return tuple(found)

    @torch.inference_mode()
    def modulation(self) -> Tensor | None:
        """Return the norms (L, 6, N) of the vectors of adaptive norms, at each step; None without these.

        The vectors: shift, scale and gate of attention, then of the feed-forward layer.
        """
        denoiser = self.task.model.denoiser
        blocks = [
            b for b in denoiser.modules() if isinstance(b, Block) and isinstance(b.norm_self, AdaptiveNorm)
        ]
        if not blocks:
            return None
        latents, norms = self.latents[0], []
        for timestep in self.task.sampler.timesteps.to(latents.device):
            condition = denoiser.embed(LatentInputs(latents, timestep, **self.condition)).condition
            norms.append([_vector_norms(block, condition) for block in blocks])
        return torch.tensor(norms).movedim(0, -1)

    @property
    def bytes(self) -> int:
        return super().bytes + 2 * (len(self) + 1) * self.latents[0].nbytes


def to_bytes(pixels: Tensor) -> Tensor:
    """Convert pixels (B, C, ..., H, W) from -1 to 1 to pictures (B, ..., h, w, C) of limited size."""
    pixels, (*frames, height, width) = pixels.float(), pixels.shape[2:]
    all_pixels = math.prod(pixels.shape[2:])
    if (scale := min(MAX_SIDE / max(height, width), math.sqrt(MAX_PIXELS / all_pixels))) < 1:
        smaller = [max(1, round(side * scale)) for side in (height, width)]
        pixels = F.interpolate(pixels, (*frames, *smaller), mode="area")
    return ((pixels / 2 + 0.5).clamp(0, 1) * 255).round().byte().movedim(1, -1).cpu()


def _vector_norms(block: Any, condition: Tensor) -> list[float]:
    parts = (block.norm_self, block.scale_self_attn, block.norm_ffn, block.scale_ffn)
    return [float(x.float().norm()) for part in parts for x in part.modulation(condition)]


def _without_head(head: int, edit: Callable[[Tensor], Tensor] | None) -> Callable[[Tensor], Tensor]:
    """Return an edit of heads (B, H, T, K) that sets one to zero, after another edit."""

    def apply(x: Tensor) -> Tensor:
        x = x.clone() if edit is None else edit(x)
        x[:, head] = 0
        return x

    return apply


def _grid(count: int, size: Sequence[int]) -> tuple[int, int] | None:
    """Return rows and columns of square patches of latents; None if there is no such number of patches."""
    for side in range(1, min(size) + 1):
        rows, columns = (-(-length // side) for length in size)
        if rows * columns == count:
            return rows, columns
    return None
