"""Transports around a transport: other addresses, fewer addresses."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..transport import CONTROL_SIZE, MEMORY_SIZE, WORD, Transport, TransportError, check_access, locate


class Wrapper(Transport):
    """Everything as the transport inside has it."""

    def __init__(self, inner: Transport):
        self.inner = inner
        self.bulk = inner.bulk
        self.unit = inner.unit

    @property
    def walked(self) -> Mapping[int, list[tuple[int, int]]]:
        return self.inner.walked

    @walked.setter
    def walked(self, value: Mapping[int, list[tuple[int, int]]]) -> None:
        self.inner.walked = value

    def write64(self, address: int, value: int) -> None:
        self.inner.write64(address, value)

    def read64(self, address: int) -> int:
        return self.inner.read64(address)

    def write_block(self, address: int, data: bytes) -> None:
        self.inner.write_block(address, data)

    def read_block(self, address: int, length: int) -> bytes:
        return self.inner.read_block(address, length)

    @property
    def now(self) -> float:
        return self.inner.now

    def pause(self) -> None:
        self.inner.pause()

    @property
    def progress(self) -> int | None:
        return self.inner.progress

    def diagnose(self) -> str:
        return self.inner.diagnose()

    def close(self) -> None:
        self.inner.close()


class Mapped(Wrapper):
    """A wrapper that asks `place(address, length, what)` where an access goes; that may refuse it."""

    def place(self, address: int, length: int, what: str) -> int:
        raise NotImplementedError

    def _access(self, address: int, length: int, what: str, access: Callable):
        """`access` to where `address` is inside; its failure names the address that was asked for, too."""
        place = self.place(address, length, what)
        try:
            return access(place)
        except TransportError as error:
            if place == address:
                raise
            raise type(error)(f"{what} of {length} bytes at {address:#x}: {error}") from error

    def write64(self, address: int, value: int) -> None:
        self._access(address, WORD, "write", lambda place: self.inner.write64(place, value))

    def read64(self, address: int) -> int:
        return self._access(address, WORD, "read", self.inner.read64)

    def write_block(self, address: int, data: bytes) -> None:
        self._access(address, len(data), "write", lambda place: self.inner.write_block(place, data))

    def read_block(self, address: int, length: int) -> bytes:
        return self._access(address, length, "read", lambda place: self.inner.read_block(place, length))


class Rebased(Mapped):
    """The register window at `control` and the memory window at `memory` of what is inside, where a board has them."""

    def __init__(self, inner: Transport, *, control: int, memory: int):
        super().__init__(inner)
        check_access(control, WORD, "control window")
        check_access(memory, WORD, "memory window")
        if control < memory + MEMORY_SIZE and memory < control + CONTROL_SIZE:
            raise TransportError(
                f"the control window at {control:#x} (+{CONTROL_SIZE:#x}) lies in the memory window at "
                f"{memory:#x} (+{MEMORY_SIZE:#x})"
            )
        self._bases = {"control": control, "memory": memory}

    def place(self, address: int, length: int, what: str) -> int:
        window, offset = locate(address, length, what)
        return self._bases[window] + offset


class Window(Mapped):
    """Only what lies in one of `windows`, {name: (start, size)}; everything else is refused before it reaches the
    machine.
    """

    def __init__(self, inner: Transport, windows: Mapping[str, tuple[int, int]]):
        super().__init__(inner)
        for name, (start, size) in windows.items():
            check_access(start, size, f"window {name}")
        self._windows = dict(windows)

    def place(self, address: int, length: int, what: str) -> int:
        check_access(address, length, what)
        for start, size in self._windows.values():
            if start <= address and address + length <= start + size:
                return address
        known = ", ".join(f"{name} is {start:#x}..+{size:#x}" for name, (start, size) in self._windows.items())
        raise TransportError(f"{what} of {length} bytes at {address:#x} leaves every window: {known}")
