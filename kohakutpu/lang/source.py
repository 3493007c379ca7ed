"""Where a statement stands in the kernel's source, and the error that says so."""

from __future__ import annotations

import itertools
import linecache
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


@dataclass(frozen=True)
class Source:
    """One line of a kernel: `file` as Python knows it, 1-based `line`, and the line's text.

    `span` is what of the text is meant, as (first, end) characters; empty when that is not known.
    """

    file: str
    line: int
    text: str
    span: tuple[int, int] = field(default=(0, 0), compare=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def short(self) -> str:
        """Like `str`, with the path cut to what does not depend on where the project stands."""
        parts = self.file.replace(os.sep, "/").split("/")
        start = len(parts) - 1 - parts[::-1].index("kohakutpu") if "kohakutpu" in parts else len(parts) - 1
        return f"{'/'.join(parts[start:])}:{self.line}"

    @property
    def underlined(self) -> str:
        """The text, with what is meant of it underlined on the next line (all of it when that is not known)."""
        first, end = self.span if self.span[1] > self.span[0] else (0, len(self.text))
        return f"    {self.text}\n    {' ' * first}{'^' * (end - first)}"


class KernelError(ValueError):
    """A kernel, its trace, its shapes or its knobs are refused; `source` is the offending line where one is known."""

    def __init__(self, message: str, source: Source | None = None):
        where = f"{source}: {message}" if source else message
        super().__init__(f"{where}\n{source.underlined}" if source and source.text else where)
        self.message = message
        self.source = source


@contextmanager
def located(source: Source) -> Iterator[None]:
    """Errors that know no line of the kernel get this one."""
    try:
        yield
    except KernelError as error:
        if error.source is not None:
            raise
        raise type(error)(error.message, source) from error


def at(code_file: str, line: int) -> Source:
    """The `Source` of a line of a file."""
    return Source(code_file, line, linecache.getline(code_file, line).strip())


def definition(code_file: str, line: int) -> Source:
    """The `Source` of the `def` of a function whose code begins at that line: decorators stand above it."""
    for number in range(line, len(linecache.getlines(code_file)) + 1):
        found = at(code_file, number)
        if found.text.startswith("def "):
            return found
        if not found.text.startswith("@"):
            break
    return at(code_file, line)


def here() -> Source:
    """The innermost line being executed outside this package: the statement that the author wrote."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(_PACKAGE) or frame.f_globals.get("__name__") == "contextlib"
    ):
        frame = frame.f_back
    return _within(at(frame.f_code.co_filename, frame.f_lineno), frame)


def _within(source: Source, frame: FrameType) -> Source:
    """The source with the columns that the frame is executing, when Python kept them and they lie in the one line."""
    places = itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None)
    line, end_line, first, end = next(places, (None, None, None, None))
    if line != source.line or end_line != line or first is None or end is None:
        return source
    raw = linecache.getline(source.file, line).encode()
    first, end = len(raw[:first].decode(errors="replace")), len(raw[:end].decode(errors="replace"))
    indent = len(raw.decode()) - len(raw.decode().lstrip())
    return replace(source, span=(max(first - indent, 0), min(end - indent, len(source.text))))
