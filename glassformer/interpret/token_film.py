"""The film of a picture that is drawn code by code, computed as far as it is looked at.

Only the codes are kept; pictures, candidates and attention of a step are computed again when they are asked
for. C channels, G rows or columns of codes, K candidates, N codes of the picture, P positions of the prompt,
R one row, or two with guidance, T positions, V codes of the codebook, h and w height and width of a picture.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.bundle import Bundle
from glassformer.core.kv_cache import KVCache
from glassformer.core.observe import Observer, Record
from glassformer.errors import InvalidValueError
from glassformer.generation import GenerationParams
from glassformer.generation.guidance import guide
from glassformer.generation.logits_processors import LogitsProcessors
from glassformer.generation.loop import run_search
from glassformer.generation.step_decoder import PrefillResult
from glassformer.interpret import schema
from glassformer.interpret.film import MAX_MATRIX, Film, to_bytes
from glassformer.interpret.runs import run_of
from glassformer.tasks.image_tokens import TokenImageGenerator
from glassformer.training.latents import LATENTS

COUNTS = "codebook.counts"
MAX_CANDIDATES = 12  # of a step, besides the chosen code
CODEBOOK_PAGE, PICTURE_BATCH_SIZE = 64, 16  # codes of a page, and pictures that are decoded together
PICTURES = 8  # that are shown while the codes are chosen
MAX_COUNTED = 1 << 24  # codes of the images of a run
_PAGE = re.compile(r"codebook\.(0|[1-9]\d{0,5})", re.ASCII)  # one name a page: pages are kept by name


class TokenFilm(Film):
    """The film of one prompt and seed; a step chooses one code.

    codes: those chosen so far. logprobs: of each, among the candidates that it was sampled from.
    """

    task: TokenImageGenerator
    module = "decoder"

    def __init__(self, task: TokenImageGenerator, prompt: Sequence[int], **options: Any) -> None:
        self.codes: list[int] = []
        self.logprobs: list[float] = []
        self.forced: dict[int, int] = {}
        super().__init__(task, prompt, **options)
        guided = task.config.guidance_scale != 1
        self.prompts = [prompt, *([task.negative_ids.tolist()] if guided else [])]
        self.caches: list[KVCache] = []
        decoder = task.decoder()
        if self.edits or self.hidden_words:
            like, sizes = (
                next(task.model.decoder.parameters()),
                [len(ids) + len(self) for ids in self.prompts],
            )
            allocate = partial(
                KVCache.allocate, self.model.decoder.spec, 1, dtype=like.dtype, device=like.device
            )
            self.caches = [allocate(size) for size in sizes]
            decoder = _IntervenedDecoder(self, decoder)
        constraint = _ForcedCodes(self.forced) if self.forced else None
        with torch.inference_mode():
            start = task.start(decoder, [prompt], task.seeds, constraint=constraint, on_token=self._append)
        self._steps: Iterator[None] = run_search(*start)
        self._decoder: Any = start[0]  # until all codes are chosen

    def __len__(self) -> int:
        return self.task.spec.num_cells

    def _add(self, intervention: schema.Intervention) -> None:
        match intervention:
            case schema.ForceToken(step=step, token=token):
                for name, value, count in (("step", step, len(self)), ("code", token, self.num_codes)):
                    if not 0 <= value < count:
                        raise InvalidValueError(name, value, f"0 to {count - 1}")
                self.forced[step] = token
            case _:
                super()._add(intervention)

    @property
    def num_codes(self) -> int:
        return self.task.spec.num_codes

    @property
    def grid(self) -> tuple[int, int]:
        return self.task.spec.grid

    def _append(self, token: Any) -> None:
        self.codes.append(token.id)
        self.logprobs.append(token.logprob)

    @torch.inference_mode()
    def run(self, count: int) -> list[int]:
        """Return the first `count` codes; choose those that are missing."""
        if not 0 <= count <= len(self):
            raise InvalidValueError("step", count, f"0 to {len(self)}")
        with self._lock:
            while (chosen := len(self.codes)) < count:
                next(self._steps, None)
                assert len(self.codes) > chosen, "a step has failed before"
            if len(self.codes) == len(self):
                self._decoder = None
        return self.codes[:count]

    def forward(
        self,
        prompt: Sequence[int],
        codes: Sequence[int],
        cache: KVCache | None = None,
        want: tuple[str, ...] = (),
    ) -> tuple[Tensor, Record]:
        """Return the logits (V) of the code after these, and what the pass recorded.

        Interventions change the positions that choose a code from `start` on, and leave the keys and values
        of earlier ones as they were, so that one pass over all codes equals decoding them one by one.
        """
        past: Any = 0 if cache is None else cache.length
        ids, first = [*prompt, *codes], max(0, len(prompt) - 1 + self.start - past)
        observer = Observer(want, {name: _from(edit, first) for name, edit in self.edits.items()})
        mask = None
        if self.hidden_words and prompt is self.prompt:
            mask = torch.ones(1, len(ids) - past, len(ids), dtype=torch.bool).tril(past)
            mask[:, first:, self.hidden_words] = False
            mask = mask.to(self.task.bundle.device)
        inputs = torch.tensor([ids[past:]], device=self.task.bundle.device)
        logits = self.task.model.decoder(inputs, mask, cache=cache, obs=observer.scope("decoder"))
        return logits[0, -1], observer.record

    def next_logits(self) -> Tensor:
        """Return the logits (R, V) of the next code, with the interventions."""
        rows = [self.forward(*row)[0] for row in zip(self.prompts, repeat(self.codes), self.caches)]
        return torch.stack(rows)

    @torch.inference_mode()
    def record(self, step: int) -> Record:
        """Return queries and keys of all positions up to the one that chooses a step's code; of one step.

        They are those of the row with the prompt. Its output is the logits (V) of that code.
        """
        if not 0 <= step < len(self):
            raise InvalidValueError("step", step, f"0 to {len(self) - 1}")
        codes = self.run(step + 1)[:step]
        with self._lock:
            if self._last is None or self._last[0] != step:
                logits, record = self.forward(self.prompt, codes, want=("*.q", "*.k"))
                record.output = logits
                self._last = step, record
            return self._last[1]

    @torch.inference_mode()
    def probabilities(self, step: int) -> Tensor:
        """Return the probabilities (V) that the code of a step is sampled from."""
        rows = [self.record(step).output]
        rows += [self.forward(prompt, self.codes[:step])[0] for prompt in self.prompts[1:]]
        config, logits = self.task.config, torch.stack(rows).float().cpu()
        scores = guide(logits, config.guidance_scale) if len(rows) > 1 else logits
        processors = LogitsProcessors.build(
            GenerationParams(config=config),
            torch.empty(1, 0, dtype=torch.long),
            torch.tensor([len(self)]),
            vocab_size=self.num_codes,
        )
        return processors(scores, step).softmax(-1)[0]

    def candidates(self, step: int) -> Tensor:
        """Return the most likely codes (K) of a step, best first; the chosen one is always among them."""
        order = self.probabilities(step).sort(descending=True, stable=True).indices[:MAX_CANDIDATES].tolist()
        chosen = self.codes[step]
        return torch.tensor(order if chosen in order else [*order, chosen], dtype=torch.int32)

    def patches(self, step: int) -> Tensor:
        """Return what each candidate of a step would paint in its place of the drawing (K, h, w, C)."""
        candidates, codes = self.candidates(step), torch.tensor(self.run(len(self)))
        pictures = codes.repeat(len(candidates), 1)
        pictures[:, step] = candidates
        return self._crop(pictures, *divmod(step, self.grid[1]))

    def codebook(self, page: int) -> Tensor:
        """Return a page of the codebook (K, h, w, C): each code, among copies of itself in the drawing."""
        codes = torch.arange(self.num_codes)[page * CODEBOOK_PAGE : (page + 1) * CODEBOOK_PAGE]
        if not len(codes):
            raise InvalidValueError("page", page, f"0 to {(self.num_codes - 1) // CODEBOOK_PAGE}")
        row, column = (side // 2 for side in self.grid)
        pictures = torch.tensor(self.run(len(self))).view(self.grid).repeat(len(codes), 1, 1)
        pictures[:, max(0, row - 1) : row + 2, max(0, column - 1) : column + 2] = codes[:, None, None]
        return self._crop(pictures.flatten(1), row, column)

    def _crop(self, codes: Tensor, row: int, column: int) -> Tensor:
        """Decode pictures of codes (B, N), and return one patch of each (B, h, w, C)."""
        side, parts = self.task.spec.autoencoder.stride, []
        for part in codes.split(PICTURE_BATCH_SIZE):
            pixels = self.task.model.decode(part.to(self.task.bundle.device))
            parts.append(pixels[..., row * side :, column * side :][..., :side, :side])
        return to_bytes(torch.cat(parts))

    def frames(self, step: int) -> Tensor:
        """Return the picture (1, h, w, C) of the codes before a step; places without one are gray."""
        codes, side = self.run(step), self.task.spec.autoencoder.stride
        ids = torch.tensor([codes + [0] * (len(self) - step)], device=self.task.bundle.device)
        pixels = self.task.model.decode(ids)
        drawn = torch.arange(len(self), device=pixels.device).view(self.grid) < step
        return to_bytes(pixels * drawn.repeat_interleave(side, 0).repeat_interleave(side, 1))

    @torch.inference_mode()
    def tensor(self, name: str, step: int | None = None) -> Tensor | None:
        if step is None:
            page = _PAGE.fullmatch(name)
            return None if page is None else self.codebook(int(page[1]))
        match name:
            case "frames":
                return self.frames(step)
            case "codes":
                return torch.tensor(self.run(step), dtype=torch.int32)
            case "logprobs":
                return torch.tensor(self.logprobs[: len(self.run(step))])
            case "probabilities":
                return self.probabilities(step)
            case "candidates":
                return self.candidates(step)
            case "patches":
                return self.patches(step)
        return None

    def outcome(self) -> tuple[schema.DrawOutcome, dict[str, Tensor]]:
        counts, spec = count_codes(self.task.bundle), self.task.spec
        outcome = schema.DrawOutcome(
            steps=len(self),
            pictures=(*range(0, len(self), -(-len(self) // PICTURES)), len(self)),
            size=spec.autoencoder.input.image_size,
            attentions=tuple(self._attentions()),
            codes=schema.CodesInfo(
                grid=self.grid,
                num_codes=self.num_codes,
                page=CODEBOOK_PAGE,
                counts=None if counts is None else COUNTS,
            ),
        )
        return outcome, {} if counts is None else {COUNTS: counts}

    def names(self) -> Iterator[str]:
        yield from super().names()
        yield from (f"step.{len(self)}.{name}" for name in ("codes", "logprobs"))
        yield from (f"codebook.{page}" for page in range(-(-self.num_codes // CODEBOOK_PAGE)))

    def _attentions(self) -> Iterator[schema.DrawingAttention]:
        """Describe every attention layer twice: from the patches to the words, and to the patches."""
        prompt = len(self.prompt)
        for kind, first_key in (("cross", 0), ("self", prompt)):
            for name, layer in self.attention_layers():
                if layer.num_heads * (prompt + len(self)) ** 2 <= MAX_MATRIX:
                    yield schema.DrawingAttention(
                        name=name,
                        kind=kind,  # type: ignore[arg-type]
                        heads=layer.num_heads,
                        grid=self.grid,
                        first_query=prompt - 1,  # the token before a patch chooses it
                        first_key=first_key,
                    )

    @property
    def bytes(self) -> int:
        decoder = self._decoder
        caches = [*self.caches, *([] if decoder is None else [decoder.cache])]
        return super().bytes + sum(cache.bytes for cache in caches)


class _IntervenedDecoder(nn.Module):
    """The decoder of a film, as the task runs it up to `start`, and with interventions from then on."""

    def __init__(self, film: TokenFilm, decoder: Any) -> None:
        super().__init__()
        self.film, self.decoder = film, decoder

    def prefill(
        self, inputs: Tensor, mask: Tensor, *, start_ids: Sequence[int], capacity: int
    ) -> PrefillResult:
        film = self.film
        self.steps, logits, most = self.decoder.prefill(inputs, mask, start_ids=start_ids, capacity=capacity)
        return PrefillResult(self, logits if film.start else film.next_logits(), most)

    @property
    def cache(self) -> KVCache:
        cache: KVCache = self.steps.cache
        return cache

    def step(self, ids: Tensor) -> Tensor:
        film = self.film
        logits: Tensor = self.steps.step(ids) if len(film.codes) < film.start else film.next_logits()
        return logits

    def select(self, rows: Tensor) -> None:
        self.steps.select(rows)


class _ForcedCodes:
    """The codes that a drawing is given, by step; a constraint of its generation, and its only state."""

    def __init__(self, codes: Mapping[int, int]) -> None:
        self.codes, self.step = codes, 0

    def start(self) -> _ForcedCodes:
        return _ForcedCodes(self.codes)

    copy = start

    def mask(self, vocab_size: int) -> Tensor:
        allowed = torch.ones(vocab_size, dtype=torch.bool)
        if self.step in self.codes:
            allowed[torch.arange(vocab_size) != self.codes[self.step]] = False
        return allowed

    def append(self, token: int) -> None:
        self.step += 1


def _from(edit: Callable[[Tensor], Tensor], first: int) -> Callable[[Tensor], Tensor]:
    """Return the edit of heads (B, H, T, K), for the positions from the first one on."""
    return lambda x: torch.cat((x[:, :, :first], edit(x[:, :, first:])), 2)


def count_codes(bundle: Bundle) -> Tensor | None:
    """Return how often the images of a model's run have each code (V); None if it has no run."""
    run = None if bundle.folder is None else run_of(bundle.folder.resolve())
    paths = [] if run is None else sorted(run.glob(f"data/**/{LATENTS}"))
    if not paths:
        return None
    spec: Any = bundle.spec
    rows = MAX_COUNTED // (len(paths) * spec.num_cells)
    parts = [np.load(path, mmap_mode="r", allow_pickle=False)[: max(1, rows), 0].ravel() for path in paths]
    return torch.from_numpy(np.bincount(np.concatenate(parts), minlength=spec.num_codes)).int()
