"""A Tcl server with a JTAG-to-AXI master in front of any transport: real Tcl, and the vendor's commands as far as they
are used.
"""

from __future__ import annotations

import random
import socket
from collections import deque
from dataclasses import dataclass
from tkinter import Tcl, TclError

from chaos import Listener

from kohakutpu.host.transport import Transport

# Errors of a command made in Python do not reach the script that called it, so these say them again.
COMMANDS = """
proc say {outcome} { if {[lindex $outcome 0]} { error [lindex $outcome 1] } ; return [lindex $outcome 1] }
proc get_hw_axis {name} { if {$name eq "hw_axi_1"} { return $name } ; return {} }
proc get_hw_axi_txns {name} { return $name }
proc create_hw_axi_txn {args} { say [python_create {*}$args] }
proc run_hw_axi {quiet name} { say [python_run $name] }
proc get_property {property name} { say [python_property $property $name] }
"""


@dataclass
class Link:
    """What is wrong with it: reads that many transactions late; bursts that many beats shifted, single beats too if
    `always`; `width` of the master; `stale` is how often an old reply comes (again) before the right one; `silent`
    replies are not sent; `broken` addresses do not answer; `forgetful` servers know no session after a lost
    connection.
    """

    skew: int = 0
    shift: int = 0
    always: bool = False
    width: int = 64
    stale: float = 0.0
    silent: int = 0
    broken: frozenset[int] = frozenset()
    forgetful: bool = False
    garbage: int = 0
    idle: int = 0  # pauses of the machine between two requests: it runs on meanwhile


class FakeJtag(Listener):
    """Serves one connection after the other; `requests` counts scripts."""

    def __init__(self, inner: Transport, link: Link | None = None, seed: int = 1):
        self.inner = inner
        self.link = link or Link()
        self.requests = 0
        self.most_beats = 0
        self._random = random.Random(seed)
        self._late: deque[int] = deque([0] * self.link.skew)
        self._old: list[bytes] = []
        self._tcl = None
        super().__init__()

    # ---- the vendor's commands ---------------------------------------------------------------------------

    def _interpreter(self):
        tcl = Tcl()
        self._transactions: dict[str, dict] = {}
        for name, function in (("create", self._create), ("run", self._transact), ("property", self._property)):
            tcl.createcommand(f"python_{name}", self._guarded(tcl, function))
        tcl.eval(COMMANDS)
        return tcl

    def _guarded(self, tcl, function):
        def call(*arguments: str):
            try:
                return 0, function(*arguments)
            except Exception as error:
                return 1, f"ERROR: {error}"

        return call

    def _create(self, force: str, name: str, axi: str, *options: str) -> str:
        given = dict(zip(options[::2], options[1::2]))
        if force != "-force" or axi != "hw_axi_1" or not {"-type", "-len", "-address"} <= given.keys() <= {
            "-type", "-len", "-address", "-data",
        }:  # fmt: skip
            raise ValueError(f"[Labtoolstcl 44-0] bad arguments {options}")
        self._transactions[name] = given
        return name

    def _transact(self, name: str) -> str:
        transaction = self._transactions[name]
        address, beats = int(transaction["-address"], 16), int(transaction["-len"])
        self.most_beats = max(self.most_beats, beats)
        if address in self.link.broken:
            raise ValueError(f"[Xicom 50-38] AXI transaction at {transaction['-address']} timed out")
        if transaction["-type"] == "read":
            self._late.append(int.from_bytes(self.inner.read_block(address, 8 * beats), "little"))
            transaction["DATA"] = f"{self._late.popleft():0{self.link.width // 4 * beats}x}"[
                -self.link.width // 4 * beats :
            ]
            return ""
        words = [bytes.fromhex(word)[::-1] for word in reversed(transaction["-data"].split("_"))]
        if len(words) != beats or {len(word) for word in words} != {8}:
            raise ValueError(f"[Labtoolstcl 44-1] {transaction['-data']} is not {beats} beats of 64 bits")
        if address % 4096 + 8 * beats > 4096:
            raise ValueError("[Labtoolstcl 44-2] a burst crosses 4 KiB")
        shift = self.link.shift if beats > 1 or self.link.always else 0
        self.inner.write_block(address + 8 * shift, b"".join(words))
        return ""

    def _property(self, name: str, transaction: str) -> str:
        return self._transactions[transaction][name]

    # ---- the server --------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            super()._run()
        finally:
            self._tcl = None  # an interpreter has to end in the thread that made it

    def serve(self, connection: socket.socket) -> None:
        if self._tcl is None or self.link.forgetful:
            self._tcl = self._interpreter()  # by the thread that uses it
        connection.settimeout(0.2)
        rest = b""

        def more() -> bytes:
            while not self._over:
                try:
                    data = connection.recv(1 << 16)
                except TimeoutError:
                    continue
                if not data:
                    break
                return data
            raise EOFError

        while True:
            while b"\n" not in rest:
                rest += more()
            line, _, rest = rest.partition(b"\n")
            while len(rest) < int(line):
                rest += more()
            script, rest = rest[: int(line)].decode(), rest[int(line) :]
            self.requests += 1
            for _ in range(self.link.idle):
                self.inner.pause()
            try:
                code, result = 0, self._tcl.eval(script)
            except TclError as error:
                code, result = 1, str(error)
            log = b"INFO: done\n" if self.requests % 3 == 0 else b""
            reply = f"{code} {len(result)} {len(log)}\n".encode() + result.encode() + log
            if self.link.garbage:
                self.link.garbage -= 1
                reply = b"Vivado% " + reply
            if self._old and self._random.random() < self.link.stale:
                connection.sendall(self._random.choice(self._old))
            if "::ask" in script:
                self._old = [*self._old[-2:], reply]
            if self.link.silent and "::ask" in script:
                self.link.silent -= 1
            else:
                connection.sendall(reply)
