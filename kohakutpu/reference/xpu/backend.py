"""The reference interpreter as a back end of the launch surface."""

from __future__ import annotations

from kohakutpu.xpu.kernel import Kernel
from kohakutpu.xpu.launch import RUNTIME, Geometry, Request

from .run import Launch, refusals, run


class ReferenceBackEnd:
    """Runs anywhere, and reports nothing: what it runs on is no device."""

    name = "reference"

    def available(self) -> bool:
        """Always."""
        return True

    def geometry(self) -> Geometry:
        """All zero."""
        return Geometry()

    def refusal(self, kernel: Kernel) -> str | None:
        """The first refusal of a kernel and how many follow, or None."""
        found = refusals(kernel)
        return f"{found[0]}{f', and {len(found) - 1} more' if len(found) > 1 else ''}" if found else None

    def run(self, request: Request) -> None:
        """To the end; undefined behaviour is raised as it is found."""
        run(request.kernel, request.arguments, Launch(request.grid, request.block, shared_bytes=request.shared_bytes))


RUNTIME.register(ReferenceBackEnd())
