"""Learn to label texts: a text and its label in every row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.core.schema import nearest
from glassformer.data.examples import LabelledExamples
from glassformer.data.labelled import labelled
from glassformer.data.problems import Problems
from glassformer.data.ragged import Ragged
from glassformer.data.recut import Recut
from glassformer.data.sources import Source
from glassformer.data.store import Store
from glassformer.errors import GlassformerError
from glassformer.training.jobs.classification import classes_of, in_order, label_task, named, refuse_one_class
from glassformer.training.jobs.text import TextJob
from glassformer.training.learner import TextLabelLearner
from glassformer.training.model_setup import (
    Machine,
    accepted,
    fitting,
    fresh,
    fresh_spec,
    labelling_head,
    room,
    with_head,
)
from glassformer.training.recipe import LabelledData
from glassformer.training.task import Task
from glassformer.training.text_encoding import Progress, Row, halves_of, kept_texts, two_sides, write_rows


class Classify(TextJob):
    """Labelled texts in, an encoder with a head of labels out; measured by accuracy and F1."""

    usual = "bert"
    classes: Sequence[str] = ()
    followed: Sequence[str] | None = None  # the classes of a model that is only measured

    @property
    def data(self) -> LabelledData:
        assert isinstance(self.recipe.data, LabelledData)
        return self.recipe.data

    def follow_model(self) -> None:
        if self.base is not None:
            self.followed = classes_of(self.base)
            most = room(self._encoder(self.base.spec))
            most = min(most, self.base.job.max_len or most)
            self.recipe = replace(self.recipe, data=replace(self.data, max_len=most))

    def gather(self) -> None:
        data = self.data
        if self.base is not None and data.max_len > room(self._encoder(self.base.spec)):
            raise GlassformerError(
                f"data.max_len is {data.max_len}, but the model in '{self.recipe.model.folder}' reads "
                f"{room(self.base.spec)} tokens at most; lower it"
            )
        train, valid = two_sides(
            lambda files: labelled(files, columns=data.columns), data, seed=self.recipe.seed
        )
        settings = (data.max_len, self.recipe.training.max_valid)
        noted = self.gather_text(train, valid, self._write, settings=settings, marks="around", texts=1)
        self.classes = noted["valid"]["classes"]
        self.told("texts", 0, data.max_len)
        self.facts["classes"] = self.classes
        more = ", ..." if len(self.classes) > 20 else ""
        self.say(f"{len(self.classes)} classes: {', '.join(self.classes[:20])}{more}")
        if cut := sum(part["cut"] for part in noted.values()):
            self.facts["texts cut"] = cut
            self.say(f"{cut:,} texts are longer than {data.max_len} tokens and are read up to there")

    def _write(self, folder: Path, part: Source, problems: Problems) -> dict[str, Any]:
        """Write a part's ids and class numbers. The first part says which classes there are."""
        self.classes = self.classes or self.followed or self._found(part)
        numbers = {label: n for n, label in enumerate(self.classes)}
        most = self.data.max_len
        cut: list[int] = []  # in each group of rows

        def encode(rows: list[Row]) -> tuple[Ragged, Ragged]:
            for _, label in rows:
                if label not in numbers:
                    raise GlassformerError(
                        f"the label '{label:.60}' of a row to validate with is not one that was "
                        f"trained{nearest(label, numbers)}; mend it, or have it in both"
                    )
            ids = Ragged.of(self.tokenizer.ids_of([text for text, _ in rows]))
            cut.append(int((ids.lengths > most).sum()))
            return ids.cut(most), Ragged.of([[numbers[label]] for _, label in rows])

        write_rows(
            folder,
            part,
            part.fields,
            encode,
            highest=max(self.highest, len(self.classes)),
            max_len=None,
            problems=problems,
            progress=Progress("texts", self.say),
            keep=self.recipe.training.max_valid,
        )
        return {"classes": self.classes, "cut": sum(cut)}

    def _found(self, part: Source) -> Sequence[str]:
        """The labels of a part; those of a model gone on from, in its order, where it has the same."""
        found = in_order(list({row[1] for row in part.rows(Problems())}))
        refuse_one_class(found, "the training data")
        before = classes_of(self.base) if self.base else None
        return before if before is not None and set(before) == set(found) else found

    def choose(self, machine: Machine) -> list[str]:
        units, tuned = self.train.sizes()[0], self.recipe.model.folder is not None
        size, passes, why = fitting(
            machine,
            units=units,
            vocab_size=len(self.classes),
            passes=min(40.0, max(3.0, 300_000 / len(self.train))),
            given=self.length_given,
        )
        preset = self.preset
        self.settle_model(preset, {} if tuned else accepted(preset, size.words()))
        together = 64 * max(16, units // len(self.train))
        return ([] if tuned else [why]) + self.settle(
            self.examples(self.train),
            batch=max(self.data.max_len, min(16_384 if machine.on_gpu else 4096, together, units // 20)),
            passes=3 if tuned else passes,
            lr=3e-5 if tuned else min(2e-3, 0.1 / size.d_model),
            schedule="linear" if tuned else "cosine",
        )

    def examples(self, store: Store) -> LabelledExamples:
        return LabelledExamples(store, pad_id=self.pad_id)

    def learned(self) -> LabelledExamples:
        """The texts to learn from, cut anew each time where the recipe asks for it."""
        if not self.data.recut:
            return self.examples(self.train)
        table = halves_of(self.tokenizer)
        recut = Recut(table, self.data.recut, longest=self.data.max_len, seed=self.recipe.seed)
        return LabelledExamples(self.train, pad_id=self.pad_id, recut=recut)

    def _marks(self) -> tuple[int, ...]:
        """The tokens that stand for no text."""
        tokenizer = self.tokenizer
        marks = (tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.mask_id, self.pad_id)
        return tuple({number for number in marks if number is not None})

    def _encoder(self, spec: Any) -> specs.EncoderOnly:
        if isinstance(spec, specs.EncoderOnly) and isinstance(spec.input, specs.Tokens):
            return spec
        where = self.recipe.model.folder or self.recipe.model.preset
        raise GlassformerError(
            f"the model '{where}' is no encoder of text, which labelling needs; bert, roberta and "
            "distilbert are"
        )

    def build(self) -> Bundle:
        """The model of the recipe with tokenizer and labels, as it will be saved."""
        base, words = self.base, self.recipe.model
        if base is None:
            fixed = {
                "vocab_size": self.tokenizer.vocab_size,
                "pad_id": self.pad_id,
                "max_len": self.data.max_len,
            }
            spec = self._encoder(fresh_spec(words, accepted(words.preset or "", fixed)))
            head = labelling_head(spec, len(self.classes))
            bundle = Bundle(model=fresh(replace(spec, head=head, tied=())))
        else:
            spec = self._encoder(base.spec)
            assert isinstance(spec.input, specs.Tokens)
            if self.highest >= spec.input.vocab_size:
                raise GlassformerError(
                    f"the tokenizer has {self.highest + 1:,} tokens and the model in '{words.folder}' only "
                    f"{spec.input.vocab_size:,}; use the tokenizer it was trained with"
                )
            bundle = with_head(base, labelling_head(spec, len(self.classes)))
        bundle.tokenizer = self.tokenizer
        return named(bundle, self.recipe.job, self.classes, max_len=self.data.max_len)

    def _blank(self) -> int:
        """The token that stands for one that is hidden: the tokenizer's own for that, or the unknown one."""
        for number in (self.tokenizer.mask_id, self.tokenizer.unk_id):
            if number is not None:
                return number
        if self.data.hide:
            raise GlassformerError(
                "data.hide needs a token for what is hidden, and the tokenizer has neither a mask nor an "
                "unknown token; set data.hide to 0, or take another kind than byte"
            )
        return self.pad_id

    def task(self) -> Task:
        texts, words, bundle = kept_texts(self.valid.folder), self.recipe.training, self.build()
        learner = TextLabelLearner(
            bundle.model,
            hide=self.data.hide,
            guess=self.data.guess,
            blank=self._blank(),
            kept=self._marks(),
            smoothing=words.label_smoothing or 0.0,
            r_drop=words.r_drop,
        )
        return label_task(
            bundle,
            learner,
            train=self.learned(),
            valid=self.examples(self.valid),
            true=[self.classes.index(label) for _, label in texts],
            shown=[text for text, _ in texts],
            classes=self.classes,
            units="texts",
            words=words,
        )
