"""An AXI4 master that loses no cycle: it asks in the cycle in which it is told to, and has its answers in theirs.

So a host on the gates takes as long for an access as `kohakutpu.model.host_port` and the host's memory window say
(docs/microarchitecture.md, host port). For use in a job (`sim.inside`), between two falling edges of the clock.
"""

from __future__ import annotations

from collections.abc import Callable

from cocotb.triggers import FallingEdge, First, RisingEdge, Timer

from kohakutpu.host.transport import TransportError
from kohakutpu.isa.memory import APERTURE_ADDRESS, Aperture
from kohakutpu.model.host_port import pieces
from rtl.axi import AxiSignature, Burst, Response

PERIOD = 4  # ns
SETTLE_PS = 500  # from a falling edge to where every ready has followed its valid; the rising edge is later


SOURCE_BYTES = 256  # of an FP16 entry, half of which is stored


def is_upload(address: int) -> bool:
    """Whether what is written at an address is quantised on its way into memory."""
    aperture = APERTURE_ADDRESS.get(address, "aperture")
    return bool(APERTURE_ADDRESS.get(address, "special")) and aperture in (Aperture.UPLOAD_A, Aperture.UPLOAD_B)


class BusError(TransportError):
    """The machine answered an access with something else than OKAY."""


class HostBus:
    """The master of the AXI4 slave whose wires of `dut` begin with `prefix`, `width` bytes a beat.

    `alive` is called whenever an access has waited for `patience` cycles more; it raises to give up.
    """

    def __init__(self, dut, prefix: str, width: int, alive: Callable[[], None], patience: int):
        self.width = width
        self._clk = dut.clk
        self._alive = alive
        self._patience = patience
        self._driven: dict[str, int] = {}
        members = AxiSignature(addr_width=1, data_width=8 * width, id_width=1).members
        self._wires = {name: getattr(dut, f"{prefix}{name}") for name in members}
        self._drive(
            awid=0, awsize=width.bit_length() - 1, awburst=Burst.INCR, awvalid=0, wvalid=0, bready=1,
            arid=0, arsize=width.bit_length() - 1, arburst=Burst.INCR, arvalid=0, rready=1,
        )  # fmt: skip

    def _drive(self, **values: int) -> None:
        for name, value in values.items():
            if self._driven.get(name) != value:
                self._driven[name] = value
                self._wires[name].value = int(value)

    def _is(self, *names: str) -> bool:
        return all(int(self._wires[name].value) for name in names)

    async def _rise(self, name: str) -> None:
        """Let the machine run, at a falling edge with nothing left to drive, until a wire is 1 at such an edge.

        Only a clock edge can change it, so that it has settled then; looking in every cycle would take most of the
        time.
        """
        while not self._is(name):
            limit = Timer(self._patience * PERIOD + 1, "ns")
            if await First(RisingEdge(self._wires[name]), limit) is limit:
                self._alive()
            await FallingEdge(self._clk)

    def _check(self, name: str, what: str) -> None:
        response = Response(int(self._wires[name].value))
        if response != Response.OKAY:
            raise BusError(f"{what} was answered with {response.name}")

    def _bursts(self, address: int, length: int) -> list[tuple[int, int]]:
        """(address, beats) of each burst; of an upload, one for each entry at the address where it is stored."""
        width = self.width
        if is_upload(address):
            return [(address + at // 2, SOURCE_BYTES // width) for at in range(0, length, SOURCE_BYTES)]
        spans = pieces(address // width * width, -(-(address + length) // width) * width, width)
        return [(start, (end - start) // width) for start, end in spans]

    async def write(self, address: int, data: bytes) -> None:
        """Write bytes; returns in the cycle after the last response. Raises `BusError`."""
        width, what = self.width, f"a write of {len(data)} bytes at {address:#x}"
        front = address % width
        bursts = self._bursts(address, len(data))
        burst = Burst.FIXED if is_upload(address) else Burst.INCR
        total = width * sum(beats for _, beats in bursts)
        padded = (bytes(front) + data).ljust(total, b"\0")
        mask = ((1 << len(data)) - 1) << front
        last = {sum(beats for _, beats in bursts[: number + 1]) - 1 for number in range(len(bursts))}
        opened = sent = answered = cycles = 0
        while opened < len(bursts) or sent * width < total:
            if opened < len(bursts):
                self._drive(awvalid=1, awburst=burst, awaddr=bursts[opened][0], awlen=bursts[opened][1] - 1)
            else:
                self._drive(awvalid=0)
            if sent * width < total:
                at = sent * width
                self._drive(
                    wvalid=1, wdata=int.from_bytes(padded[at : at + width], "little"),
                    wstrb=mask >> at & (1 << width) - 1, wlast=sent in last,
                )  # fmt: skip
            else:
                self._drive(wvalid=0)
            await Timer(SETTLE_PS, "ps")
            takes, beats, answers = self._is("awvalid", "awready"), self._is("wvalid", "wready"), self._is("bvalid")
            if answers:
                self._check("bresp", what)
            await FallingEdge(self._clk)
            opened, sent, answered = opened + takes, sent + beats, answered + answers
            cycles += 1
            if cycles % self._patience == 0:
                self._alive()
        self._drive(awvalid=0, wvalid=0)
        await Timer(SETTLE_PS, "ps")
        while answered < len(bursts):
            await self._rise("bvalid")
            self._check("bresp", what)
            answered += 1
            await FallingEdge(self._clk)

    async def read(self, address: int, length: int) -> bytes:
        """Read bytes; returns in the cycle after the last beat. Raises `BusError`."""
        what = f"a read of {length} bytes at {address:#x}"
        bursts = self._bursts(address, length)
        total = sum(beats for _, beats in bursts)
        found: list[bytes] = []
        asked = cycles = 0

        def take() -> None:
            self._check("rresp", what)
            found.append(int(self._wires["rdata"].value).to_bytes(self.width, "little"))

        while asked < len(bursts):
            self._drive(arvalid=1, araddr=bursts[asked][0], arlen=bursts[asked][1] - 1)
            await Timer(SETTLE_PS, "ps")
            takes = self._is("arready")
            if self._is("rvalid"):
                take()
            await FallingEdge(self._clk)
            asked += takes
            cycles += 1
            if cycles % self._patience == 0:
                self._alive()
        self._drive(arvalid=0)
        await Timer(SETTLE_PS, "ps")
        while len(found) < total:
            await self._rise("rvalid")
            take()
            await FallingEdge(self._clk)
        return b"".join(found)[address % self.width :][:length]
