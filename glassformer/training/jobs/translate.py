"""Learn to translate: sentences of one language and their translations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from glassformer import api, baselines
from glassformer.core import spec as specs
from glassformer.core.errors import GlassformerError
from glassformer.data.examples import PairExamples
from glassformer.data.pairs import pairs
from glassformer.data.problems import Problems
from glassformer.data.store import Store, write_store
from glassformer.decoding.greedy import decode_all
from glassformer.evaluation.bleu import bleu, chrf
from glassformer.training.building import fresh_spec, loaded
from glassformer.training.jobs.job import Job
from glassformer.training.learner import PairLearner, tokens_learned
from glassformer.training.log import Sample
from glassformer.training.measure import mean_loss, perplexity
from glassformer.training.prepare import (
    Prepared,
    encoded_pairs,
    keep_texts,
    kept_texts,
    refuse_empty,
    tokenizer_for,
    two_sides,
)
from glassformer.training.recipe import PairData
from glassformer.training.sizing import Machine, fitting
from glassformer.training.task import Task, Validation


class Translate(Job):
    """Pairs in, an encoder-decoder (or its LSTM baseline) out; measured by BLEU and chrF."""

    def gather(self) -> None:
        recipe, data = self.recipe, self.recipe.data
        assert isinstance(data, PairData)
        base = loaded(recipe.model.folder).tokenizer if recipe.model.folder else None
        train, valid = two_sides(lambda files: pairs(files, columns=data.columns), data, seed=recipe.seed)
        problems = Problems()
        prepared = Prepared(
            self.folder / "data",
            train.fingerprint(),
            valid.fingerprint(),
            data.max_len,
            recipe.training.max_valid,
            repr(recipe.tokenizer),
        )
        about = prepared.about()
        self.tokenizer = tokenizer_for(
            recipe.tokenizer,
            self.folder,
            lambda: train.rows(Problems()),
            marks="end",
            base=base,
            say=self.say,
        )
        if about is None:
            prepared.begin()
            long, kept = [0], recipe.training.max_valid
            for name, source, keep in (("train", train, 0), ("valid", valid, kept)):
                texts: list[tuple[str, ...]] = []
                rows = encoded_pairs(
                    source,
                    self.tokenizer,
                    max_len=data.max_len,
                    problems=problems,
                    long=long,
                    texts=texts,
                    keep=keep,
                )
                highest = max(self.tokenizer.vocab_size, self.tokenizer.target_vocab_size) - 1
                store = write_store(prepared.folder / name, source.fields, rows, highest=highest)
                refuse_empty(store, "training pair" if name == "train" else "pair to validate with")
                keep_texts(prepared.folder / name, texts)
            about = prepared.end(bad=problems.sentence(), long=long[0])
        self.train, self.valid = Store(prepared.folder / "train"), Store(prepared.folder / "valid")
        self.facts = {"training pairs": len(self.train), "validation pairs": len(self.valid)}
        self.say(f"{len(self.train):,} pairs to learn from, {len(self.valid):,} to validate with")
        if about["bad"]:
            self.facts["rows left out"] = about["bad"]
            self.say(about["bad"])
        if about["long"]:
            self.facts["pairs over max_len"] = about["long"]
            self.say(f"{about['long']:,} pairs are longer than {data.max_len} tokens and were left out")

    def choose(self, machine: Machine) -> list[str]:
        units = int(self.train.lengths(np.arange(len(self.train)))[:, 1].sum())
        size, passes, why = fitting(
            machine, units=units, vocab_size=self.tokenizer.target_vocab_size, stacks=2
        )
        if self.recipe.model.preset == "lstm":
            words: dict[str, Any] = {"d_model": size.d_model, "dropout": size.dropout}
        else:
            words = {**size.words(), "norm": "pre"}
        self.settle_model("original", words)
        reasons = [why] if self.recipe.model.folder is None else []
        return reasons + self.settle(
            self.examples(self.train),
            batch=max(512, min(25_000 if machine.on_gpu else 4096, units // 25)),
            passes=passes if self.recipe.model.folder is None else 3,
            lr=5e-5 if self.recipe.model.folder else min(2e-3, 0.7 / size.d_model + 3e-4),
            schedule="inverse_sqrt" if self.recipe.model.folder is None else "linear",
            label_smoothing=0.1,
            batching="rows" if machine.on_gpu and self.recipe.model.preset != "lstm" else "lengths",
        )

    def row_width(self) -> int:
        """The width of a row that pairs are packed into: 128, or what the longest needs."""
        assert isinstance(self.recipe.data, PairData)
        return max(128, -(-self.recipe.data.max_len // 64) * 64)

    def examples(self, store: Store) -> PairExamples:
        pad_id, start_id = self._ids()
        return PairExamples(store, pad_id=pad_id, start_id=start_id)

    def _ids(self) -> tuple[int, int]:
        """The pad token, and the one a target starts with: the end token unless a model says otherwise."""
        tokenizer = self.tokenizer
        if tokenizer.eos_id is None:
            raise GlassformerError("the tokenizer has no end token, which a translation needs to stop at")
        pad_id = tokenizer.pad_id if tokenizer.pad_id is not None else tokenizer.eos_id
        if self.recipe.model.folder is not None:
            spec = loaded(self.recipe.model.folder).spec
            if not isinstance(spec, specs.EncoderDecoder | baselines.spec.LSTMEncoderDecoder):
                raise GlassformerError(
                    f"model.folder '{self.recipe.model.folder}' is no encoder-decoder, and cannot translate"
                )
            return pad_id, spec.start_id if spec.start_id is not None else tokenizer.eos_id
        return pad_id, tokenizer.eos_id

    def build(self) -> api.Bundle:
        """The model of the recipe with the tokenizer, as it will be saved."""
        words, tokenizer = self.recipe.model, self.tokenizer
        pad_id, start_id = self._ids()
        generation = {
            "decoder_start_token_id": start_id,
            "eos_token_id": tokenizer.eos_id,
            "pad_token_id": pad_id,
        }
        files = {api.JOB: {"job": self.recipe.job}}
        if words.folder is not None:
            bundle = loaded(words.folder)
            return replace(
                bundle,
                tokenizer=tokenizer,
                generation=bundle.generation or generation,
                files={**bundle.files, **files},
            )
        joint = self.recipe.tokenizer.sides == "joint"
        fixed: dict[str, Any] = {"pad_id": pad_id, "start_id": start_id}
        model: Any
        if words.preset == "lstm":
            sizes = {"src_vocab_size": tokenizer.vocab_size, "tgt_vocab_size": tokenizer.target_vocab_size}
            tied = ("source", "head") if joint else ("head",)
            spec = {"kind": "LSTMEncoderDecoder", "tied": tied, **words.words, **sizes, **fixed}
            model = baselines.build_baseline(baselines.from_dict(spec, "model"))
        else:
            model = api.build(fresh_spec(words, {**self._vocabulary(joint), **fixed}))
        return api.Bundle(model=model, tokenizer=tokenizer, generation=generation, files=files)

    def _vocabulary(self, joint: bool) -> dict[str, Any]:
        """The words of a family for its vocabularies, which not all spell alike."""
        tokenizer, preset = self.tokenizer, self.recipe.model.preset or ""
        if preset.startswith("original"):
            tied = ("source", "head") if joint else ("head",)
            sizes = {"src_vocab_size": tokenizer.vocab_size, "tgt_vocab_size": tokenizer.target_vocab_size}
            return {**sizes, "tied": self.recipe.model.words.get("tied", tied)}
        if not joint:
            raise GlassformerError(
                f"tokenizer.sides is separate, which the preset '{preset}' lacks; use joint or original"
            )
        return {"vocab_size": tokenizer.vocab_size}

    def task(self) -> Task:
        bundle = self.build()
        smoothing = self.recipe.training.label_smoothing or 0.0
        learner = PairLearner(bundle.model, smoothing=smoothing)
        return Task(
            learner=learner,
            train=self.examples(self.train),
            units="tokens",
            count=tokens_learned,
            metric="bleu",
            better="higher",
            validate=self.validation(learner),
            save=lambda path: api.save(bundle, path),
            row_width=self.row_width() if isinstance(bundle.spec, specs.EncoderDecoder) else None,
        )

    def validation(self, learner: PairLearner) -> Callable[[torch.device], Validation]:
        """Loss on all pairs held out; BLEU and chrF of greedy translations of the first of them."""
        valid, tokenizer = self.examples(self.valid), self.tokenizer
        texts = kept_texts(self.valid.folder)
        sources = [self.valid.row(n)[0].tolist() for n in range(len(texts))]
        pad_id, start_id = self._ids()
        assert tokenizer.eos_id is not None
        eos_id: int = tokenizer.eos_id

        def validate(device: torch.device) -> Validation:
            loss = mean_loss(learner, valid, device, batch=self.recipe.training.batch or 4096)
            found = decode_all(
                learner.model,
                sources,
                start_ids=start_id,
                eos_id=eos_id,
                pad_id=pad_id,
                max_new_tokens=lambda length: 2 * length + 20,
            )
            got = [tokenizer.decode(ids) for ids in found]
            expected = [text[1] for text in texts]
            words, letters = bleu(got, expected), chrf(got, expected)
            return Validation(
                metrics={
                    "loss": loss,
                    "perplexity": perplexity(loss),
                    "bleu": words.score,
                    "chrf": letters.score,
                },
                samples=[
                    Sample(source=text[0], expected=text[1], got=answer)
                    for text, answer in zip(texts, got, strict=True)
                ],
                signatures={"bleu": words.signature, "chrf": letters.signature},
            )

        return validate
