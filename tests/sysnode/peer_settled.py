"""What the seed (fused epilogue, section 7) says that simulation settled, as named checks of what a machine sent.

The peer bench's tile goes to the agent and to the vector core, which copies it to memory and doubles it. Each check
reads the links and the memory image of such a run; the last two are of the seed's list of what was still unverified,
and have programs of their own. `BROKEN` holds programs that must not pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import peer_scenario as peer

from kohakutpu.isa import cluster, vector
from kohakutpu.isa.flit import Flit, FlitType
from kohakutpu.isa.signals import CU_DATA, CU_SIGNAL, SIGNAL_ON_COMPLETE, SignalCode
from kohakutpu.isa.vector import DescField, Fault, Opcode

PAUSES = (1, 900, 900, 900)  # cycles before each phase; the one before is over then
IMAGES = [(peer.DRAINED, 32 * peer.TILES), (peer.DOUBLED, 32 * peer.TILES)]
WBURST = 8
Phases = list[list[Flit]]
ROWS, COLUMNS, PITCH = 3, 2, 96  # of the drain in two dimensions; bytes
WORDS = [int.from_bytes(bytes([i + 1]) * 32, "little") for i in range(ROWS * COLUMNS)]


class Evidence(NamedTuple):
    """Flits by the link that they moved on, and the memory at `IMAGES` afterwards."""

    links: dict[str, list[Flit]]
    drained: bytes
    doubled: bytes

    def bursts(self, target: int) -> tuple[int, dict[int, bytes]]:
        """(number of descriptors, granule by offset) of what the cluster sent to `target`."""
        sent = [f for f in self.links["cluster0.out"] if f.type == FlitType.CU_DATA and f.dst == target]
        return peer.granules(sent)

    def acknowledged(self) -> list[Flit]:
        """The core's DATA_RECEIVED."""
        signals = [f for f in self.links["vector0.out"] if f.type == FlitType.CU_SIGNAL]
        return [f for f in signals if CU_SIGNAL.get(f.payload, "code") == SignalCode.DATA_RECEIVED]


def one_granule_for_each_sub_tile(seen: Evidence) -> None:
    """A drain with buf = 0 delivers FP16 sub-tiles, one granule each, at their own offsets."""
    _, granules = seen.bursts(peer.CORE)
    assert list(granules) == list(range(peer.TILES)), f"granules at {list(granules)}"


def the_image_in_l1_is_the_drained_one(seen: Evidence) -> None:
    """What the core's L1 held, copied to memory, is what the agent was sent, byte for byte."""
    _, golden = seen.bursts(peer.AGENT)
    assert len(golden) == peer.TILES and any(map(any, golden.values()))
    for tile, granule in golden.items():
        assert seen.drained[32 * tile : 32 * tile + 32] == granule, f"sub-tile {tile}"


def one_data_received_for_each_burst(seen: Evidence) -> None:
    """ceil(9 / 8) descriptors, as many DATA_RECEIVED, each at the agent with the buffer as its argument."""
    descriptors, _ = seen.bursts(peer.CORE)
    answers = [(f.dst, CU_SIGNAL.get(f.payload, "arg")) for f in seen.acknowledged()]
    assert descriptors == -(-peer.TILES // WBURST), f"{descriptors} descriptors"
    assert answers == [(peer.AGENT, 0)] * descriptors, f"answers {answers}"


def the_epilogue_is_exact_with_no_fill(seen: Evidence) -> None:
    """Each element is the drained one doubled, and the core has read nothing from memory."""
    fills = [f for f in seen.links["vector0.out"] if f.type == FlitType.MEM_RD_REQ]
    assert not fills, f"{len(fills)} read requests"
    _, golden = seen.bursts(peer.AGENT)
    tile = np.frombuffer(b"".join(golden[i] for i in range(peer.TILES)), "<u2")
    have, want = np.frombuffer(seen.doubled, "<u2"), np.array([peer.doubled(int(bits)) for bits in tile])
    assert (have == want).all(), f"{(have != want).sum()} of {want.size} elements differ"


def a_zero_acknowledgement_node_is_wrong(seen: Evidence) -> None:
    """The answers go to the sending cluster, which drops them: they arrive there, and the agent hears of none."""
    answered = [f.dst for f in seen.acknowledged()]
    assert answered == [peer.CLUSTER] * 2, f"answers to {answered}"
    came = [f for f in seen.links["r21.local"] if f.type == FlitType.CU_SIGNAL]
    assert came == seen.acknowledged(), "the cluster was not answered"
    told = [CU_SIGNAL.get(f.payload, "code") for f in seen.links["r11.local"] if f.type == FlitType.CU_SIGNAL]
    assert SignalCode.DATA_RECEIVED not in told and SignalCode.FAULT not in told


def a_rejected_burst_is_answered(seen: Evidence) -> None:
    """Of a buffer that the core has not: one DATA_RECEIVED that names it, and the RUN after it ends with F_CUDATA."""
    answers = [(f.dst, CU_SIGNAL.get(f.payload, "arg")) for f in seen.acknowledged()]
    assert answers == [(peer.AGENT, 1)], f"answers {answers}"
    ends = [CU_SIGNAL.decode(f.payload) for f in seen.links["vector0.out"] if f.type == FlitType.CU_SIGNAL][1:]
    codes = [(end["code"], end["arg"] if end["code"] == SignalCode.FAULT else 0) for end in ends]
    done = (SignalCode.INST_COMPLETE, 0)
    assert codes == [done, (SignalCode.FAULT, Fault.F_CUDATA), done], f"ends {codes}"


def a_drain_walks_two_dimensions(seen: Evidence) -> None:
    """Rows of two words, three words apart: a write burst for each row, and nothing between them."""
    requests = [f for f in seen.links["vector0.out"] if f.type == FlitType.MEM_WR_REQ]
    assert len(requests) == ROWS, f"{len(requests)} write requests"
    for row in range(ROWS):
        want = b"".join(word.to_bytes(32, "little") for word in WORDS[row * COLUMNS : (row + 1) * COLUMNS])
        have = seen.drained[row * PITCH : (row + 1) * PITCH]
        assert have == want.ljust(PITCH, b"\0"), f"row {row}"


def _burst(words: list[int], **fields: int) -> list[Flit]:
    """A CU_DATA burst to the core that asks for an answer at the agent."""
    asks = {"flags": SIGNAL_ON_COMPLETE, "ack_x": peer.AGENT & 15, "ack_y": peer.AGENT >> 4}
    payloads = [CU_DATA.encode(len=len(words) - 1, **asks | fields), *words]
    flit = Flit(peer.CORE, peer.AGENT, FlitType.CU_DATA, 0, 0, 0, 0)
    return [flit._replace(last=int(place == len(words)), payload=payload) for place, payload in enumerate(payloads)]


def rejected(**fields: int) -> Callable[[Phases], Phases]:
    """A burst to buffer 1, and a kernel that ends, run twice."""
    halt = vector.IMEM.encode(addr=0, word=vector.encode(Opcode.VHALT))
    run = vector.RUN.encode(pc=0)
    return lambda phases: [_burst([1, 2, 3], **{"buf": 1} | fields), peer.to_core(halt, run, run)]


def walk(rows: int, pitch: int) -> Callable[[Phases], Phases]:
    """A VDRAIN of `WORDS` as `rows` rows `pitch` bytes apart."""
    drain, halt = vector.encode(Opcode.VDRAIN, ad=2), vector.encode(Opcode.VHALT)
    instructions = [vector.IMEM.encode(addr=place, word=word) for place, word in enumerate((drain, halt))]
    instructions += [
        vector.DESC_BASE.encode(ad=2, field=DescField.BASE, base=peer.DRAINED),
        vector.DESC_DIM.encode(ad=2, field=DescField.DIM0, stride=32, bound=COLUMNS),
        vector.DESC_DIM.encode(ad=2, field=DescField.DIM0 + 1, stride=pitch, bound=rows),
        vector.RUN.encode(pc=0),
    ]
    return lambda phases: [_burst(WORDS), peer.to_core(*instructions)]


def _drain(**fields: int) -> Callable[[Phases], Phases]:
    """The drain to the core with other fields."""

    def changed(phases: Phases) -> Phases:
        gemm, drain = phases[1]
        payload = cluster.WORD.encode(**cluster.WORD.decode(drain.payload) | fields)
        return [phases[0], [gemm, drain._replace(payload=payload)], *phases[2:]]

    return changed


def _second_product(**fields: int) -> Callable[[Phases], Phases]:
    def changed(phases: Phases) -> Phases:
        gemm, drain = phases[1]
        payload = cluster.GEMM.encode(**cluster.GEMM.decode(gemm.payload) | fields)
        return [phases[0], [gemm._replace(payload=payload), drain], *phases[2:]]

    return changed


def _with_a_fill(phases: Phases) -> Phases:
    """The epilogue, and then a kernel that reads a word."""
    words = [vector.encode(Opcode.VFILL, ad=0, l1=128), vector.encode(Opcode.VHALT)]
    flits = [
        phases[3][-1]._replace(payload=vector.IMEM.encode(addr=128 + i, word=word)) for i, word in enumerate(words)
    ]
    return [*phases[:3], phases[3] + flits + [phases[3][-1]._replace(payload=vector.RUN.encode(pc=128))]]


def _another_epilogue(phases: Phases) -> Phases:
    """Tiles times themselves, not plus."""
    add, multiply = (vector.encode(op, vd=1, va=0, vb=0, vc=0) for op in (Opcode.VADD, Opcode.VMUL))
    layout = vector.IMEM
    changed = [
        f._replace(payload=layout.encode(**layout.decode(f.payload) | {"word": multiply}))
        if layout.get(f.payload, "op") == vector.Envelope.IMEM and layout.get(f.payload, "word") == add else f
        for f in phases[3]
    ]  # fmt: skip
    return [*phases[:3], changed]


def as_it_is(phases: Phases) -> Phases:
    return phases


UNNAMED = _drain(dack_x=0, dack_y=0)
# check -> the program that it holds for
CHECKS: dict[Callable[[Evidence], None], Callable[[Phases], Phases]] = {
    one_granule_for_each_sub_tile: as_it_is,
    the_image_in_l1_is_the_drained_one: as_it_is,
    one_data_received_for_each_burst: as_it_is,
    the_epilogue_is_exact_with_no_fill: as_it_is,
    a_zero_acknowledgement_node_is_wrong: UNNAMED,
    a_rejected_burst_is_answered: rejected(),
    a_drain_walks_two_dimensions: walk(ROWS, PITCH),
}
# what is wrong -> (check, program that must not pass it, what the check says then)
BROKEN = {
    "accumulators sent, not FP16": (one_granule_for_each_sub_tile, _drain(dbuf=2), "granules at"),
    "one sub-tile short": (one_granule_for_each_sub_tile, _drain(n=peer.TILES - 1), "granules at"),
    "the tile added to itself": (the_image_in_l1_is_the_drained_one, _second_product(acc=1), "sub-tile 0"),
    "no answer asked for": (one_data_received_for_each_burst, _drain(dflags=0), "answers"),
    "answers to nobody": (one_data_received_for_each_burst, UNNAMED, "answers"),
    "one burst": (one_data_received_for_each_burst, _drain(n=WBURST), "descriptors"),
    "a fill": (the_epilogue_is_exact_with_no_fill, _with_a_fill, "read requests"),
    "another operation": (the_epilogue_is_exact_with_no_fill, _another_epilogue, "elements differ"),
    "the agent named": (a_zero_acknowledgement_node_is_wrong, as_it_is, "answers to"),
    "no answer at all": (a_zero_acknowledgement_node_is_wrong, _drain(dack_x=0, dack_y=0, dflags=0), "answers to"),
    "a refused burst that asks for no answer": (a_rejected_burst_is_answered, rejected(flags=0), "answers"),
    "a burst that is not refused": (a_rejected_burst_is_answered, rejected(buf=0), "answers"),
    "rows that follow each other": (a_drain_walks_two_dimensions, walk(ROWS, 32 * COLUMNS), "row 0"),
    "a row too few": (a_drain_walks_two_dimensions, walk(ROWS - 1, PITCH), "write requests"),
    "a row further on": (a_drain_walks_two_dimensions, walk(ROWS, PITCH + 32), "row 1"),
}
# fault of the models -> the check that finds it
PLANTED = {
    "vector-l1-bit": the_image_in_l1_is_the_drained_one,
    "vector-drain-slip": the_image_in_l1_is_the_drained_one,
    "vector-lost-ack": one_data_received_for_each_burst,
    "cluster-drain-ack": one_data_received_for_each_burst,
    "vector-alu-sign": the_epilogue_is_exact_with_no_fill,
}


def groups(program: Callable[[Phases], Phases]) -> list[tuple[int, list[Flit]]]:
    """The bench's phases as `program` changes them, each with its pause."""
    return list(zip(PAUSES, program(peer.phases(*peer.operands()))))
