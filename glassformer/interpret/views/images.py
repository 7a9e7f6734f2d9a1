"""Views of images: detected objects, and the mask of a prompt.

H heads, M masks, N layers, Q queries, S cells of the image, T tokens, h and w rows and columns of a mask.
"""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.core.heads import HeadContext
from glassformer.core.inputs import tensor_of
from glassformer.core.observe import Record, observe
from glassformer.core.vision.heads import box_corners
from glassformer.data.image_files import decode_base64
from glassformer.errors import UnsupportedError
from glassformer.interpret import schema
from glassformer.interpret.interventions import IntervenedForward
from glassformer.interpret.outline import describe_attention, describe_stacks
from glassformer.interpret.prepared_input import PreparedInput
from glassformer.interpret.readout import HeadReadout
from glassformer.interpret.schema import Intervention, Kind, TokenSequence, TraceInput
from glassformer.interpret.tokens import (
    detection_sequences,
    image_sequence,
    merged_sequences,
    prompt_sequences,
)
from glassformer.interpret.views.base import OutputUnit, Result, View, ViewRun
from glassformer.json_text import read_object
from glassformer.pretrained import folder_of
from glassformer.processors.image import VisionProcessor
from glassformer.tasks.classification import label_names
from glassformer.tasks.segmentation import PromptSegmenter, SegmentationPrompt

MIN_SCORE = 0.5  # of the objects in an outcome
# the sequences that attend and are attended to, by the attention layers of a two-way decoder
_TWO_WAY = {
    "self_attn": ("prompt", "prompt"),
    "cross_attn": ("prompt", "image"),
    "image_attn": ("image", "prompt"),
    "final_attn": ("prompt", "image"),
}


def prepare_image(processor: VisionProcessor, kind: Kind, input: TraceInput, stacks: int) -> PreparedInput:
    """Prepare an image. stacks: number of stacks that read the patches."""
    spec: Any = processor.bundle.spec
    image = processor.load(decode_base64(input.image or ""))
    inputs: dict[str, Any] = {**processor.collate([image])}
    _, _, height, width = tensor_of(next(iter(inputs.values()))).shape
    name = "source" if "src" in inputs else "input"
    if isinstance(processor.read, specs.FeatureMapSpec):
        sequences: tuple[TokenSequence, ...] = detection_sequences(
            spec.source, (height, width), spec.target.num_queries
        )
    else:
        sequences = merged_sequences(image_sequence(processor.read, (height, width), name), stacks)
    return PreparedInput(
        kind=kind,
        input=input,
        sequences=sequences,
        inputs=inputs,
        size=image.size,
        tensors={"input.pixels": torch.from_numpy(image.pixels.copy())},
    )


class DetectView(View):
    """A detector with object queries."""

    kind, needs = "detect", ("image",)

    def prepare(self, input: TraceInput, interventions: Sequence[Intervention] = ()) -> PreparedInput:
        return prepare_image(VisionProcessor.from_bundle(self.bundle), self.kind, input, 1)

    def readout(self) -> HeadReadout:
        """Return the readout of the classes of the queries; the last is "no object"."""
        head: Any = self.bundle.spec.head
        labels = [*label_names(self.bundle, head.num_labels), "no object"]
        stack = describe_stacks(self.bundle)[-1]
        return HeadReadout(bundle=self.bundle, stack=stack, whole_input=False, labels=labels)

    def outputs(self, prepared: PreparedInput, record: Record) -> list[OutputUnit]:
        """Return the objects, best first; if there are none, the best class of each query."""
        outcome: Any = self.outcome(prepared, record)[0]
        names = list(self.readout().labels or ())
        found = [OutputUnit(one.query, names.index(one.label)) for one in outcome.objects]
        return found or super().outputs(prepared, record)

    def outcome(self, prepared: PreparedInput, record: Record) -> Result:
        """Read the boxes after every layer with the last norm and head, which are trained for the last."""
        model: Any = self.bundle.model
        labels = label_names(self.bundle, model.spec.head.num_labels)
        readout = self.readout()
        norm = readout.final_norm or nn.Identity()
        outputs = [model.head(norm(record[site]), HeadContext()) for site in readout.sites()[1:]]
        probabilities = torch.cat([output.logits for output in outputs]).float().softmax(-1)  # (N, Q, L + 1)
        boxes = box_corners(torch.cat([output.boxes for output in outputs]).float()).cpu()  # (N, Q, 4)
        assert prepared.size is not None
        height, width = prepared.size
        scores, classes = probabilities[-1, :, :-1].max(-1)
        pixels = boxes[-1].clamp(0, 1) * torch.tensor((width, height, width, height))
        objects = tuple(
            schema.DetectedBox(
                query=n, label=labels[classes[n]], score=float(scores[n]), box=(x_min, y_min, x_max, y_max)
            )
            for n in scores.argsort(descending=True, stable=True).tolist()
            for x_min, y_min, x_max, y_max in [pixels[n].tolist()]
            if scores[n] > MIN_SCORE
        )
        sequence = prepared.sequences[-1]
        outcome = schema.DetectOutcome(
            objects=objects,
            first_query=len(sequence) - boxes.shape[1],
            boxes="detect.boxes",
            probabilities="detect.probabilities",
        )
        return outcome, {"detect.boxes": boxes, "detect.probabilities": probabilities.cpu()}

    def example(self) -> TraceInput:
        return shipped_example("pocket-detector")


class SegmentView(View):
    """A promptable segmenter, with the two-way attention between prompt tokens and image.

    The image is encoded once; its embedding is kept in the bundle, so that another prompt, or a change of the
    decoder, only runs the decoder.
    """

    kind, needs = "segment", ("image",)

    @torch.inference_mode()
    def run(self, input: TraceInput, interventions: Sequence[Intervention]) -> ViewRun:
        """Return masks (M, h, w) and attention weights (1, H, T, T), (1, H, T, S) or (1, H, S, T).

        Without points and box, the prompt is the center of the image. Cells and masks are those of the image
        without its padding.
        """
        spec: Any = self.bundle.spec
        edit = IntervenedForward(self.bundle.model, {}, interventions).edit
        start = time.perf_counter()
        task = PromptSegmenter(
            self.bundle, prompts=[SegmentationPrompt(points=[(0, 0)])], multimask_output=True
        )
        image = task.encode(decode_base64(input.image or ""))
        encoded = time.perf_counter()
        if not (input.points or input.background_points or input.box):
            height, width = image.size
            input = replace(input, points=((width / 2, height / 2),))
        prompt = SegmentationPrompt(
            points=input.points or (), background_points=input.background_points or (), box=input.box
        )
        inputs = {
            "images": None,
            "image_embeddings": image.embedding,
            "prompts": task.prompt_inputs(image, prompt),
        }
        if edit and not all(name.startswith("decoder.") for name in edit):
            hint = "an image is encoded once, so only the decoder can be changed"
            raise UnsupportedError(self.bundle.display_name, f"changes of {min(edit)}", hint=hint)
        record = observe(task.model, inputs, ("decoder.*.q", "decoder.*.k", "decoder.*.heads"), edit)
        output, padded_grid = record.output, image.embedding.shape[-2:]
        grid = task.unpadded(padded_grid, image)
        _remove_padding(record, padded_grid, grid)
        masks, iou = output.masks[0, 0].float(), output.iou[0, 0].float()
        order = task.rank(output, image, prompt)
        rows, columns = task.unpadded(masks.shape[-2:], image)
        labels = [1] * len(prompt.points) + [0] * len(prompt.background_points)
        prepared = PreparedInput(
            kind=self.kind,
            input=input,
            sequences=prompt_sequences(spec.head.num_masks, labels, prompt.box is not None, grid),
            inputs=inputs,
            size=image.size,
        )
        outcome = schema.SegmentOutcome(
            iou=tuple(iou.clamp(0, 1)[order].tolist()),  # the prediction may exceed 1
            masks="segment.masks",
            size=image.size,
            encoding_seconds=encoded - start,
        )
        tensors = {"segment.masks": masks[order, :rows, :columns]}
        return ViewRun(prepared, record, outcome, tensors, time.perf_counter() - start)

    def attentions(self, record: Record) -> tuple[schema.AttentionInfo, ...]:
        spec: Any = self.bundle.spec
        infos = []
        for name in record.attentions():
            path, _, last = name.rpartition(".")
            queries, keys = _TWO_WAY[last]
            infos.append(
                describe_attention(
                    self.bundle.model,
                    record,
                    name,
                    stack="decoder" if queries == "prompt" else "cells",
                    layer=int(path.rpartition(".")[2]) if ".blocks." in name else spec.decoder.num_layers,
                    kind="self" if queries == keys else "cross",
                    queries=queries,
                    keys=keys,
                )
            )
        return tuple(infos)

    def example(self) -> TraceInput:
        return replace(shipped_example("pocket-detector"), points=((21.0, 92.0),))


def _remove_padding(record: Record, padded: Sequence[int], grid: Sequence[int]) -> None:
    """Replace queries and keys of image cells, and the weights, by those without the padded cells."""

    def crop(x: Tensor, dim: int) -> Tensor:
        cells = x.unflatten(dim, tuple(padded))
        return cells.narrow(dim, 0, grid[0]).narrow(dim + 1, 0, grid[1]).flatten(dim, dim + 1)

    for name in record.attentions():
        weights = record.weights(name)  # (1, H, T, S)
        for side, dim in zip(_TWO_WAY[name.rpartition(".")[2]], ("q", "k"), strict=True):
            if side == "image":
                record.tensors[f"{name}.{dim}"] = crop(record[f"{name}.{dim}"], 2)
                weights = crop(weights, 2 if dim == "q" else 3)
        record.tensors[f"{name}.weights"] = weights.float()


# a 4 that is nearly a 9, as pen strokes in shares of the image; after a digit of the MNIST test set
_STROKES = (
    *(((0.52, 0.25), (0.50, 0.25), (0.46, 0.33), (0.39, 0.43), (0.34, 0.52)),),
    *(((0.34, 0.52), (0.37, 0.57), (0.46, 0.57), (0.56, 0.54), (0.655, 0.50)),),
    *(((0.56, 0.27), (0.60, 0.31), (0.61, 0.39), (0.61, 0.49), (0.57, 0.61)),),
    *(((0.57, 0.61), (0.54, 0.71), (0.49, 0.82), (0.50, 0.89)),),
)


def drawing(bundle: Bundle) -> str:
    """Draw a handwritten 4 with light ink on a dark background; return it as a data: URL."""
    from PIL import Image, ImageDraw

    read: Any = getattr(bundle.spec, "input", None)
    height, width = (8 * side for side in read.image_size)
    image = Image.new("L", (width, height), 0)
    pen, draw = round(0.043 * min(height, width)), ImageDraw.Draw(image)  # half of the width of a line
    for stroke in _STROKES:
        points = [(x * width, y * height) for x, y in stroke]
        draw.line(points, fill=255, width=2 * pen)
        for x, y in points:
            draw.ellipse((x - pen, y - pen, x + pen, y + pen), fill=255)
    return data_url(image.resize(read.image_size[::-1], Image.Resampling.BOX))


def shipped_example(name: str) -> TraceInput:
    """Return the example of a shipped model."""
    return TraceInput.from_json(read_object(folder_of(name) / "job.json")["example"])


def data_url(image: Any) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


VIEWS = (DetectView, SegmentView)
