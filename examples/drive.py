"""One script for models, gates and cards: `python examples/drive.py [TRANSPORT [MACHINE]]`, such as `rtl mm_mesh`.

Asks every unit who it is, fills and reads memory, runs a kernel, and holds its result against the reference
interpreter. What it prints is the same whatever answers. Exit status: 0 right, 1 a wrong answer, 2 refused; 3 and 4
when nobody answers (docs/transports.md).
"""

from __future__ import annotations

import hashlib
import sys

import numpy as np

from kohakutpu.compiler import compile_kernel
from kohakutpu.host.compare import compare
from kohakutpu.host.driver import Driver
from kohakutpu.host.loader import Loader
from kohakutpu.host.simulate import run_reference
from kohakutpu.host.transport import MEMORY_BASE, Transport, TransportError
from kohakutpu.host.transports import open_transport
from kohakutpu.isa.flit import Flit, FlitType, xy
from kohakutpu.isa.signals import CU_CAPS, CU_CTRL_REPLY, CU_CTRL_REQUEST, UnitType
from kohakutpu.kernels.linear import linear_silu
from kohakutpu.machine import Machine, load

KNOBS = {"gm": 8, "gn": 8}
LOOKS = 100  # at the mailbox for an answer


def ask(driver: Driver, machine: Machine, node: int) -> dict[str, int]:
    """What the unit at a packed coordinate says that it is."""
    driver.send(Flit(node, machine.agent.node, FlitType.CU_CTRL, 1, 1, 0, CU_CTRL_REQUEST.encode(index=0)))
    for _ in range(LOOKS):
        answer = driver.receive()
        if answer is not None:
            return CU_CAPS.decode(CU_CTRL_REPLY.decode(answer.payload)["value"])
        driver.transport.pause()
    raise TimeoutError("nobody answers at ({},{})".format(*xy(node)))


def drive(transport: Transport, machine: Machine) -> bool:
    """Everything; whether the kernel's bytes were right."""
    driver = Driver(transport)
    print("control agent:", driver.identify())
    for unit in machine.units:
        caps = ask(driver, machine, unit.node)
        print(
            "({},{})".format(*xy(unit.node)),
            UnitType(caps["type"]).name.lower(),
            f"with room for {caps['inst_depth']} instructions",
        )
    data = np.random.default_rng(1).bytes(4096)
    transport.write_block(MEMORY_BASE + 0x2_0000, data)
    found = transport.read_block(MEMORY_BASE + 0x2_0000, 4096)
    print("memory:", hashlib.sha256(found).hexdigest()[:16], "as written" if found == data else "NOT as written")
    random = np.random.default_rng(2)
    operands = {name: random.normal(0, 0.3, (32, 64)).astype(np.float16) for name in ("x", "w")}
    artifact = compile_kernel(linear_silu, machine, {name: array.shape for name, array in operands.items()}, KNOBS)
    run = Loader(driver).run(artifact, operands)
    want = run_reference(linear_silu, KNOBS, operands, machine)
    rows = compare(artifact, want.outputs, run.outputs)
    for row in rows:
        print(f"{artifact.kernel}: {row.buffer} {row.found}", "byte-equal" if row.equal else row.first)
    return found == data and all(row.equal for row in rows)


def main(spec: str = "model", machine: str = "mm_mesh", *faults: str) -> int:
    try:
        description = load(machine)
        with open_transport(spec, description, faults=faults) as transport:
            return 0 if drive(transport, description) else 1
    except TransportError as error:
        print(error, file=sys.stderr)
        return getattr(error, "exit_status", 2)
    except ValueError as error:  # of names that were given: a transport, a machine, a recording
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
