"""The labels of runs in tables and figures."""

from __future__ import annotations

import math
from collections.abc import Mapping

from experiments.why_attention import NAMES

TASKS = {
    "copy": "copy, up to 60 symbols",
    "recall": "recall, up to 32 keys",
    "few": "recall, up to 8 keys",
    "many": "recall, up to 32 keys after 8",
}
# Multi30k: what differs from the recipe, in the order of the table
WAYS = {
    "": "the recipe",
    "dropout15": "dropout 0.15",
    "weak": "R-Drop 2",
    "dropout3": "dropout 0.3",
    "dropout3weak": "dropout 0.3, R-Drop 2",
    "heavy": "dropout 0.3, inverse square root schedule",
    "deepweak": "vocabulary of 5,000, 6 layers, R-Drop 2",
    "deep": "vocabulary of 5,000, 6 layers",
    "recut": "BPE dropout 0.1",
    "recutweak": "BPE dropout 0.1, R-Drop 2",
    "plain": "no R-Drop",
    "cased": "cased text",
}
# by row: the name of each kind of run
RUN_LABELS: Mapping[str, Mapping[str, str]] = {
    "restore": {"transformer": "Transformer", "lstm": "LSTM"},
    "nsmc": {
        "recipe": "ours",
        "after-guessing": "ours, after masked-language-model pretraining",
        "ngrams": "linear model on character n-grams",
    },
    "cifar": {"vit": "ViT", "convolution": "ResNet"},
    "fashion": {"swin": "Swin", "vit": "ViT"},
    "caption-scenes": {"": "ViT-GPT2"},
    "caption-coco": {"": "pocket-captioner, fine-tuned"},
    "vqa-scenes": {"vilt": "ViLT", "question-only": "ViLT without the image"},
    "vqa-easy": {"": "ViLT"},
    "vqa-nlvr": {"": "ViLT"},
    "vlm-scenes": {"lora": "pocket-lm, connector and LoRA", "connector": "pocket-lm, connector alone"},
    "detection-scenes": {"yolos": "YOLOS", "detr": "DETR"},
    "detection-bccd": {"scenes": "pocket-detector, fine-tuned"},
    "segmentation-nuclei": {"": "ViT"},
    "segmentation-camvid": {"": "DINOv2-S"},
    "contrastive-emoji": {"pocket": "DINOv2-S and pocket", "minilm": "DINOv2-S and MiniLM"},
    "draw-digits": {"dit": "DiT", "unet": "UNet"},
    "draw-fashion": {"dit": "DiT", "unet": "UNet"},
    "draw-cifar": {"dit": "DiT-S/2", "unet": "UNet"},
    "draw-emoji": {"dit": "DiT with text", "tokens": "image tokens"},
}
# the scores of drawings, in the features of a classifier of ours; without targets if there is no other entry
DRAWN: Mapping[str, tuple[str, float]] = {
    "agreement": ("read as asked", math.inf),
    "agreement of real images": ("real images", math.inf),
    "frechet": ("Frechet distance in our features", math.inf),
    "precision": ("precision", math.inf),
    "recall": ("recall", math.inf),
    "recall of real images": ("recall of real images", math.inf),
    "copies": ("copies", math.inf),
}
# rows of vision: the data, and the name and target of each figure (infinite if there is none)
VISION: Mapping[str, tuple[str, Mapping[str, tuple[str, float]]]] = {
    "caption-scenes": (
        "captions of scenes, four languages",
        {"sentences": ("whole sentences", 0.9), "objects": ("objects", 0.95)},
    ),
    "caption-coco": (
        "captions of photographs (COCO)",
        {"cider": ("CIDEr-D", math.inf), "nearest cider": ("nearest neighbor", math.inf)},
    ),
    "vqa-scenes": ("questions about scenes, two languages", {"accuracy": ("accuracy", 95.0)}),
    "vlm-scenes": ("questions about scenes, English", {"accuracy": ("accuracy", 80.0)}),
    "vqa-easy": (
        "easy-VQA",
        {"accuracy": ("accuracy", math.inf), "majority of the question": ("without images", math.inf)},
    ),
    "vqa-nlvr": (
        "NLVR",
        {"accuracy": ("accuracy", math.inf), "majority": ("without images", math.inf)},
    ),
    "detection-scenes": (
        "composed scenes",
        {"ap": ("AP", 0.75), "ap50": ("AP50", 0.95), "ap75": ("AP75", math.inf)},
    ),
    "detection-bccd": ("blood cells (BCCD)", {"ap50": ("AP50", 0.85), "ap": ("AP", math.inf)}),
    "segmentation-nuclei": (
        "cell nuclei",
        {"ap50": ("mask AP50", 0.75), "ap": ("mask AP", math.inf), "pq": ("PQ", math.inf)},
    ),
    "segmentation-camvid": (
        "street scenes (CamVid)",
        {"miou": ("mIoU", 0.7), "pixel_accuracy": ("pixel accuracy", math.inf)},
    ),
    "contrastive-emoji": (
        "unseen emoji",
        {"en emoji to name": ("recall@1 English", 0.4), "ko emoji to name": ("Korean", 0.4)},
    ),
    "draw-digits": ("drawn digits (MNIST)", {**DRAWN, "agreement": ("read as asked", 0.98)}),
    "draw-fashion": ("drawn clothes (Fashion-MNIST)", DRAWN),
    "draw-cifar": ("drawn photographs (CIFAR-10, 7,600 images)", DRAWN),
    "draw-emoji": (
        "drawn emoji, held-out styles and unseen names",
        {
            "held-out styles en": ("agreement at 1 of 300, English", 0.5),
            "held-out styles ko": ("Korean", 0.5),
            "held-out styles en, real": ("real drawings", math.inf),
            "unseen names en, share of real": ("unseen names, share of real drawings", 0.8),
            "held-out styles en, copies": ("copies", math.inf),
        },
    ),
}
# experiments/fine_tuning.py: the task and the model of each row, in the order of the table
TEXT_JOBS = {
    "ner-en": ("WikiANN entities, English", "MiniLM"),
    "ner-ko": ("WikiANN entities, Korean", "from scratch"),
    "intent": ("3i4k, 7 Korean intents", "from scratch"),
    "hate": ("Korean hate speech, 3 classes", "from scratch"),
    "qa-en": ("answers, English TyDi", "MiniLM"),
    "qa-ko": ("answers, Korean TyDi", "from scratch"),
    "sts-en": ("STS benchmark, English", "MiniLM"),
    "sts-ko": ("KorSTS, Korean", "from scratch"),
    "titles": ("titles of ACL abstracts", "from scratch"),
}
TEXT_METRICS = {
    "accuracy": "accuracy",
    "exact_match": "exact match",
    "f1": "F1",
    "precision": "precision",
    "recall": "recall",
    "spearman": "Spearman",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
}
TEXT_JOBS_IN_PERCENT = ("qa-en", "qa-ko", "titles")  # the scores of the others are from 0 to 1


def run_label(row: str, kind: str) -> tuple[str, str]:
    """The group in which a kind of run is shown, and its label.

    >>> run_label("recall", "many-lstm-alone"), run_label("multi30k", "en-de-weak"), run_label("cifar", "vit")
    (('recall, up to 32 keys after 8', 'LSTM alone'), ('en-de', 'R-Drop 2'), ('', 'ViT'))
    """
    first, _, rest = kind.partition("-")
    if row == "recall" and first in TASKS:
        return TASKS[first], NAMES[rest]
    if row == "multi30k":
        into, _, way = rest.partition("-")
        return f"{first}-{into}", WAYS[way]
    among, _, name = kind.rpartition("/")
    return among, RUN_LABELS.get(row, {}).get(name, name)
