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
from glassformer.core.observe import Observer, Record
from glassformer.core.vision.heads import box_corners
from glassformer.data.image_files import decode_base64
from glassformer.errors import UnsupportedError
from glassformer.interpret import schema
from glassformer.interpret.outline import describe_stacks
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
from glassformer.processors.image import VisionProcessor
from glassformer.tasks.classification import label_names
from glassformer.tasks.segmentation import PromptSegmenter, SegmentationPrompt

MIN_SCORE = 0.5  # of the objects in an outcome
_KINDS: dict[str, Any] = {
    "self_attn": "tokens",
    "cross_attn": "tokens_to_image",
    "image_attn": "image_to_tokens",
    "final_attn": "tokens_to_image",
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
        return TraceInput(image=scene())


class SegmentView(View):
    """A promptable segmenter, with the two-way attention between prompt tokens and image.

    The image is encoded once; its embedding is kept in the self.bundle, so that another prompt only runs the
    decoder.
    """

    kind, needs = "segment", ("image",)

    @torch.inference_mode()
    def run(self, input: TraceInput, interventions: Sequence[Intervention]) -> ViewRun:
        """Return masks (M, h, w) and attention weights (H, T, T), (H, T, S) or (H, S, T).

        Without points and box, the prompt is the center of the image. Cells and masks are those of the image
        without its padding.
        """
        if interventions:
            raise UnsupportedError(self.bundle.display_name, "interventions")
        start = time.perf_counter()
        spec: Any = self.bundle.spec
        task = PromptSegmenter(
            self.bundle, prompts=[SegmentationPrompt(points=[(0, 0)])], multimask_output=True
        )
        image = task.encode(decode_base64(input.image or ""))
        if not (input.points or input.background_points or input.box):
            height, width = image.size
            input = replace(input, points=((width / 2, height / 2),))
        prompt = SegmentationPrompt(
            points=input.points or (), background_points=input.background_points or (), box=input.box
        )
        observer = Observer(("decoder.*.q", "decoder.*.k"))
        output = task.decode(image, prompt, observer)
        record, padded_grid = observer.record, image.embedding.shape[-2:]
        grid = task.unpadded(padded_grid, image)
        tensors: dict[str, Tensor] = {}
        attentions = []
        for name in record.attentions():
            path, _, last = name.rpartition(".")
            kind = _KINDS[last]
            weights = record.weights(name)[0].float()  # (H, T, S)
            if kind == "tokens_to_image":
                weights = weights.unflatten(-1, padded_grid)[..., : grid[0], : grid[1]].flatten(-2)
            if kind == "image_to_tokens":
                weights = weights.unflatten(1, padded_grid)[:, : grid[0], : grid[1]].flatten(1, 2)
            tensors[f"{name}.weights"] = weights
            layer = int(path.rpartition(".")[2]) if ".blocks." in name else spec.decoder.num_layers
            attentions.append(
                schema.TwoWayAttention(weights=f"{name}.weights", layer=layer, kind=kind, heads=len(weights))
            )
        masks, iou = output.masks[0, 0].float(), output.iou[0, 0].float()
        order = task.rank(output, image, prompt)
        rows, columns = task.unpadded(masks.shape[-2:], image)
        tensors["segment.masks"] = masks[order, :rows, :columns]
        labels = [1] * len(prompt.points) + [0] * len(prompt.background_points)
        prepared = PreparedInput(
            kind=self.kind,
            input=input,
            sequences=prompt_sequences(spec.head.num_masks, labels, prompt.box is not None, grid),
            inputs={},
            size=image.size,
        )
        scores = tuple(iou[order].tolist())
        outcome = schema.SegmentOutcome(
            iou=scores, masks="segment.masks", size=image.size, attentions=tuple(attentions)
        )
        return ViewRun(prepared, Record(), outcome, tensors, time.perf_counter() - start)

    def example(self) -> TraceInput:
        return TraceInput(image=scene(), points=((84.0, 92.0),))


def drawing(bundle: Bundle) -> str:
    """Draw a light four that is nearly a nine on a dark background; return it as a data: URL."""
    from PIL import Image, ImageDraw

    read: Any = getattr(bundle.spec, "input", None)
    height, width = read.image_size
    side, fine = min(height, width), 8  # drawn larger and scaled down, for soft edges
    image = Image.new("L", (width * fine, height * fine), 0)
    arm = (*_curve((0.48, 0.24), (0.42, 0.26), (0.3, 0.4), (0.36, 0.5)),)
    arm += (*_curve((0.36, 0.5), (0.42, 0.58), (0.56, 0.54), (0.64, 0.46)),)
    stem = _curve((0.66, 0.24), (0.64, 0.45), (0.6, 0.65), (0.56, 0.82))
    pen = side * fine * 0.043
    for stroke in (arm, stem):
        for x, y in ((x * width * fine, y * height * fine) for x, y in stroke):
            ImageDraw.Draw(image).ellipse((x - pen, y - pen, x + pen, y + pen), fill=255)
    return data_url(image.resize((width, height), Image.Resampling.LANCZOS))


def _curve(*points: tuple[float, float]) -> list[tuple[float, float]]:
    """Return points on the Bezier curve with four control points."""
    curve = []
    for t in (n / 60 for n in range(61)):
        factors = ((1 - t) ** 3, 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t**2, t**3)
        x, y = (sum(f * p[axis] for f, p in zip(factors, points, strict=True)) for axis in (0, 1))
        curve.append((x, y))
    return curve


def scene() -> str:
    """Draw a circle, a square and a triangle into one image; return it as a data: URL."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (320, 240), "#dfe7ef")
    draw = ImageDraw.Draw(image)
    draw.ellipse((32, 40, 136, 144), fill="#d7263d")
    draw.rectangle((180, 30, 290, 120), fill="#1b7fbd")
    draw.polygon([(210, 140), (140, 226), (286, 226)], fill="#2e933c")
    return data_url(image)


def data_url(image: Any) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


VIEWS = (DetectView, SegmentView)
