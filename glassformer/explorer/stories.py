"""The stories on the explorer's first page: facts about the shipped models, with one line of text and a view.

A story is data: where it is told (model, input, view), what it claims, and its text, whose `{values}` come
from the claim. `python -m glassformer.explorer.stories` computes every claim on the shipped weights and writes
`stories.json`, which the page reads. A claim that does not hold fails its story. A story is not shown for
weights other than those on which it was found.
"""

from __future__ import annotations

import base64
import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from glassformer.bundle import Bundle
from glassformer.errors import GlassformerError
from glassformer.explorer.claims import (
    BoxesSettle,
    ChoosesWord,
    Claim,
    Draws,
    Forecasts,
    IsUncertain,
    Learns,
    LosesWord,
    StoryHead,
    WritesWord,
)
from glassformer.interpret.examples import example_input
from glassformer.interpret.schema import AblateHead, StoryFigure, StoryInfo, TraceInput, to_json
from glassformer.json_text import parse_json
from glassformer.pretrained import folder_of, is_shipped

FILE = Path(__file__).parent / "stories.json"
Strokes = Sequence[Sequence[tuple[float, float]]]


@dataclass(frozen=True, kw_only=True)
class Story:
    """A claim about a shipped model, and the view that shows it.

    title, text, switch: in English and Korean. input: by default the model's example; a text is part of the
    address. view, state: the view and its URL parameters; values of the claim are filled in.
    """

    id: str
    model: str
    title: tuple[str, str]
    text: tuple[str, str]
    claim: Claim
    input: TraceInput | None = None
    view: str = "model"
    state: Mapping[str, Any]
    switch: tuple[str, str] = ("", "")

    def tell(self, bundle: Bundle) -> StoryInfo:
        """Check the claim on the weights and return the story with its figure."""
        input = self.input or example_input(bundle)
        figure, values = self.claim.check(bundle, input)
        given = {"in": input.text, "to": input.to} if self.input else {}
        if input.text is None and self.input is not None:
            given["held"] = self.id  # images and series are kept under a name
        state = {name: str(value).format(**values) for name, value in self.state.items()}
        query = (
            {name: value for name, value in given.items() if value is not None} | state | {"story": self.id}
        )
        return StoryInfo(
            id=self.id,
            model=self.model,
            title=_by_language(self.title),
            text={name: text.format(**values) for name, text in _by_language(self.text).items()},
            switch=_by_language(self.switch) if self.switch[0] else {},
            changes=self.claim.changes,
            address=f"#/{self.model}/{self.view}?{urlencode(query)}",
            input=input if self.input else TraceInput(),
            figure=figure,
        )


def _by_language(texts: tuple[str, str]) -> dict[str, str]:
    return dict(zip(("en", "ko"), texts, strict=True))


def pen(strokes: Strokes, width: float = 0.1) -> str:
    """Draw strokes in a unit square as a digit of 28 x 28 pixels; return it as a data: URL."""
    from PIL import Image, ImageDraw

    side = 448
    image = Image.new("L", (side, side))
    draw = ImageDraw.Draw(image)
    radius = width * side / 2
    for stroke in strokes:
        points = [(x * side, y * side) for x, y in stroke]
        draw.line(points, fill=255, width=round(2 * radius), joint="curve")
        for x, y in points:
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
    buffer = io.BytesIO()
    image.resize((28, 28), Image.Resampling.LANCZOS).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


PAS = StoryHead("decoder.blocks.1.self_attn", 5)
ARTICLE = StoryHead("decoder.blocks.2.self_attn", 5)
OPEN_TOP = ((0.507, 0.24), (0.36, 0.26), (0.32, 0.48), (0.63, 0.47)), ((0.64, 0.22), (0.6, 0.8))

STORIES = (
    Story(
        id="pas",
        model="pocket",
        title=("One head writes “pas”", "“pas”를 쓰는 헤드 하나"),
        text=(
            "Decoder layer 2, head 6 looks back at “n'” ({weight}). Switch it off: “pas” falls from {before} to "
            "{after}. Not everywhere: {elsewhere}.",
            "디코더 2층의 6번 헤드는 앞에 나온 “n'”을 봅니다({weight}). 이 헤드를 끄면 “pas”의 확률이 {before}에서 {after}로 "
            "떨어집니다. 늘 그런 것은 아닙니다: {elsewhere}.",
        ),
        switch=("Head 2.6", "헤드 2.6"),
        input=TraceInput(text="The animal did not cross the street because it was too tired.", to="fr"),
        state={"at": "decoder.1.self", "head": 5, "pos": "{pos}", "tab": "weights"},
        claim=WritesWord(
            head=PAS,
            word="pas",
            looks_at="n",
            elsewhere=("I do not know.", "The cat does not eat the fish.", "He is not here."),
        ),
    ),
    Story(
        id="elle",
        model="pocket",
        title=("il or elle?", "il일까 elle일까"),
        text=(
            "“It” has no gender in English; “la machine” has one in French. Decoder layer 3, head 6 looks back at "
            "“La” ({weight}) before it decides: elle {elle_before}. Without the head: il {il_after}.",
            "영어의 “it”에는 성이 없지만 프랑스어의 “la machine”에는 있습니다. 디코더 3층의 6번 헤드는 관사 “La”를 보고({weight}) "
            "elle({elle_before})를 고릅니다. 이 헤드를 끄면 il({il_after})이 앞섭니다.",
        ),
        switch=("Head 3.6", "헤드 3.6"),
        input=TraceInput(text="The machine is broken because it is old.", to="fr"),
        state={"at": "decoder.2.self", "head": 5, "pos": "{pos}", "tab": "weights"},
        claim=ChoosesWord(head=ARTICLE, word="elle", rival="il", looks_at="La"),
    ),
    Story(
        id="nicht",
        model="pocket",
        title=("The lost “nicht”", "사라진 “nicht”"),
        text=(
            "The model knows the right German sentence, but the beam search prefers a shorter one without “nicht”: "
            "score {score} against {kept_score}. The animal crosses the street.",
            "모델은 올바른 독일어 문장을 알고 있지만, 빔 탐색은 “nicht”가 빠진 더 짧은 문장을 고릅니다(점수 {score} 대 "
            "{kept_score}). 그래서 동물은 길을 건넙니다.",
        ),
        input=TraceInput(text="The animal didn't cross the street because it was too tired.", to="de"),
        view="decoding",
        state={"way": "beam", "result": "{rank}"},
        claim=LosesWord("nicht"),
    ),
    Story(
        id="boxes",
        model="pocket-detector",
        title=("Boxes settle", "상자가 자리를 잡기까지"),
        text=(
            "{queries} queries search the image. Objects found after layers 1 to {layers}: {counts}.",
            "쿼리 {queries}개가 이미지를 뒤집니다. 1층부터 {layers}층까지 지나며 찾은 물체: {counts}개.",
        ),
        state={"after": 1},
        claim=BoxesSettle(),
    ),
    Story(
        id="digit",
        model="pocket-digits",
        title=("A 4 or a 9?", "4일까 9일까"),
        text=(
            "A gap of one pixel at the top decides. This one is open just enough to leave the model in doubt: "
            "{first} {p_first}, {second} {p_second}.",
            "위쪽의 한 픽셀 틈이 결과를 가릅니다. 이만큼 벌어지면 모델도 망설입니다: {first} {p_first}, {second} {p_second}.",
        ),
        input=TraceInput(image=pen(OPEN_TOP)),
        state={},
        claim=IsUncertain(("4", "9")),
    ),
    Story(
        id="waves",
        model="pocket-series",
        title=("What comes next?", "다음에 올 값은"),
        text=(
            "The last {steps} values are hidden from the model. Its forecast is off by {error} on average; repeating "
            "the last value is off by {naive}.",
            "마지막 {steps}개 값은 모델에게 보여 주지 않았습니다. 예측 오차는 평균 {error}, 마지막 값을 그대로 반복하면 {naive}입니다.",
        ),
        state={},
        claim=Forecasts(),
    ),
    Story(
        id="training",
        model="pocket",
        title=("Watch it learn", "배우는 과정"),
        text=(
            "{parameters} parameters learn to write {source} in words. In {steps} steps, the loss falls from {first} to {last}.",
            "파라미터 {parameters}개짜리 모델이 {source}를 말로 쓰는 법을 배웁니다. {steps}스텝 동안 손실이 {first}에서 {last}로 줄어듭니다.",
        ),
        view="learning",
        state={"run": "dates"},
        claim=Learns(),
    ),
    Story(
        id="drawing",
        model="pocket-draw",
        title=("A drawing emerges", "그림이 떠오르다"),
        text=(
            "{steps} steps from noise to a drawing, and at every step a picture of what the model expects.",
            "노이즈에서 그림까지 {steps}스텝. 스텝마다 모델이 예상하는 그림을 볼 수 있습니다.",
        ),
        state={},
        claim=Draws(),
    ),
)


def stories_of(bundles: Mapping[str, Bundle]) -> list[StoryInfo]:
    """Return the stories of these models whose weights are those of the stories, with the models' ids."""
    names = {bundle.folder.resolve(): id for id, bundle in bundles.items() if bundle.folder is not None}
    shown = []
    for story, checksum in _stored():
        if not is_shipped(story.model):
            continue
        folder = folder_of(story.model).resolve()
        if folder in names and checksum == checksum_of(story.model):
            shown.append(_renamed(story, names[folder]))
    return shown


def _renamed(story: StoryInfo, id: str) -> StoryInfo:
    from dataclasses import replace

    return replace(story, model=id, address=story.address.replace(f"#/{story.model}/", f"#/{id}/", 1))


@cache
def _stored() -> tuple[tuple[StoryInfo, str], ...]:
    """Read the stories, and the checksums of the weights on which they were found."""
    try:
        content = parse_json(FILE.read_bytes())
    except OSError:
        return ()
    return tuple(
        (_story_from_json(values), content["weights"][values["model"]]) for values in content["stories"]
    )


def _story_from_json(values: Mapping[str, Any]) -> StoryInfo:
    parts = {"input": TraceInput.from_json(values["input"]), "figure": StoryFigure(**values["figure"])}
    return StoryInfo(**{**values, **parts, "changes": tuple(AblateHead(**one) for one in values["changes"])})


def checksum_of(model: str) -> str:
    """Return the checksum of a shipped model's weights."""
    content: Any = parse_json((folder_of(model) / "checksums.json").read_bytes())
    return json.dumps(content, sort_keys=True)


def tell_all(log: Any = lambda text: None) -> tuple[list[StoryInfo], list[str]]:
    """Check the stories of all shipped models; return them, and what failed."""
    from glassformer.bundle import load

    bundles: dict[str, Bundle] = {}
    told, failed = [], []
    for story in STORIES:
        if not is_shipped(story.model):
            continue
        if story.model not in bundles:
            bundles[story.model] = load(folder_of(story.model))
        try:
            told.append(story.tell(bundles[story.model]))
            log(f"{story.id}: {told[-1].text['en']}")
        except GlassformerError as error:
            failed.append(f"story {story.id!r}: {error}")
    return told, failed


def _main() -> Iterator[str]:
    told, failed = tell_all(print)
    models = dict.fromkeys(story.model for story in told)
    content = {"weights": {name: checksum_of(name) for name in models}, "stories": to_json(told)}
    FILE.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    yield from failed


if __name__ == "__main__":
    problems = list(_main())
    sys.exit("\n".join(problems) or 0)
