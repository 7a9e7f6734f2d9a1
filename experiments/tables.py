"""The tables of docs/results.md, from the recorded figures; bold means that the target was reached."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean

from experiments import ucr_baselines
from experiments.labels import RUN_LABELS, TEXT_JOBS, TEXT_JOBS_IN_PERCENT, TEXT_METRICS, VISION, WAYS
from experiments.records import RunRecord, runs_of
from experiments.summary import bold_if, by_kind, format_mean, of, seconds, size, table
from experiments.why_attention import NAMES

# Published: Transformer-Tiny (Wu et al. 2021), tokenized lowercase BLEU on 2016, 2017 and COCO.
TINY = {"en-de": (41.02, 33.36, 29.88), "en-fr": (61.80, 53.46, 44.52)}
CAPTIONS = ("2016", "2017", "coco")
# Published: PatchTST/64, PatchTST/42, DLinear, NLinear, each with its own context length; MSE.
ETT: Mapping[str, Sequence[float]] = {
    "etth1/96": (0.370, 0.375, 0.375, 0.374),
    "etth1/192": (0.413, 0.414, 0.405, 0.408),
    "etth1/336": (0.422, 0.431, 0.439, 0.429),
    "etth1/720": (0.447, 0.449, 0.472, 0.440),
    "etth2/96": (0.274, 0.274, 0.289, 0.277),
    "etth2/192": (0.341, 0.339, 0.383, 0.344),
    "etth2/336": (0.329, 0.331, 0.448, 0.357),
    "etth2/720": (0.379, 0.379, 0.605, 0.394),
    "ettm1/96": (0.293, 0.290, 0.299, 0.306),
    "ettm1/192": (0.333, 0.332, 0.335, 0.349),
    "ettm1/336": (0.369, 0.366, 0.369, 0.375),
    "ettm1/720": (0.416, 0.420, 0.425, 0.433),
    "ettm2/96": (0.166, 0.165, 0.167, 0.167),
    "ettm2/192": (0.223, 0.220, 0.224, 0.221),
    "ettm2/336": (0.274, 0.278, 0.281, 0.274),
    "ettm2/720": (0.362, 0.367, 0.397, 0.368),
}
# Drawn classes: name, and the share of drawings that should be read as asked
DRAWN = {"draw-digits": ("MNIST", 0.98), "draw-fashion": ("Fashion-MNIST", 1.01)}
DENOISERS = {"dit": "DiT", "unet": "UNet"}
NEAR = 0.005  # of MSE, within which a cell counts as matched


def captions(figures: Path) -> str:
    """Multi30k by the published protocol."""
    kinds, rows = by_kind(runs_of("multi30k", figures)), []
    for kind, anchors in TINY.items():
        rows.append([f"{kind}, Transformer-Tiny (published)", "2.6M", "", *(f"{one:.2f}" for one in anchors)])
        for way, name in (("", "ours"), ("-heavy", "ours with more dropout")):
            if runs := kinds.get(f"{kind}{way}", []):
                scores = [of(runs, f"bleu_{one}") for one in CAPTIONS]
                cells = [
                    bold_if(format_mean(one), mean(one) >= anchor)
                    for one, anchor in zip(scores, anchors, strict=True)
                ]
                rows.append([f"{kind}, {name}, {_seeds(runs)}", size(runs), seconds(runs), *cells])
    return table(("", "parameters", "training", "2016", "2017", "COCO"), rows)


def tried(figures: Path) -> str:
    """Multi30k into German with one or two settings changed."""
    names = {"en-de": f"{WAYS['']}: R-Drop 5, dropout 0.2, cosine schedule"}
    names |= {f"en-de-{way}": name for way, name in WAYS.items() if way not in ("", "cased")}
    kinds = by_kind(runs_of("multi30k", figures))
    rows = [
        [f"{name}, {_seeds(runs)}", *(format_mean(of(runs, f"bleu_{one}")) for one in ("val", *CAPTIONS))]
        for kind, name in names.items()
        if (runs := kinds.get(kind, []))
    ]
    return table(("", "validation", "2016", "2017", "COCO"), rows)


def cased(figures: Path) -> str:
    """Multi30k on plain text."""
    kinds, rows = by_kind(runs_of("multi30k", figures)), []
    for kind in ("en-de-cased", "en-fr-cased"):
        if runs := kinds.get(kind, []):
            cells = [format_mean(of(runs, f"{what}_{one}")) for one in CAPTIONS for what in ("bleu", "chrf")]
            rows.append([f"{kind.removesuffix('-cased')}, {_seeds(runs)}", *cells])
    head = [f"{name} {what}" for name in ("2016", "2017", "COCO") for what in ("BLEU", "chrF")]
    return table(("", *head), rows) if rows else NOT_RUN


def letters(figures: Path) -> str:
    """tiny-shakespeare."""
    kinds, rows = by_kind(runs_of("shakespeare", figures)), []
    for kind, name, anchor, most in (
        ("gpu", "GPU", ("1.4697", "about 3 min, A100"), 1.4697),
        ("cpu", "CPU", ("1.88", "about 3 min"), 1.80),
    ):
        rows.append([f"{name}, nanoGPT (published)", "", anchor[1], anchor[0], "", ""])
        if runs := kinds.get(kind, []):
            estimate = of(runs, "estimate")
            cells = [bold_if(format_mean(estimate, 4), mean(estimate) <= most)]
            cells += [format_mean(of(runs, one), 4) for one in ("exact", "strided")]
            rows.append(
                [f"{name}, ours ({runs[0].hardware}), {_seeds(runs)}", size(runs), seconds(runs), *cells]
            )
    return table(("", "parameters", "training", "nanoGPT estimate", "exact", "exact, stride 1/4"), rows)


def series(figures: Path) -> str:
    """ETT, cell by cell; ours of the weights best in validation, as the published ones were chosen."""
    runs = {one.name: one for one in runs_of("ett", figures)}
    rows = []
    for which in ("etth1", "etth2", "ettm1", "ettm2"):
        for horizon in (96, 192, 336, 720):
            cell = f"{which}/{horizon}"
            linear, repeat = (runs.get(f"{cell}/{kind}") for kind in ("linear", "repeat"))
            ours = [one for kind in "123" if (one := runs.get(f"{cell}/{kind}"))]
            anchors, result = ETT[cell], of(ours, "mse_published_early")
            near = bool(result) and round(mean(result), 3) <= round(min(anchors[:2]) + NEAR, 3)
            rows.append(
                [
                    f"{which.replace('ett', 'ETT')} {horizon}",
                    *(f"{one:.3f}" for one in anchors),
                    bold_if(format_mean(result, 3), near),
                    format_mean(of(ours, "mse_early"), 3),
                    format_mean(of(ours, "mse_published"), 3),
                    _cell(linear, "mse_published"),
                    _cell(linear, "mse"),
                    _cell(repeat, "mse"),
                ]
            )
    published = ("PatchTST/64", "PatchTST/42", "DLinear", "NLinear")
    return table(
        (
            "",
            *published,
            "ours",
            "ours, all windows",
            "ours, last step",
            "linear",
            "linear, all windows",
            "naive, all windows",
        ),
        rows,
    )


def _cell(run: RunRecord | None, figure: str) -> str:
    return f"{run.figures[figure]:.3f}" if run else ""


def labels(figures: Path) -> str:
    """Accuracy: reviews, digits, photographs."""
    row_names = ("nsmc", "mnist", "cifar", "fashion")
    reviews, digits, photographs, fashion = (by_kind(runs_of(row, figures)) for row in row_names)
    rows = [["Korean reviews, self-attentive BiLSTM (published, another split)", "", "", "86.37", ""]]
    rows += _labelled(reviews, RUN_LABELS["nsmc"], "Korean reviews")  # not comparable: nothing is bold
    rows += _labelled(digits, {"": "ours"}, "MNIST", 99.3)
    rows += _labelled(photographs, RUN_LABELS["cifar"], "CIFAR-10, 8,000 images")
    rows += _labelled(fashion, RUN_LABELS["fashion"], "Fashion-MNIST", 95.0)
    return table(("", "parameters", "training", "accuracy", "without repeated reviews"), rows)


def vision(figures: Path) -> str:
    """Detection, segmentation and retrieval: the rows that were run."""
    rows = []
    for row, (data, metrics) in VISION.items():
        kinds = by_kind(runs_of(row, figures))
        for kind, name in RUN_LABELS[row].items():
            if runs := kinds.get(kind, []):
                scores = [
                    bold_if(f"{label} {format_mean(of(runs, figure), 3)}", mean(of(runs, figure)) >= least)
                    for figure, (label, least) in metrics.items()
                ]
                rows.append([data, f"{name}, {_seeds(runs)}", size(runs), seconds(runs), ", ".join(scores)])
    return table(("", "model", "parameters", "training", "scores"), rows)


def drawings(figures: Path) -> str:
    """Drawings of classes, and real test images measured in the same way."""
    columns = ("agreement", "frechet", "precision", "recall", "copies")
    rows = []
    for row, (name, target) in DRAWN.items():
        for kind, runs in by_kind([one for one in runs_of(row, figures) if one.of == "loss"]).items():
            for ending, first in (
                ("", [f"{name}, {DENOISERS[kind]}, {_seeds(runs)}", size(runs), seconds(runs)]),
                (" of real images", [f"{name}, real test images", "", ""]),
            ):
                values = {column: of(runs, f"{column}{ending}") for column in columns}
                cells = {key: format_mean([100 * one for one in found]) for key, found in values.items()}
                reached = not ending and mean(values["agreement"]) >= target
                cells["agreement"] = bold_if(cells["agreement"], reached)
                rows.append([*first, *({**cells, "frechet": format_mean(values["frechet"])}.values())])
    titles = ("read as asked", "Frechet distance in our features", "precision", "recall", "copies")
    return table(("", "parameters", "training", *titles), rows)


def _labelled(
    kinds: Mapping[str, list[RunRecord]], names: Mapping[str, str], task: str, least: float = 101.0
) -> list[list[str]]:
    return [
        [
            f"{task}, {name}, {_seeds(runs)}",
            size(runs),
            seconds(runs),
            bold_if(format_mean(of(runs, "accuracy")), mean(of(runs, "accuracy")) >= least),
            format_mean(of(runs, "accuracy of unseen")),
        ]
        for kind, name in names.items()
        if (runs := kinds.get(kind, []))
    ]


def against_nanogpt(figures: Path) -> str:
    """Language models in the same seconds."""
    rows = []
    for row, name in (("wikitext2", "WikiText-2"), ("enwik8", "enwik8, first 10 MB")):
        for kind, runs in by_kind(runs_of(row, figures)).items():
            cells = [format_mean(of(runs, one), 4) for one in ("valid", "test")]
            rows.append(
                [f"{name}, {kind}", size(runs), format_mean(of(runs, "seconds of steps"), 0) + " s", *cells]
            )
    return table(("", "parameters", "steps", "validation", "test"), rows) if rows else NOT_RUN


def copying(figures: Path) -> str:
    """Strings copied, by length."""
    return _exact(figures, "copy")


def recalling(figures: Path) -> str:
    """Values recalled, by how many keys there are."""
    return _exact(figures, "recall")


def recall_few_keys(figures: Path) -> str:
    """The same, learned from 8 keys at most."""
    return _exact(figures, "few")


def recalling_many(figures: Path) -> str:
    """As many keys as in `recalling`, after the few."""
    return _exact(figures, "many")


def _exact(figures: Path, task: str) -> str:
    """Exact answers at each size, in percent."""
    kinds = by_kind(runs_of("recall", figures))
    result = {name: runs for kind, name in NAMES.items() if (runs := kinds.get(f"{task}-{kind}", []))}
    if not result:
        return NOT_RUN
    exact = [one for one in next(iter(result.values()))[0].figures if one.startswith("exact at ")]
    rows = [
        [
            f"{name}, {_seeds(runs)}",
            size(runs),
            *(format_mean([100 * x for x in of(runs, one)], 1) for one in exact),
        ]
        for name, runs in result.items()
    ]
    return table(("exact match, %", "parameters", *(one.removeprefix("exact at ") for one in exact)), rows)


def restored(figures: Path) -> str:
    """Restoring sentences, by kind of damage."""
    kinds = by_kind(runs_of("restore", figures))
    result = {name: runs for kind, name in RUN_LABELS["restore"].items() if (runs := kinds.get(kind, []))}
    if not result:
        return NOT_RUN
    rows = []
    for damage, name in KINDS_OF_DAMAGE.items():
        as_it_is = format_mean(of(next(iter(result.values()))[:1], f"{damage} chrf as damaged"), 1)
        cells = [
            cell
            for runs in result.values()
            for cell in (
                format_mean(of(runs, f"{damage} chrf"), 1),
                format_mean([100 * one for one in of(runs, f"{damage} exact")], 1),
            )
        ]
        rows.append([name, as_it_is, *cells])
    head = [
        f"{name}, {_seeds(runs)}, {what}"
        for name, runs in result.items()
        for what in ("chrF", "exact match, %")
    ]
    return table(("", "chrF before", *head), rows)


def translator(figures: Path) -> str:
    """The default translator's BLEU by set and direction, at each step on its way."""
    steps = {one.name.partition("/")[0]: one.figures for one in runs_of("pocket", figures)}
    names = [name for name in TRANSLATORS if name in steps]
    if not names:
        return NOT_RUN
    rows = []
    for kind, title in MEASURED.items():
        for way in ("en-de", "de-en", "en-fr", "fr-en", "en-ko", "ko-en"):
            result = next(
                (one for one in ("bleu", "bleu-char") if f"{one} {kind} {way}" in steps[names[0]]), ""
            )
            if result:
                scores = [steps[name][f"{result} {kind} {way}"] for name in names]
                letters = ", characters" if result == "bleu-char" else ""
                rows.append([f"{title} {way}{letters}", *(f"{one:.1f}" for one in scores)])
    return table(("BLEU", *names), rows)


def archives(figures: Path) -> str:
    """UCR and UEA sets with the published split, and two baselines."""
    ours, found = (figures / name for name in ("ucr.json", "ucr_baselines.json"))
    if not (ours.is_file() and found.is_file()):
        return NOT_RUN
    listed = ucr_baselines.table(json.loads(found.read_text()), json.loads(ours.read_text()))
    return listed.replace("**", "")  # bold means a target here


def text_jobs(figures: Path) -> str:
    """Entities, classes, answers, similarity and titles; a line per row and test part."""
    path = figures / "fine_tuning.json"
    if not path.is_file():
        return NOT_RUN
    runs = {name: run for name, run in json.loads(path.read_text())["runs"].items() if "test" in run}
    rows = []
    for row, (task, model) in TEXT_JOBS.items():
        seeds = [run for name, run in runs.items() if name.startswith(f"{row}/") and "parameters" in run]
        if not seeds:
            continue
        lines = {f"{model}, {len(seeds)} seed{'s' if len(seeds) > 1 else ''}": seeds}
        if base := runs.get(f"{row}/untouched"):
            lines = {f"{model}, not fine-tuned": [base], **lines}
        scale = 1 if row in TEXT_JOBS_IN_PERCENT else 100
        for test, metrics in seeds[0]["test"].items():
            for name, some in lines.items():
                values = {one: [scale * run["test"][test][one] for run in some] for one in metrics}
                scores = (f"{TEXT_METRICS[one]} {format_mean(values[one], 1)}" for one in metrics)
                parameters = f"{seeds[0]['parameters'] / 1e6:.2f}M"
                rows.append([task, name, parameters, TEXT_TESTS[test], ", ".join(scores)])
    return table(("", "model", "parameters", "tested on", "scores"), rows)


def _seeds(runs: Sequence[RunRecord]) -> str:
    return f"{len(runs)} seed{'s' if len(runs) > 1 else ''}"


TRANSLATORS = ("base", "small", "student", "graduate", "polished")  # the steps on the way
MEASURED = {"tatoeba": "Tatoeba", "debian": "Debian", "flores": "FLORES", "news": "news"}
KINDS_OF_DAMAGE = {"trim": "trimmed", "gap": "words removed", "shuffle": "shuffled", "all": "all three"}
TEXT_TESTS = {
    "dev": "dev part",
    "test": "test part",
    "TyDi": "held-out tenth",
    "XQuAD": "XQuAD",
    "KorQuAD": "KorQuAD 1.0 dev",
}
NOT_RUN = "*Not run yet.*"
TABLES: Mapping[str, Callable[[Path], str]] = {
    "captions": captions,
    "drawings": drawings,
    "tried": tried,
    "cased": cased,
    "letters": letters,
    "series": series,
    "archives": archives,
    "labels": labels,
    "vision": vision,
    "text-jobs": text_jobs,
    "against-nanogpt": against_nanogpt,
    "copying": copying,
    "recalling": recalling,
    "recalling-few": recall_few_keys,
    "recalling-many": recalling_many,
    "restored": restored,
    "translator": translator,
}
