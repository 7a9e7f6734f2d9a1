"""The data section of a recipe: the base classes and the fields that several jobs share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from glassformer.schema import REQUIRED, Settings, setting

if TYPE_CHECKING:
    from glassformer.data.readers import TableOptions

Paths = tuple[str, ...]
PredictionType = Literal["flow", "epsilon", "v_prediction"]
Columns = tuple[str | int, ...]  # names, or numbers from 1


def train_files(description: str, unit: str = "files") -> Any:
    return setting(REQUIRED, description, unit=unit)


def valid_split(fraction: float) -> Any:
    text = "validation split: files like the training files, or the fraction of the training data to hold out"
    return setting(fraction, text, interval="(0, 1)", unit="files or fraction")


def maximum_length(of: str, default: int = 128) -> Any:
    text = f"maximum length of {of}; null is {default}, or less if the base model reads less"
    return setting(None, text, interval="[1, inf)", unit="tokens")


def column_names(description: str) -> Any:
    return setting(None, f"{description}; null detects them", unit="names or numbers")


def column_name(description: str) -> Any:
    return setting(None, description, unit="name or number")


def image_sides(otherwise: str, default: tuple[int, int] | None = None) -> Any:
    text = f"height and width to resize to; {otherwise}"
    return setting(default, text, interval="[1, inf)", unit="pixels")


def input_kind(kind: str, kinds: str = "text, image or series") -> Any:
    return setting(kind, f"{kinds}; if left out, what the training file looks like")


def predicted_noise() -> Any:
    text = (
        "what a new model predicts: flow is flow matching, the others use a schedule of betas; null is flow"
    )
    return setting(None, text)


def file_encoding() -> Any:
    return setting("utf-8", "encoding of text files, e.g. cp949 for a CSV from Korean Excel", unit="name")


def bpe_dropout_probability() -> Any:
    return setting(
        0.0,
        "BPE dropout (training only): in each of three passes, probability of splitting a token into two "
        "shorter ones",
        interval="[0, 1)",
        unit="probability",
    )


@dataclass(frozen=True, kw_only=True)
class DataSection(Settings):
    """The files of a job, and how to read them."""

    section = "data"

    train: Paths = train_files("training files")


@dataclass(frozen=True, kw_only=True)
class TableSection(DataSection):
    """Data in text files or tables."""

    encoding: str = file_encoding()
    delimiter: str | None = setting(
        None, "character between the cells of CSV files, e.g. `;`; null detects it", unit="character"
    )
    decimal: Literal[".", ","] | None = setting(
        None, "decimal separator of the numbers in tables; null detects it", unit="character"
    )

    @property
    def separators(self) -> tuple[str, ...]:
        """The separators that are set."""
        return tuple(filter(None, (self.delimiter, self.decimal)))

    @property
    def table_options(self) -> TableOptions:
        return {"encoding": self.encoding, "delimiter": self.delimiter, "decimal": self.decimal}
