"""What every transport must do: scripts that get an open transport and its machine, and return what they saw.

A script is run through each transport unchanged (test_transport_conformance.py, and test_rtl_transport.py for gates);
what it returns must be the same through all of them.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from transport_traffic import Traffic

from kohakutpu.compiler import compile_kernel
from kohakutpu.host.compare import digest
from kohakutpu.host.driver import Driver, NoAnswer
from kohakutpu.host.loader import Loader
from kohakutpu.host.transport import CONTROL_BASE, CONTROL_SIZE, MEMORY_BASE, MEMORY_SIZE, Transport, TransportError
from kohakutpu.isa import registers
from kohakutpu.isa.flit import node
from kohakutpu.kernels.linear import linear_silu
from kohakutpu.machine import Machine

AT = MEMORY_BASE + 0x8000
CTRL = CONTROL_BASE + registers.CTRL.offset
REFUSED = (
    (CONTROL_BASE + 4, 8, "multiple of 8"),
    (CONTROL_BASE, 12, "length 12"),
    (CONTROL_BASE, 0, "length 0"),
    (CONTROL_BASE - 8, 8, "no window|every window"),
    (CONTROL_BASE + CONTROL_SIZE - 8, 16, "no window|every window"),
    (MEMORY_BASE - 8, 16, "no window|every window"),
    (MEMORY_BASE + MEMORY_SIZE, 8, "no window|every window"),
)


def words_and_blocks_agree(transport: Transport, machine: Machine):
    """A block is ascending little-endian words, in both windows."""
    transport.write64(AT, 0x0123456789ABCDEF)
    transport.write64(AT + 8, 0xFEDCBA9876543210)
    block = transport.read_block(AT, 16)
    assert block == bytes.fromhex("efcdab89674523011032547698badcfe"), f"{AT:#x}"
    transport.write_block(AT + 8, bytes(range(24)))
    words = [transport.read64(AT + at) for at in range(0, 40, 8)]
    assert words[0] == 0x0123456789ABCDEF and words[1] == 0x0706050403020100 and words[3] == 0x1716151413121110, (
        f"{AT:#x}"
    )
    one, other = (CONTROL_BASE + register.offset for register in (registers.PROG_DST, registers.PROG_LEN))
    transport.write_block(one, (0x21).to_bytes(8, "little") + (0x345).to_bytes(8, "little"))
    assert (transport.read64(one), transport.read64(other)) == (0x21, 0x345), f"{one:#x}"
    assert transport.read_block(one, 16) == bytes([0x21, *[0] * 7, 0x45, 3, *[0] * 6]), f"{one:#x}"
    return block.hex(), words


def nothing_around_a_write_changes(transport: Transport, machine: Machine):
    """Lengths and offsets around words, granules and pages; the bytes on both sides stay."""
    pad = b"\xaa" * 128
    seen = hashlib.sha256()
    for length in (8, 16, 56, 64, 72, 256, 520, 4096, 4104):
        for offset in (0, 8, 56, 64, 4096 - 8):
            at = AT + offset
            data = bytes((i * 7 + length) & 0xFF for i in range(length))
            transport.write_block(at - 128, pad + bytes(length) + pad)
            transport.write_block(at, data)
            found = transport.read_block(at - 128, length + 256)
            assert found == pad + data + pad, f"{length} bytes at {at:#x}"
            seen.update(found)
    return seen.hexdigest()


def registers_are_what_they_are(transport: Transport, machine: Machine):
    """A constant, storage, one that cannot be written, one that nobody has."""
    caps = Driver(transport).identify()
    transport.write64(CTRL, 0xDEADBEEF_12345678)
    assert transport.read64(CTRL) == 0xDEADBEEF_12345678, f"{CTRL:#x}"
    transport.write64(CONTROL_BASE + registers.CAPS.offset, 0)
    assert Driver(transport).identify() == caps
    transport.write64(CONTROL_BASE + 0x28, 1)
    assert transport.read64(CONTROL_BASE + 0x28) == 0, f"{CONTROL_BASE + 0x28:#x}"
    return caps


def refusals_name_the_address(transport: Transport, machine: Machine):
    """Nothing that is refused reaches the machine, and the transport goes on."""
    transport.write64(CTRL, 77)
    for address, length, reason in REFUSED:
        for ask in (
            lambda: transport.read_block(address, length),
            lambda: transport.write_block(address, bytes(length)),
        ):
            with pytest.raises(TransportError, match=reason) as caught:
                ask()
            assert f"{address:#x}" in str(caught.value)
    with pytest.raises(TransportError, match="not a non-negative"):
        transport.read64(-8)
    return transport.read64(CTRL)


def outside_the_memory_is_refused(transport: Transport, machine: Machine):
    """Wholly, in part, and in an aperture that is not built; the transport goes on, and nothing else has changed.

    Of a block that is outside in part, what lies inside may have been written.
    """
    end = MEMORY_BASE + machine.memory.bytes
    transport.write_block(end - 64, bytes(range(64)))
    for address in (end - 8, end, MEMORY_BASE + (1 << 39)):
        with pytest.raises(TransportError, match=f"{address:#x}"):
            transport.read_block(address, 16)
        with pytest.raises(TransportError, match=f"{address:#x}"):
            transport.write_block(address, bytes(16))
    assert transport.read_block(end - 64, 56) == bytes(range(56)), f"{end - 64:#x}"


def time_passes(transport: Transport, machine: Machine):
    """The clock never goes back, and a pause is no access."""
    before = transport.now
    transport.read64(CTRL)
    between = transport.now
    transport.pause()
    assert before <= between <= transport.now and transport.unit in ("cycles", "s")
    if transport.unit == "cycles":
        assert before < between < transport.now
    return transport.bulk


def a_wait_in_vain_is_reported(transport: Transport, machine: Machine):
    """The driver's time-out, with whatever the transport knows; afterwards everything works."""
    driver = Driver(transport, timeout={"cycles": 500, "s": 0.05}[transport.unit])
    with pytest.raises(
        NoAnswer, match=r"NODE_STATUS\[0x21\] still reads count=0 valid=0 after .* wanted count=3 valid=1"
    ) as caught:
        driver.await_signals(node(1, 2), 3)
    if transport.progress is not None:
        assert "nodes:" in str(caught.value) or "control agent:" in str(caught.value)
    return driver.identify()


def a_kernel_runs(transport: Transport, machine: Machine):
    """A whole program through the loader, twice; what it computes is in the result."""
    artifact = compile_kernel(linear_silu, machine, {"x": (32, 64), "w": (32, 64)}, {"gm": 8, "gn": 8})
    digests = []
    for seed in (1, 2):
        random = np.random.default_rng(seed)
        operands = {name: random.normal(0, 0.3, (32, 64)).astype(np.float16) for name in ("x", "w")}
        digests.append(digest(Loader(Driver(transport)).run(artifact, operands).outputs["y"]))
    assert digests[0] != digests[1]
    return digests


def random_accesses(transport: Transport, machine: Machine):
    """A little of what the nightly does a million times."""
    traffic = Traffic(transport, machine, seed=5, longest=16)
    traffic.run(1500)
    return traffic.requests, traffic.ledger.words, traffic.ledger.digest.hexdigest()


SCRIPTS = (
    words_and_blocks_agree, nothing_around_a_write_changes, registers_are_what_they_are, refusals_name_the_address,
    outside_the_memory_is_refused, time_passes, a_wait_in_vain_is_reported, a_kernel_runs, random_accesses,
)  # fmt: skip
