"""Draw the pictures of docs/concepts: `python -m docs.concept_pictures`, from the root.

Boxes and arrows are in `docs/drawings.py`. The tensors come from a small Transformer that learns to spell out
dates, as in the demo (a minute).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

import glassformer
from docs import drawings
from glassformer import Mask, plotting
from glassformer.cli.demo import date_pairs
from glassformer.data.image_files import load_image
from glassformer.interpret.schema import TraceInput
from glassformer.interpret.trace import trace_model
from glassformer.plotting.canvas import BLUE, GREEN, INK, ORANGE, figure_style, hide_frame, new_figure
from glassformer.plotting.fonts import find_font, label

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
SCENE = ROOT / "examples" / "data" / "caption-scene.png"
DATE = "2024-03-17"
PARTS = (
    "scaled_dot_product_attention",
    "multi_head_attention",
    "feed_forward_network",
    "encoder_layer",
    "decoder_layer",
    "encoder_decoder",
    "transformer_encoder",
    "transformer",
    "packages",
)
LABELS = {"norm": "norm", "attn": "attention", "ffn": "feed-forward"}
COLORS = {"norm": ORANGE, "attn": BLUE, "ffn": GREEN}


def draw_parts() -> None:
    for name in PARTS:
        plotting.save(getattr(drawings, name)(), FOLDER / f"{name.replace('_', '-')}.png")


def draw_positions() -> None:
    plotting.save(plotting.positional_encoding(64), FOLDER / "positional-encoding.png")


def draw_masks() -> None:
    padding = torch.arange(8)[None] < 5
    documents = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2]])
    masks = {
        "causal": Mask(causal=True),
        "causal, window 3": Mask(causal=True, window=3),
        "padding": Mask(padding=padding),
        "causal, segments": Mask(causal=True, segments=documents),
    }
    dense_masks = {}
    for name, mask in masks.items():
        dense = mask.dense(8, 8)
        assert dense is not None
        dense_masks[name] = dense.expand(1, 1, 8, 8)
    plotting.save(plotting.mask_row(dense_masks), FOLDER / "masks.png")


def draw_attention(steps: int = 900, folder: Path = FOLDER) -> None:
    """Draw what flows through a Transformer while it spells out a date."""
    with TemporaryDirectory() as run:
        trace = trace_model(train_dates(steps, Path(run)), TraceInput(text=DATE))
    record = trace.record
    keys = [token.piece for token in trace.sequence("source").tokens]
    # row n predicts token n + 1
    queries = [*(token.piece for token in trace.sequence("target").tokens[1:]), "end"]
    cross = "decoder.blocks.1.cross_attn"
    heads = record.weights(cross)[0]  # (H, T, S)
    title = f"{DATE} → {''.join(queries[:-1])}"
    names = {"queries": queries, "keys": keys}
    figure = plotting.attention_map(
        heads.mean(0), **names, title=title, query_name="output", key_name="input"
    )
    figures = {"attention": figure}
    title = "The last cross-attention, head by head"
    figures["heads"] = plotting.attention_grid(heads, **names, title=title)
    embedded, positions = record["src_embed.out"][0], record["src_embed.position"][0]
    figures["positions-added"] = tensor_row(
        {"embedding × √D": embedded - positions, "+ positions": positions, "= x": embedded},
        rows=keys,
        same_scale=True,
    )
    scores, weights = "Q Kᵀ / √d_k", "softmax: weights"
    figures["attention-steps"] = tensor_row(
        {
            scores: record.scores(cross, head=1)[0],
            weights: heads[1],
            "V": record[f"{cross}.v"][0, 1],
            "weights × V: output": record[f"{cross}.heads"][0, 1],
        },
        rows=queries,
        columns={scores: keys, weights: keys},
        other_rows={"V": keys},
    )
    block = "encoder.blocks.1"
    figures["feed-forward"] = tensor_row(
        {
            "x": record[f"{block}.resid_self"][0],
            "x W₁ + b₁": record[f"{block}.ffn.up"][0],
            "ReLU": record[f"{block}.ffn.act"][0],
            "out": record[f"{block}.ffn.down"][0],
        },
        rows=keys,
        widths=(1, 2, 2, 1),
    )
    figures["encoder-stream"] = tensor_row(
        {
            "x": record[f"{block}.resid_in"][0],
            "attention": record[f"{block}.self_attn.out"][0],
            "norm(x + …)": record[f"{block}.resid_self"][0],
            "feed-forward": record[f"{block}.ffn.down"][0],
            "norm(x + …) ": record[f"{block}.resid_out"][0],
        },
        rows=keys,
    )
    own, across = "self-attention: causal", "cross-attention"
    inputs = [token.piece for token in trace.sequence("target").tokens]
    figures["decoder-attention"] = tensor_row(
        {own: record.weights("decoder.blocks.1.self_attn")[0].mean(0), across: heads.mean(0)},
        rows=queries,
        columns={own: inputs, across: keys},
        height=3.4,
    )
    streams = {"x": "encoder.blocks.0.resid_in"}
    streams |= {f"after layer {n + 1}": f"encoder.blocks.{n}.resid_out" for n in range(2)}
    figures["encoder-layers"] = tensor_row(
        {title: record[name][0] for title, name in streams.items()}, rows=keys
    )
    for name, figure in figures.items():
        plotting.save(figure, folder / f"{name}.png")


def train_dates(steps: int, folder: Path) -> glassformer.Pipeline:
    """Train a small Transformer to spell out dates."""
    table = folder / "dates.tsv"
    table.write_text("".join(f"{source}\t{target}\n" for source, target in date_pairs()[0]))
    recipe = {
        "job": "translate",
        "data": {"train": [str(table)], "valid": 0.02},
        "tokenizer": {"kind": "char"},
        "model": {"preset": "original", "d_model": 64, "num_heads": 4, "d_ff": 256, "num_layers": 2},
        "training": {
            "max_steps": steps,
            "batch_tokens": 2048,
            "lr": 0.003,
            "label_smoothing": 0.0,
            "load_best_model_at_end": False,
            "eval_steps": steps,
            "device": "cpu",
        },
    }
    return glassformer.train(recipe, folder / "run")


def tensor_row(
    tensors: Mapping[str, Tensor],
    *,
    rows: Sequence[str],
    columns: Mapping[str, Sequence[str]] | None = None,
    other_rows: Mapping[str, Sequence[str]] | None = None,
    widths: Sequence[float] | None = None,
    height: float = 2.3,
    same_scale: bool = False,
) -> Figure:
    """Draw tensors (T, D) side by side, by title: red above 0 and blue below; with columns, weights in blue.

    rows, columns: labels of the rows, and of the columns by title
    other_rows: labels of the rows by title, where they differ
    """
    columns, other_rows = columns or {}, other_rows or {}
    largest = {title: float(tensor.detach().abs().quantile(0.99)) for title, tensor in tensors.items()}
    with figure_style():
        figure = new_figure(8.2, height)
        panels = figure.subplots(1, len(tensors), width_ratios=widths, squeeze=False)[0]
        for n, (axes, (title, tensor)) in enumerate(zip(panels, tensors.items(), strict=True)):
            values = tensor.detach().float()
            weights = bool((values >= 0).all()) and title in columns
            top = 1.0 if weights else max(largest.values()) if same_scale else largest[title]
            axes.imshow(
                values.numpy(),
                cmap="Blues" if weights else "RdBu_r",
                vmin=0 if weights else -top,
                vmax=top,
                aspect="auto",
                interpolation="nearest",
            )
            axes.set_title(title, fontsize=9, pad=6)
            names = other_rows.get(title, rows if n == 0 or title in columns else ())
            axes.set_yticks(range(len(names)), labels=[label(name) for name in names], fontsize=7)
            below = columns.get(title, ())
            axes.set_xticks(range(len(below)), labels=[label(name) for name in below], fontsize=7)
            hide_frame(axes)
    return figure


def draw_encoder_weights(steps: int = 400) -> None:
    """Draw the weights of both layers of a TransformerEncoder that reverses a sequence."""
    letters = "abcdefgh"
    torch.manual_seed(0)
    embedding, head = torch.nn.Embedding(26, 64), torch.nn.Linear(64, 26)
    encoder = glassformer.TransformerEncoder(64, 4, 256, num_layers=2, max_len=16, dropout=0.0)
    modules = torch.nn.ModuleList([embedding, head, encoder])
    optimizer = torch.optim.Adam(modules.parameters(), lr=1e-3)
    for _ in range(steps):
        ids = torch.randint(0, 26, (64, len(letters)))
        loss = torch.nn.functional.cross_entropy(head(encoder(embedding(ids))).mT, ids.flip(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    ids = torch.tensor([[ord(letter) - ord("a") for letter in letters]])
    x, weights = encoder.eval()(embedding(ids), return_weights=True)
    assert torch.equal(head(x).argmax(-1), ids.flip(1))
    heads = {f"layer {n + 1}\nhead {h}": layer[0, h] for n, layer in enumerate(weights) for h in range(4)}
    figure = tensor_row(heads, rows=letters, columns=dict.fromkeys(heads, letters), height=1.75)
    plotting.save(figure, FOLDER / "encoder-weights.png")


def draw_one_head() -> None:
    """Draw one head of the shipped translator, as in the README."""
    pocket, text = glassformer.load("pocket"), "The cat is sleeping on the sofa."
    tokenizer = pocket.tokenizer
    assert tokenizer is not None
    source = tokenizer.encode(f">>de<< {text}", parse_special=True).ids
    target = tokenizer.encode(pocket.translate(text, to="de")).ids
    inputs = torch.tensor([source]), torch.tensor([[pocket.model.spec.start_id, *target[:-1]]])
    weights = glassformer.observe(pocket.model, inputs).weights("decoder.blocks.1.cross_attn", head=1)[0]
    figure = plotting.attention(weights, tokenizer.tokens(target), keys=tokenizer.tokens(source))
    plotting.save(figure, FOLDER / "one-head.png", dpi=90)


def draw_captions() -> None:
    """Draw an image with its captions, for the README and the guide to captioning."""
    captioner = glassformer.load("pocket-captioner")
    captions = [captioner.caption(SCENE, to=language) for language in captioner.job.languages]
    _draw_scene("caption-scene.png", captions)


def draw_answers() -> None:
    """Draw an image with questions and their answers, for the guide to captioning."""
    model = glassformer.load("pocket-vqa")
    questions = (
        "How many yellow circles are there?",
        "What is to the left of the cars?",
        "Is there a goat in the picture?",
        "원은 무슨 색인가요?",
    )
    lines = [f"{question}  {model.ask(SCENE, question).answer}" for question in questions]
    _draw_scene("ask-scene.png", lines)


def _draw_scene(name: str, lines: Sequence[str]) -> None:
    """Draw the scene of the examples with lines of text below it."""
    canvas = Image.new("RGB", (440, 440), "white")
    canvas.paste(load_image(SCENE).resize((300, 300), Image.Resampling.LANCZOS), (70, 8))
    for n, line in enumerate(lines):
        path, text = find_font(line)
        font = ImageFont.truetype(path, 15)
        ImageDraw.Draw(canvas).text((220, 332 + 29 * n), text, fill=INK, font=font, anchor="mm")
    canvas.quantize(96, dither=Image.Dither.NONE).save(FOLDER / name, optimize=True)


def draw_wirings() -> None:
    """Draw the norms of a block in each arrangement; data flows upwards, residual stream on the left."""
    with figure_style():
        figure = new_figure(7.2, 4.2)
        post, pre, parallel = figure.subplots(1, 3)
        for axes, title, note in (
            (post, "post (the paper)", "norm(x + f(x))"),
            (pre, "pre (today)", "x + f(norm(x))"),
            (parallel, "parallel", "x + attn(norm(x)) + ffn(norm(x))"),
        ):
            axes.set(xlim=(0, 4), ylim=(-0.7, 8.6))
            axes.axis("off")
            axes.set_title(title, pad=18)
            axes.text(2, 8.75, note, ha="center", va="bottom", fontsize=8.5)
        _draw_post(post)
        _draw_pre(pre)
        _draw_parallel(parallel)
    plotting.save(figure, FOLDER / "wirings.png")


def _draw_box(axes: Axes, kind: str, x: float, y: float, width: float = 1.9) -> None:
    axes.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - 0.3),
            width,
            0.6,
            boxstyle="round,pad=0.04,rounding_size=0.12",
            facecolor=COLORS[kind],
            edgecolor="none",
            zorder=3,
        )
    )
    axes.text(x, y, LABELS[kind], ha="center", va="center", color="white", fontsize=8, zorder=4)


def _draw_plus(axes: Axes, x: float, y: float) -> None:
    axes.scatter([x], [y], s=150, facecolor="white", edgecolor=INK, linewidth=1.2, zorder=5)
    axes.text(x, y - 0.02, "+", ha="center", va="center", fontsize=11, zorder=6)


def _draw_path(axes: Axes, *points: tuple[float, float]) -> None:
    """Draw a line through the points with an arrow head at its end."""
    xs, ys = zip(*points, strict=True)
    axes.plot(xs[:-1], ys[:-1], color=INK, linewidth=1.2, solid_joinstyle="round", zorder=1)
    axes.annotate(
        "",
        xy=points[-1],
        xytext=points[-2],
        arrowprops={"arrowstyle": "-|>", "color": INK, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0},
        zorder=1,
    )


def _draw_stream(axes: Axes, x: float) -> None:
    """Draw the residual stream from the input straight up to the output."""
    axes.text(x, -0.35, "x", ha="center", va="top", style="italic")
    _draw_path(axes, (x, -0.3), (x, 8.4))


def _draw_post(axes: Axes) -> None:
    stream, side = 0.8, 2.6
    for low, kind in ((0.0, "attn"), (4.0, "ffn")):
        _draw_path(axes, (stream, low + 0.5), (side, low + 0.5), (side, low + 1.0))
        _draw_box(axes, kind, side, low + 1.35)
        _draw_path(axes, (side, low + 1.65), (side, low + 2.2), (stream + 0.2, low + 2.2))
        _draw_plus(axes, stream, low + 2.2)
        _draw_box(axes, "norm", stream, low + 3.2, 1.3)
    _draw_stream(axes, stream)


def _draw_pre(axes: Axes) -> None:
    stream, side = 0.8, 2.6
    for low, kind in ((0.0, "attn"), (4.0, "ffn")):
        _draw_path(axes, (stream, low + 0.4), (side, low + 0.4), (side, low + 0.8))
        _draw_box(axes, "norm", side, low + 1.15, 1.3)
        _draw_path(axes, (side, low + 1.45), (side, low + 2.05))
        _draw_box(axes, kind, side, low + 2.4)
        _draw_path(axes, (side, low + 2.7), (side, low + 3.2), (stream + 0.2, low + 3.2))
        _draw_plus(axes, stream, low + 3.2)
    _draw_stream(axes, stream)


def _draw_parallel(axes: Axes) -> None:
    stream, left, right = 0.4, 1.55, 3.2
    middle = (left + right) / 2
    _draw_path(axes, (stream, 1.0), (middle, 1.0), (middle, 1.6))
    _draw_box(axes, "norm", middle, 1.95, 1.3)
    for x, kind in ((left, "attn"), (right, "ffn")):
        _draw_path(axes, (middle, 2.3), (middle, 2.9), (x, 2.9), (x, 3.5))
        _draw_box(axes, kind, x, 3.85, 1.45)
    _draw_path(axes, (right, 4.2), (right, 5.6), (stream + 0.2, 5.6))
    axes.plot([left, left], [4.2, 5.6], color=INK, linewidth=1.2, zorder=1)
    _draw_plus(axes, stream, 5.6)
    _draw_stream(axes, stream)


if __name__ == "__main__":
    torch.set_num_threads(1)  # one order of summation, so the same pictures every time
    for draw in (
        draw_parts,
        draw_positions,
        draw_masks,
        draw_wirings,
        draw_attention,
        draw_encoder_weights,
        draw_one_head,
        draw_captions,
        draw_answers,
    ):
        draw()
    print(f"wrote {', '.join(sorted(p.name for p in FOLDER.glob('*.png')))}")
