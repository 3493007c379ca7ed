"""Jobs in a simulator whose gates are driven through a harmed connection (`test_rtl_harm`)."""

from pathlib import Path

from transport_traffic import Ledger

from kohakutpu.host.transport import Transport, locate
from kohakutpu.host.transports.serving import Server
from kohakutpu.host.transports.wrappers import Wrapper
from kohakutpu.machine import Machine
from sim.transport import RtlTransport


class Stutter(Wrapper):
    """Does the control write of that number twice."""

    def __init__(self, inner: Transport, number: int):
        super().__init__(inner)
        self.left = number

    def write_block(self, address: int, data: bytes) -> None:
        self.inner.write_block(address, data)
        if locate(address, len(data), "write")[0] == "control":
            self.left -= 1
            if self.left == 0:
                self.inner.write_block(address, data)


def answer(machine, description: Machine, address: Path, stutter: int = 0) -> tuple[int, str]:
    """Serve one session; how many register words arrived at the gates, and their digest. `stutter` numbers a write that
    is done twice."""
    ledger = Ledger(RtlTransport(machine))
    served = Stutter(ledger, stutter) if stutter else ledger
    Server(served, description, address, engine="gates, harmed", single=True).run()
    return ledger.words, ledger.digest.hexdigest()
