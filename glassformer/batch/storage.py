"""Files of a batch run, on disk or in an object store such as s3://, through pyarrow's file systems."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

from glassformer.data.readers import file_format, import_pyarrow
from glassformer.errors import FileMissingError, FileProblemError, InvalidValueError
from glassformer.weights.atomic_write import sync_folder

HIDDEN = ("_", ".")  # first characters of files that are not data, as in Spark and pyarrow


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """A file of a location. stamp: changes if the file does."""

    path: str
    size: int
    stamp: float = field(default=0.0)


class Location:
    """A file or folder. uri: a path, or a URI that pyarrow knows, e.g. s3://bucket/folder."""

    def __init__(self, uri: str | os.PathLike[str]) -> None:
        text = os.fspath(uri)
        self.uri = text if "://" in text else Path(os.path.abspath(text)).as_uri()

    def __str__(self) -> str:
        return self.path if self.is_local else self.uri

    @cached_property
    def _resolved(self) -> tuple[Any, str]:
        pyarrow = import_pyarrow(extra="ray")
        from pyarrow import fs

        try:
            return fs.FileSystem.from_uri(self.uri)
        except (pyarrow.ArrowException, OSError) as error:
            expected = "a path, or a URI such as s3://bucket/folder"
            reason = str(error).splitlines()[0]
            raise InvalidValueError("path", self.uri, f"{expected} ({reason})") from None

    @property
    def filesystem(self) -> Any:
        return self._resolved[0]

    @property
    def path(self) -> str:
        """The path within the file system."""
        return self._resolved[1].rstrip("/")

    @property
    def is_local(self) -> bool:
        return self.uri.startswith("file://")

    def overlaps(self, other: Location) -> bool:
        """Whether the locations are equal, or one lies in the other."""
        if self.is_local != other.is_local or self.filesystem.type_name != other.filesystem.type_name:
            return False
        resolve = os.path.realpath if self.is_local else str
        paths = [PurePath(resolve(location.path)) for location in (self, other)]
        return paths[0].is_relative_to(paths[1]) or paths[1].is_relative_to(paths[0])

    def tables(self) -> list[StoredFile]:
        """Return the tables: the file itself, or those in the folder and its subfolders, by path."""
        from pyarrow import fs

        with self._errors():
            info = self.filesystem.get_file_info(self.path)
            if info.type == fs.FileType.NotFound:
                raise FileMissingError(str(self), "file or folder")
            files = [info]
            if info.type == fs.FileType.Directory:
                files = self.filesystem.get_file_info(fs.FileSelector(self.path, recursive=True))
        found = []
        for file in files:
            inner = file.path[len(self.path) :].strip("/")
            hidden = any(part.startswith(HIDDEN) for part in inner.split("/"))
            if file.type == fs.FileType.File and not hidden and file_format(file.path) != "plain":
                found.append(StoredFile(path=file.path, size=file.size, stamp=file.mtime_ns or 0))
        if not found:
            expected = "CSV, TSV, JSON Lines or Parquet files"
            raise FileProblemError(str(self), "has no tables", hint=f"expected {expected}")
        return sorted(found, key=lambda file: file.path)

    def count_parquet_rows(self, path: str) -> int:
        """Return the number of rows of a Parquet file, from its metadata."""
        import pyarrow
        from pyarrow import parquet

        try:
            with self._errors(), self.filesystem.open_input_file(path) as file:
                return int(parquet.read_metadata(file).num_rows)
        except pyarrow.ArrowException:
            raise FileProblemError(path, "is not a Parquet file, or is damaged") from None

    @contextmanager
    def local_file(self, path: str) -> Iterator[Path]:
        """Yield a local path of a file: the file itself, or a temporary copy."""
        if self.is_local:
            yield Path(path)
            return
        from pyarrow import fs

        with tempfile.TemporaryDirectory(prefix="glassformer-") as folder:
            copy = Path(folder) / path.rsplit("/", 1)[-1]
            with self._errors():
                fs.copy_files(
                    path,
                    str(copy),
                    source_filesystem=self.filesystem,
                    destination_filesystem=fs.LocalFileSystem(),
                )
            yield copy

    def names(self) -> set[str]:
        """Return the names in the folder; none if it does not exist."""
        from pyarrow import fs

        with self._errors():
            files = self.filesystem.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return {file.base_name for file in files}

    def read(self, name: str) -> bytes:
        with self._errors(), self.filesystem.open_input_stream(f"{self.path}/{name}") as file:
            return bytes(file.read())

    @contextmanager
    def new_file(self, name: str) -> Iterator[Path]:
        """Yield a local path to write; the file then appears in the folder, complete or not at all."""
        if self.is_local:
            target = Path(self.path)
            temporary = target / f".{name}-{secrets.token_hex(4)}"
            temporary.mkdir(parents=True)
        else:
            temporary = Path(tempfile.mkdtemp(prefix="glassformer-"))
        try:
            yield temporary / name
            with self._errors():
                if self.is_local:
                    os.replace(temporary / name, target / name)
                    sync_folder(target)
                else:
                    self._upload(temporary / name, name)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def interrupted(self, name: str) -> int:
        """Return how many processes were killed while they wrote a file; 0 if the folder is not local."""
        return len(list(Path(self.path).glob(f".{name}-*"))) if self.is_local else 0

    def _upload(self, file: Path, name: str) -> None:
        with file.open("rb") as source, self.filesystem.open_output_stream(f"{self.path}/{name}") as target:
            shutil.copyfileobj(source, target, 1 << 20)

    def delete(self, names: set[str]) -> None:
        """Delete files."""
        for name in names:
            with self._errors():
                self.filesystem.delete_file(f"{self.path}/{name}")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            problem = f"cannot be used ({str(error).splitlines()[0]})"
            raise FileProblemError(str(self), problem) from None
