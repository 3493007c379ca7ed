"""Where a construct stands in a kernel's source, and the errors that say so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """A construct: `file`, 1-based `line`, and `text`, its own source on one line."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}, near `{self.text}`"


@dataclass(frozen=True)
class Refusal:
    """A construct that has no meaning here. `inside` names the helper that it stands in, if any."""

    construct: str
    at: Source
    inside: str = ""

    def __str__(self) -> str:
        return f"{self.inside + ': ' if self.inside else ''}{self.construct} ({self.at})"


class XpuError(Exception):
    """Any error of a kernel: its declaration, its meaning, its run or its launch."""


class DeclarationError(XpuError, ValueError):
    """A decorator, an annotation or an instance is refused where it stands; the message says what was expected."""


class HostUse(XpuError, TypeError):
    """A name of the kernel language was used by host code, which never runs a kernel's body."""


class Refused(XpuError):
    """XPU-REF01: the kernel holds constructs without a meaning; nothing ran. `refusals` lists them all."""

    def __init__(self, kernel: str, refusals: list[Refusal]):
        more = f", and {len(refusals) - 1} more" if len(refusals) > 1 else ""
        super().__init__(f"XPU-REF01: {kernel}: {refusals[0]}{more}")
        self.refusals = refusals


class Undefined(XpuError):
    """XPU-REF02: undefined behaviour while running; `operation` and `at` say which, `where` in which work-item."""

    def __init__(self, operation: str, at: Source, where: str = ""):
        super().__init__(f"XPU-REF02: {operation} ({at}){': ' + where if where else ''}")
        self.operation, self.at, self.where = operation, at, where


class OverBudget(XpuError):
    """XPU-REF03: the run took longer than the launch allows."""


class XpuLaunchError(XpuError):
    """A launch that did not happen, or was found broken. `kernel`, `backend`, `reason` (of launch.REASONS), `code`."""

    def __init__(self, kernel: str, backend: str, code: int, reason: str, detail: str):
        super().__init__(f"{kernel} on {backend}: {reason}: {detail}")
        self.kernel, self.backend, self.code, self.reason = kernel, backend, code, reason
