"""Output files appear complete or not at all."""

from __future__ import annotations

import gzip
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


class OutputError(ValueError):
    """An output that cannot be written: names the path and why."""


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """A full disk does not say whose output it did not take."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or isinstance(error, BrokenPipeError):
            raise
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def check_writable(path: Path) -> None:
    """Refuse an output path early, before the work whose result it would hold."""
    if path.is_dir():
        raise OutputError(f"cannot write {path}: it is a directory")
    if path.is_symlink() or (path.exists() and not path.is_file()):
        # A rename would put a plain file in place of a link, a pipe or a device.
        raise OutputError(f"cannot write {path}: it is a link or no plain file, and an output replaces what it names")
    if not path.parent.is_dir():
        raise OutputError(f"cannot write {path}: there is no directory {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise OutputError(f"cannot write {path}: {path.parent} is not writable")


def check_outputs(paths: list[Path]) -> None:
    """`check_writable` for all of them, which must be different files."""
    for path in paths:
        check_writable(path)
    for index, path in enumerate(paths):
        if path.resolve() in [other.resolve() for other in paths[:index]]:
            raise OutputError(f"{path} is named for two outputs")


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to a temporary name beside `path`, then rename."""
    check_writable(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with _naming(path), os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextmanager
def text_atomically(path: Path) -> Iterator[TextIO]:
    """A text file to write piece by piece under a temporary name beside `path`; renamed at the end. `NAME.gz` is
    compressed."""
    check_writable(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        opened = gzip.open(name, "wt", compresslevel=3) if path.suffix == ".gz" else open(name, "w")
        with _naming(path), opened as file:
            yield file
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
