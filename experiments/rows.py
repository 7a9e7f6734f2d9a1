"""The rows of docs/results.md, in order: names, titles and runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the results.

    title: what is measured; module: the file in experiments/ whose `run(workspace, name)` makes one run
    arguments: passed to its `run`, if a module serves several rows
    runs: the names of its runs, e.g. "1" for a seed or "etth1/96/1"
    takes: which of the options `seconds` and `most` apply
    """

    title: str
    module: str
    arguments: tuple[str, ...] = ()
    runs: tuple[str, ...]
    takes: tuple[Literal["seconds", "most"], ...] = ()


def seeds(*kinds: str, count: int = 3) -> tuple[str, ...]:
    """Names of runs: each kind with each seed.

    >>> seeds("en-de", count=2)
    ('en-de/1', 'en-de/2')
    """
    return tuple(
        f"{kind}/{seed}" if kind else str(seed) for kind in kinds or ("",) for seed in range(1, count + 1)
    )


UCR_SETS = (  # the slowest first
    *("OSULeaf", "CricketX", "PhalangesOutlinesCorrect", "JapaneseVowels", "BasicMotions", "MedicalImages"),
    *("Trace", "Coffee", "ArrowHead", "PowerCons", "GunPoint", "ECGFiveDays", "CBF", "ECG200"),
    *("SyntheticControl", "ItalyPowerDemand"),
)

ROWS: dict[str, Row] = {
    "multi30k": Row(
        title="Multi30k: English to German and French, at most 2.7M parameters",
        module="multi30k",
        runs=(
            *seeds("en-de", "en-fr", "en-de-cased", "en-fr-cased", "en-de-heavy", "en-fr-heavy"),
            *seeds("en-de-plain", "en-de-weak", "en-de-dropout15", "en-de-dropout3", count=1),
            *seeds("en-de-dropout3weak", "en-de-deep", count=1),
            *seeds("en-de-deepweak", "en-de-recut", "en-de-recutweak"),
        ),
    ),
    "ett": Row(
        title="ETT: electricity load and oil temperature, 96 to 720 steps ahead",
        module="ett",
        runs=tuple(
            f"{which}/{horizon}/{kind}"
            for which in ("etth1", "etth2", "ettm1", "ettm2")
            for horizon in (96, 192, 336, 720)
            for kind in ("1", "2", "3", "linear", "repeat")
        ),
    ),
    "ucr": Row(
        title="UCR and UEA archives: classification of time series, 16 sets",
        module="ucr",
        runs=seeds(*UCR_SETS),
    ),
    "pocket-series": Row(
        title="pocket-series: a small forecaster trained on synthetic series",
        module="pocket_series",
        runs=("1",),
    ),
    "recall": Row(
        title="copy and recall: Transformer, LSTM with attention, LSTM alone",
        module="recall",
        runs=(
            *seeds("copy-transformer", "copy-lstm", "copy-lstm-alone"),
            *seeds("recall-transformer", "recall-lstm", "recall-lstm-alone"),
            *seeds("few-transformer", "few-lstm", "few-lstm-alone"),
            *seeds("many-transformer", "many-lstm", "many-lstm-alone"),
            "speed/1",
        ),
    ),
    "restore": Row(
        title="restoring damaged sentences: Transformer and LSTM",
        module="restoration",
        runs=seeds("transformer", "lstm"),
    ),
    "shakespeare": Row(
        title="tiny-shakespeare by characters: one minute on a GPU, three on a CPU",
        module="shakespeare",
        runs=(
            *seeds("gpu", "cpu"),
            *seeds("tried-learned-positions", "tried-less-dropout", "tried-more-dropout", count=1),
        ),
    ),
    "wikitext2": Row(
        title="WikiText-2: nanoGPT of the same size, about the same training time",
        module="language",
        arguments=("wikitext2",),
        runs=(*seeds("ours", "nanogpt"), "tried-learned-positions/1"),
        takes=("seconds",),
    ),
    "enwik8": Row(
        title="enwik8, 10 MB by bytes: nanoGPT of the same size, about the same training time",
        module="language",
        arguments=("enwik8",),
        runs=(*seeds("ours", "nanogpt"), "tried-learned-positions/1"),
        takes=("seconds",),
    ),
    "pocket-lm": Row(
        title="pocket-lm: the pretrained language model",
        module="pocket_lm",
        runs=("1",),
    ),
    "nsmc": Row(
        title="nsmc: Korean movie reviews, from scratch (not the published split)",
        module="reviews",
        runs=(
            *seeds("recipe"),
            *seeds(
                "plain",
                "no-recut",
                "more-recut",
                "no-guess",
                "no-hide",
                "no-twice",
                "more-guess",
                "unigram",
                count=1,
            ),
            *seeds("vocab16k", "vocab4k", "wide", "shallow", "long", "ngrams", count=1),
            *seeds("after-guessing"),
        ),
    ),
    "mnist": Row(
        title="MNIST: Vision Transformer from scratch",
        module="digits",
        arguments=("mnist", "images-digits"),
        runs=seeds(),
    ),
    "cifar": Row(
        title="CIFAR-10, 8,000 images: Vision Transformer and ResNet, same epochs (own split)",
        module="pictures",
        runs=seeds("vit", "convolution"),
    ),
    "caption-scenes": Row(
        title="Sentences about composed scenes in four languages, held-out pairs of things",
        module="caption_scenes",
        runs=seeds(),
        takes=("seconds", "most"),
    ),
    "vqa-scenes": Row(
        title="Questions about composed scenes in English and Korean, held-out pairs of things",
        module="vqa_scenes",
        runs=seeds("vilt", "question-only"),
        takes=("seconds", "most"),
    ),
    "vqa-easy": Row(
        title="easy-VQA: a shape of one color, 38,575 questions",
        module="vqa_tables",
        arguments=("easy",),
        runs=seeds(),
        takes=("seconds",),
    ),
    "vqa-nlvr": Row(
        title="NLVR: true and false sentences about three boxes, 989 for training",
        module="vqa_tables",
        arguments=("nlvr",),
        runs=seeds(),
        takes=("seconds",),
    ),
    "vlm-scenes": Row(
        title="pocket-lm answers questions about scenes: a connector alone, and with LoRA",
        module="vlm_scenes",
        runs=seeds("lora", "connector"),
        takes=("seconds", "most"),
    ),
    "caption-coco": Row(
        title="COCO captions, 101 photographs: pocket-captioner, fine-tuned, and the nearest neighbor",
        module="caption_coco",
        runs=("1",),
        takes=("seconds", "most"),
    ),
    "detection-scenes": Row(
        title="Detection in composed scenes: 60 kinds of emoji, unseen arrangements",
        module="detection_scenes",
        runs=seeds("yolos", "detr"),
        takes=("seconds", "most"),
    ),
    "detection-bccd": Row(
        title="BCCD: blood cells, 205 training images",
        module="detection_bccd",
        runs=seeds("scenes"),
        takes=("seconds",),
    ),
    "segmentation-nuclei": Row(
        title="Cell nuclei: instance masks, 506 training images",
        module="segmentation_nuclei",
        runs=seeds(),
        takes=("seconds",),
    ),
    "segmentation-camvid": Row(
        title="CamVid: 11 classes of pixels, 367 training images",
        module="segmentation_camvid",
        runs=seeds(),
        takes=("seconds",),
    ),
    "contrastive-emoji": Row(
        title="Emoji and their names in English and Korean: 300 emoji that training never saw",
        module="contrastive_emoji",
        runs=seeds("pocket", "minilm"),
        takes=("seconds",),
    ),
    "fashion": Row(
        title="Fashion-MNIST: Swin and Vision Transformer from scratch, equal time",
        module="images_fashion_mnist",
        runs=seeds("swin", "vit"),
        takes=("seconds",),
    ),
    "draw-digits": Row(
        title="Drawn digits (MNIST): DiT and a UNet of equal cost, flow matching on pixels",
        module="draw_classes",
        arguments=("draw-digits",),
        runs=seeds("dit", "unet"),
        takes=("seconds", "most"),
    ),
    "draw-fashion": Row(
        title="Drawn clothes (Fashion-MNIST): DiT and a UNet of equal cost",
        module="draw_classes",
        arguments=("draw-fashion",),
        runs=("classifier/1", *seeds("dit", "unet")),
        takes=("seconds", "most"),
    ),
    "draw-cifar": Row(
        title="Drawn photographs (CIFAR-10, 7,600 images): DiT-S/2 and a UNet of equal cost",
        module="draw_classes",
        arguments=("draw-cifar",),
        runs=("classifier/1", *seeds("dit", "unet")),
        takes=("seconds", "most"),
    ),
    "draw-emoji": Row(
        title="Drawn emoji from texts in English and Korean: held-out styles and unseen names",
        module="draw_emoji",
        runs=("data", "judge/1", "wide/1", "vq/1", "tokens/1", "dit/1"),
        takes=("seconds", "most"),
    ),
    "pocket-digits": Row(
        title="pocket-digits: at most 300,000 parameters",
        module="digits",
        arguments=("pocket-digits", "pocket-digits"),
        runs=("1",),
    ),
    "shipped": Row(
        title="the shipped models with int8 or bfloat16 weights, on a CPU",
        module="shipped",
        runs=(
            "pocket-data",
            "pocket-lm-data",
            "digits",
            "series",
            "detector",
            "captioner",
            "vqa",
            "phrases",
            "scenes",
            "photographs",
        ),
        takes=("most",),
    ),
    "pocket": Row(
        title="pocket: English to and from German, French and Korean",
        module="pocket",
        runs=("base/1", "small/1", "student/1", "graduate/1", "polished/1"),
        takes=("most",),
    ),
}
