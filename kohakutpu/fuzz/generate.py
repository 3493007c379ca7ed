"""Random programs for a machine: units at work side by side, traffic of the bench, faults and nonsense on purpose.

Most programs are tidy: streams keep out of each other's way and wait for what they use, so that the oracle can judge
them. The others do what a legal sender may do, in any order.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from kohakutpu.fuzz import statements as make
from kohakutpu.fuzz.clusters import ClusterStream
from kohakutpu.fuzz.kernels import MeshKernel
from kohakutpu.fuzz.play import OWN, REGION
from kohakutpu.fuzz.program import SETTLE, Program, Statement, problem
from kohakutpu.fuzz.reach import reached
from kohakutpu.isa import cluster, vector
from kohakutpu.isa.flit import Flit, xy
from kohakutpu.isa.signals import CU_DATA, Buffer
from kohakutpu.isa.vector import IMEM_WORDS
from kohakutpu.machine import ClusterUnit, Machine

TIDY = 0.65  # share of programs
JAMS = 0.08  # share of phases
ALONE = 0.02
DEEP = 64  # instruction FIFOs above this are not filled


class Generator:
    """Programs of `machine`: number `number` of `seed` is the same wherever it is made."""

    def __init__(self, machine: Machine, seed: int):
        self.machine = machine
        self.seed = seed
        self.agent = machine.agent.node
        self.reached = reached(machine)
        # A bench that sits behind the memory ports does not use them: what it sends comes back through the mesh, and
        # waits in front of a full queue whose answers wait behind it.
        self.ports = list(machine.ports) if machine.agent.own_endpoint else []
        self.clusters = {unit.node for unit in machine.clusters}
        self.units = [(f"cluster{at}", unit) for at, unit in enumerate(machine.clusters)]
        self.units += [(f"vector{at}", unit) for at, unit in enumerate(machine.vectors)]

    def program(self, number: int) -> Program:
        """Program `number`."""
        self.chance = chance = random.Random(f"{self.machine.name} {self.seed} {number}")
        self.tidy = chance.random() < TIDY
        statements: list[Statement] = []
        for phase in range(chance.choice([1, 1, 2, 2, 3])):
            statements += [Statement(SETTLE)] * bool(phase)
            statements += self._phase()
        return Program(number, tuple(statements))

    def _phase(self) -> list[Statement]:
        chance = self.chance
        if chance.random() < JAMS:
            return self._jam()
        if self.ports and chance.random() < ALONE:
            # with the port's queue full its answers would wait behind each other for good: nothing else goes on
            index = chance.randrange(len(self.ports))
            flit = make.reflected(chance, self.ports[index].node, self.agent)
            return [Statement(f"port{index}", (flit,))]
        active = [place for place in self.units if chance.random() < 0.75]
        idle = [unit for name, unit in self.units if (name, unit) not in active]
        chance.shuffle(idle)
        streams: list[list[Statement]] = []
        for name, unit in active:
            mine = [idle.pop() for _ in range(min(len(idle), chance.choice([0, 1, 1])))]
            streams.append(self._unit(name, unit, self._targets(unit, mine)))
        streams += [self._port(index) for index in range(len(self.ports)) if chance.random() < 0.5]
        for unit in idle[:2]:
            streams.append(self._bursts(unit))
        if chance.random() < 0.5:
            streams.append(self._questions())
        if not self.tidy and chance.random() < 0.3:
            streams.append(self._nonsense())
        if any(statement.purpose == "refused" for stream in streams for statement in stream):
            streams.append([Statement(SETTLE), *(self._next(name, unit) for name, unit in self.units)])
        # streams are written one after the other: their statements go side by side anyway
        return [statement for stream in streams for statement in stream]

    def own(self, name: str) -> int:
        """Where a stream's results go."""
        names = [name for name, _ in self.units] + [f"port{index}" for index in range(len(self.ports))]
        return REGION + names.index(name) % 12 * OWN

    def _targets(self, unit, units: list) -> list[tuple]:
        """What peer drains of `unit` may go to: (x, y, buffer, first granule, granules, node that is told)."""
        chance = self.chance
        found = [
            (*xy(self.agent), chance.randrange(16), chance.choice([0, 0xFF00]), 256, chance.choice([0, self.agent]))
        ]
        if not self.tidy and chance.random() < 0.6:  # anywhere but at a cluster, whose bursts two senders must not mix
            at = chance.choice(
                [at for at, place in enumerate(self.reached) if place not in self.clusters or place == unit.node]
            )
            found.append((*xy(at), 0, 0, 8, self.agent))
        for peer in units:
            ack = chance.choice([0, self.agent, self.agent, peer.node])
            if isinstance(peer, ClusterUnit):
                for buf, room in enumerate((4 * peer.a_entries, 4 * peer.b_entries, 2 * peer.tiles)):
                    found.append((peer.x, peer.y, buf, 0, room, ack))
            else:
                found.append((peer.x, peer.y, 0, 0, peer.l1_words, ack))
        return found

    # ---- streams -----------------------------------------------------------------------------------------

    def _unit(self, name: str, unit, targets: list[tuple]) -> list[Statement]:
        chance = self.chance
        if isinstance(unit, ClusterUnit):
            stream = ClusterStream(
                chance, name, unit, agent=self.agent, port=self.ports[unit.port].node if self.ports else None,
                own=self.own(name), targets=targets, tidy=self.tidy,
                nobody=[at for at, place in enumerate(self.reached) if place is None and at > unit.node],
            )  # fmt: skip
            return stream.make(chance.choice([1, 2, 3]))
        return [self._kernel(name, unit, targets) for _ in range(chance.choice([1, 1, 2]))]

    def _kernel(self, name: str, unit, targets: list[tuple]) -> Statement:
        chance = self.chance
        kernel = MeshKernel(
            chance, chance.choice([4, 8, 16, 30]), unit.l1_words, own=self.own(name), region=REGION, targets=targets,
            tidy=self.tidy, unsafe=chance.random() < 0.25,
        )  # fmt: skip
        pc = chance.choice([0, 0, chance.randrange(IMEM_WORDS)])
        payloads = [vector.IMEM.encode(addr=(pc + at) % IMEM_WORDS, word=word) for at, word in enumerate(kernel.words)]
        payloads += [make.descriptor(ad, part, value) for ad, part, value in kernel.descriptors]
        flits = [
            make.instruction(chance, unit.node, self.agent, payload)
            for payload in [*payloads, vector.RUN.encode(pc=pc)]
        ]
        statement = Statement(name, tuple(flits), make.pause(chance), purpose=kernel.purpose)
        if not kernel.purpose and (wrong := problem(statement, self.machine)):
            if "straddles" not in wrong:
                raise AssertionError(f"a kernel that was meant to be legal: {wrong}")
            statement = statement._replace(purpose="straddle")
        return statement

    def _next(self, name: str, unit) -> Statement:
        """The shortest thing that reports a refused burst."""
        words = [0] if isinstance(unit, ClusterUnit) else [
            vector.IMEM.encode(addr=0, word=vector.encode(vector.Opcode.VHALT)), vector.RUN.encode(pc=0)
        ]  # fmt: skip
        flits = [make.instruction(self.chance, unit.node, self.agent, word) for word in words]
        return Statement(name, tuple(flits), purpose="opcode" if isinstance(unit, ClusterUnit) else "")

    def _port(self, index: int) -> list[Statement]:
        """Reads and writes of the bench."""
        chance, port, name = self.chance, self.ports[index], f"port{index}"
        found = []
        for _ in range(chance.randint(1, 6)):
            kind: Callable = chance.choice([make.read, make.read, make.write])
            strict = self.tidy or chance.random() < 0.7
            flits = kind(
                chance, port.node, self.agent, own=self.own(name), region=REGION,
                size=self.machine.memory.bytes, strict=strict,
                others=[at for at, place in enumerate(self.reached) if place is None] or [self.agent],
            )  # fmt: skip
            found.append(make.judged(Statement(name, tuple(flits), make.pause(chance)), self.machine, strict))
        return found

    def _bursts(self, unit) -> list[Statement]:
        """CU_DATA of the bench into a unit."""
        chance, name = self.chance, f"to-{xy(unit.node)[0]:x}{xy(unit.node)[1]:x}"
        found = []
        for _ in range(chance.randint(1, 4)):
            good = self.tidy or chance.random() < 0.6
            flits, purpose = make.burst(chance, unit, self.agent, good=good)
            found.append(Statement(name, tuple(flits), make.pause(chance), purpose=purpose))
        return found

    def _questions(self) -> list[Statement]:
        """CU_CTRL to units, and to whoever else there is."""
        chance, found = self.chance, []
        for _ in range(chance.randint(1, 4)):
            at = chance.choice([unit.node for _, unit in self.units] + [chance.randrange(256)] * (not self.tidy))
            flits = [make.question(chance, at, self.agent) for _ in range(chance.choice([1, 1, 2]))]
            found.append(Statement("ask", tuple(flits), chance.choice([0, 5, 60])))
        return found

    def _nonsense(self) -> list[Statement]:
        """Flits that nobody is waiting for, to anybody and nobody."""
        chance, found = self.chance, []
        for _ in range(chance.randint(1, 3)):
            at = chance.choice(
                [unit.node for _, unit in self.units] + [port.node for port in self.ports] + [chance.randrange(256)]
            )
            flits = make.nonsense(chance, at, self.agent, response=self.reached[at] not in self.clusters)
            found.append(Statement("nonsense", tuple(flits), make.pause(chance), purpose="nonsense"))
        return found

    def _jam(self) -> list[Statement]:
        """A phase with more for the bench to take than its link carries: every queue on the way fills."""
        chance, found = self.chance, []
        for at, port in enumerate(self.ports):
            address = chance.randrange(REGION // 64) * 32
            flits = [make.plain_read(chance, port.node, self.agent, address, 256) for _ in range(6)]
            found.append(Statement(f"port{at}", tuple(flits)))
        for name, unit in self.units:
            is_cluster = isinstance(unit, ClusterUnit)
            roles = (self._nothing, self._drains, self._sweeps) if is_cluster else (self._nothing, self._small_bursts)
            found += chance.choice(roles)(name, unit)
        return found

    def _nothing(self, name: str, unit) -> list[Statement]:
        """Completions that have to wait, and instructions that wait for them: none of them needs memory."""
        count = min(unit.inst_depth, DEEP) + 60
        flits = [make.instruction(self.chance, unit.node, self.agent, 0) for _ in range(count)]
        return [Statement(name, tuple(flits), self.chance.choice([0, 100, 200]), press=True, purpose="opcode")]

    def _drains(self, name: str, unit: ClusterUnit) -> list[Statement]:
        """Results that have to wait, and the ends of drains among them."""
        counts = [140, *(self.chance.choice([1, 2, 3, 9]) for _ in range(12)), 140]
        x, y = xy(self.agent)
        payloads = [
            cluster.DRAIN.encode(n=n, dnode=1, dst_x=x, dst_y=y, dbuf=self.chance.choice([0, 2])) for n in counts
        ]
        return [Statement(name, (make.instruction(self.chance, unit.node, self.agent, each),)) for each in payloads]

    def _small_bursts(self, name: str, unit) -> list[Statement]:
        """Acknowledgements that have to wait, and the bursts behind them."""
        bursts = [make.burst(self.chance, unit, self.agent, good=True, small=True)[0] for _ in range(150)]
        return [Statement(f"to-{unit.x:x}{unit.y:x}", tuple(flit for burst in bursts for flit in burst))]

    def _sweeps(self, name: str, unit: ClusterUnit) -> list[Statement]:
        """A stream into the accumulator that has to wait for sweeps."""
        payload = cluster.GEMM.encode(gm=12, gn=12, nk=2)
        flits = [make.instruction(self.chance, unit.node, self.agent, payload) for _ in range(2)]
        return [Statement(name, tuple(flits)), Statement(f"to-{unit.x:x}{unit.y:x}", tuple(self._stream(unit)), 60)]

    def _stream(self, unit: ClusterUnit) -> list[Flit]:
        """A burst for as many granules as the accumulator and a descriptor have room for."""
        while True:
            flits, _ = make.burst(self.chance, unit, self.agent, good=True)
            if CU_DATA.get(flits[0].payload, "buf") == Buffer.ACCUMULATOR and len(flits) > min(80, 2 * unit.tiles):
                return flits
