"""Where a statement stands in the kernel's source, and the error that says so."""

from __future__ import annotations

import linecache
import os
import sys
from dataclasses import dataclass

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


@dataclass(frozen=True)
class Source:
    """One line of a kernel: `file` as Python knows it, 1-based `line`, and the line's text."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def short(self) -> str:
        """Like `str`, with the path cut to what does not depend on where the project stands."""
        parts = self.file.replace(os.sep, "/").split("/")
        start = len(parts) - 1 - parts[::-1].index("kohakutpu") if "kohakutpu" in parts else len(parts) - 1
        return f"{'/'.join(parts[start:])}:{self.line}"


class KernelError(ValueError):
    """A kernel, its trace, its shapes or its knobs are refused; `source` is the offending line where one is known."""

    def __init__(self, message: str, source: Source | None = None):
        super().__init__(f"{source}: {message}\n    {source.text}" if source else message)
        self.message = message
        self.source = source


def at(code_file: str, line: int) -> Source:
    """The `Source` of a line of a file."""
    return Source(code_file, line, linecache.getline(code_file, line).strip())


def here() -> Source:
    """The innermost line being executed outside this package: the statement that the author wrote."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(_PACKAGE) or frame.f_globals.get("__name__") == "contextlib"
    ):
        frame = frame.f_back
    return at(frame.f_code.co_filename, frame.f_lineno)
