"""The registry of published misbehaviours (spec: errata): what the published hardware does, and what ours does.

A machine file names those it wants with `errata:`; the models then reproduce the ones marked reproducible. The
others hang the published hardware, depend on its pipeline's timing, or belong to its software: naming them is legal and
changes nothing. `kohakutpu errata` says which are which.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Erratum:
    """One published misbehaviour. `affected` is the block it lives in; `reproducible` that the models can show it."""

    id: str
    published: str
    ours: str
    affected: str
    reproducible: bool = False


class UnknownErratum(ValueError):
    """An identifier that is not in the registry."""

    def __init__(self, identifier: str):
        near = difflib.get_close_matches(identifier, REGISTRY, 1, 0.4)
        hint = f"did you mean {near[0]}?" if near else f"identifiers are {', '.join(REGISTRY)}"
        super().__init__(f"unknown erratum {identifier!r}; {hint}")
        self.identifier = identifier


_ALL = (
    Erratum(
        "exp2-wrap",
        "exp2 of a magnitude from 128 up to 256 wraps its exponent: exp2(-200) gives 2^56",
        "infinity or +0, as for every larger magnitude",
        "vector core ALU: any program with VEXP2 on such an input",
        True,
    ),
    Erratum(
        "fp32-store",
        "an FP32 VST puts both halves of a chunk into its first word",
        "two words, elements 0..7 and then 8..15",
        "vector core: FP32 stores",
        True,
    ),
    Erratum(
        "vcvt-late",
        "VCVT to FP16 converts the chunk before the one it names",
        "the chunk it names",
        "vector core: VCVT",
        True,
    ),
    Erratum(
        "predicate-hazard",
        "a predicated operation right after a compare reads the predicate of before; compiled selects are hit",
        "interlocked",
        "vector core: predicated operations near a compare",
    ),
    Erratum(
        "vote-register",
        "ANY and ALL vote on the predicate register that the previous word named",
        "the register their own word names",
        "vector core: ANY, ALL",
        True,
    ),
    Erratum(
        "expsum-stale-predicate",
        "the vector write of EXPSUM is masked by the mask of the last ALU word",
        "not masked",
        "vector core: EXPSUM",
        True,
    ),
    Erratum(
        "chain-overlap",
        "two different chains with nothing between them corrupt each other",
        "interlocked",
        "vector core: CHAIN mode",
    ),
    Erratum(
        "chain-count",
        "a chain of depth 4 over 8 chunks overflows the count of pending writes",
        "counted right",
        "vector core: CHAIN mode at full length",
    ),
    Erratum(
        "tree-alu",
        "an ALU word in TREE mode hangs the core",
        "fault F_OPCODE",
        "vector core: TREE mode",
    ),
    Erratum(
        "chain-class",
        "a word inside a chain that is no ALU word runs as VMOV",
        "fault F_OPCODE",
        "vector core: CHAIN mode",
    ),
    Erratum(
        "loop-empty",
        "VLOOP with an empty body never ends",
        "the loop ends at once",
        "vector core: VLOOP",
    ),
    Erratum(
        "peer-route",
        "under backpressure the last word of a drain to a peer can leave as a memory write",
        "the route is held until the word has left",
        "vector core: drains to a node",
    ),
    Erratum(
        "reject-silent",
        "a rejected or interleaved burst into a vector core is never acknowledged, and the receiver stays out of step",
        "acknowledged, counted out to its last flit, F_CUDATA raised",
        "vector core: CU_DATA receive",
        True,
    ),
    Erratum(
        "caps-buffers",
        "the vector core reports two buffers and has one",
        "it reports one",
        "discovery: CU_CAPS of a vector core",
        True,
    ),
    Erratum(
        "emit-load",
        "an emitting GEMM with acc = 0 and nk = 1 emits nothing and the fused drain waits for good",
        "it emits",
        "matmul cluster: fused drains",
    ),
    Erratum(
        "fused-drain-destination",
        "a fused DRAIN that does not repeat the emitting GEMM's destination sends the results elsewhere",
        "the DRAIN's destination holds",
        "matmul cluster: fused drains",
    ),
    Erratum(
        "write-orphan",
        "write data with no open write stays at the head of the port's write queue for good",
        "dropped and counted",
        "memory agent: every writer of that port",
        True,
    ),
    Erratum(
        "mirror-reset",
        "the status mirror keeps its counts across a reset",
        "the same: the driver takes baselines",
        "orchestrator: drivers that expect zeros",
    ),
    Erratum(
        "discovery-race",
        "discovery reads the mailbox once without waiting, and only finds an agent at (0,1)",
        "a bounded wait, and any agent coordinate",
        "driver: discovery over a fast transport, machines with the agent elsewhere",
    ),
    Erratum(
        "dispatch-flood",
        "more instructions in flight than a unit's FIFO holds block the unit's own fill responses",
        "credit makes it impossible; seeding more credit than the FIFO holds is an error",
        "dispatch: hosts that seed too much credit",
    ),
    Erratum(
        "interlink-interleave",
        "two remote bursts interleaved at one port can stop the encapsulator",
        "a packet per source",
        "interlink: several senders to another mesh",
    ),
    Erratum(
        "bias-walk",
        "a per-channel bias is wrong unless gn divides 8 or is a multiple of it",
        "right for every gn, or refused",
        "compiler: per-channel bias",
    ),
    Erratum(
        "ack-round",
        "an instance of more than 128 flits has its acknowledgements awaited in the wrong round",
        "awaits are attached to their window",
        "runtime: long cluster programs",
    ),
    Erratum(
        "late-refusal",
        "limits of descriptors, images and banks are first noticed at encode",
        "noticed at plan",
        "compiler: programs near a limit",
    ),
    Erratum(
        "conv-plane",
        "with a small gm the layout of conv2d's result is shorter than its plane",
        "the result has the rows that are swept; another one is refused",
        "compiler: conv2d",
    ),
    Erratum(
        "l1-exact",
        "a fused footprint of exactly 512 words (gm*gn of 249 to 256) is let through",
        "refused, as every footprint above L1_SAFE",
        "compiler: fused kernels",
    ),
    Erratum(
        "l1-band",
        "vector L1 footprints of 352 to 480 words gave wrong results on the card, for no known reason",
        "still refused; our RTL is tested across the band",
        "compiler: fused kernels; the vector core's L1",
    ),
)

REGISTRY: dict[str, Erratum] = {erratum.id: erratum for erratum in _ALL}
PUBLISHED: frozenset[str] = frozenset(erratum.id for erratum in _ALL if erratum.reproducible)


def parse(given: str | Iterable[str]) -> frozenset[str]:
    """The identifiers an `errata:` statement switches on.

    `published` is every reproducible one; otherwise one identifier or several. Raises UnknownErratum, naming the
    closest identifier.
    """
    if given == "published":
        return PUBLISHED
    identifiers = [given] if isinstance(given, str) else list(given)
    for identifier in identifiers:
        if identifier not in REGISTRY:
            raise UnknownErratum(identifier)
    return frozenset(identifiers)
