"""The memory behind a machine's AXI ports, for simulations: exact in time, with files as a back door.

Timing: docs/microarchitecture/memory-agent.md, memory. The module is written as Verilog text, as it is no hardware.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from amaranth import ClockSignal, Instance, ResetSignal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from cocotb.triggers import Timer

from rtl import emit
from rtl.memory_issue import ADDRESS_BITS, WORD_BITS, WORD_BYTES
from rtl.memory_port import MEMORY_AXI
from rtl.parameters import positive

LONGEST = 256  # beats of an AXI4 burst
PATH_BYTES = 256
SETTLE_PS = 30


class BackdoorSignature(wiring.Signature):
    """Whoever drives it: a rising `load` reads the file at `path` into the memory, a rising `dump` writes words `first`
    to `last` there, both as `$readmemh` has it."""

    def __init__(self):
        super().__init__(
            {
                "load": Out(1),
                "dump": Out(1),
                "path": Out(8 * PATH_BYTES),
                "first": Out(ADDRESS_BITS),
                "last": Out(ADDRESS_BITS),
            }
        )

    def __eq__(self, other):
        return isinstance(other, BackdoorSignature)


class Dram(wiring.Component):
    """`memory_bytes` of memory, zero at the start, with `ports` AXI4 ports; each moves a word every `cycles_per_word`
    cycles each way.

    A burst is read as it is at the start of its address handshake's cycle and comes from `latency` cycles after it on;
    one that is written lands whole at the end of its last beat's cycle and is answered `latency` cycles after it.
    Bursts are INCR; one past the end or across 4 KiB stops the simulation. Contents survive reset, what is on its way
    does not. On the simulator's command line `+latency=N` lowers the latency to N, and with `+latency_seed=S` that of
    every burst is drawn from 1 to the latency, as `kohakutpu.model.memory.latencies` does.
    """

    def __init__(self, *, ports: int, memory_bytes: int, latency: int, cycles_per_word: int):
        positive("Dram", ports=ports, memory_bytes=memory_bytes, latency=latency, cycles_per_word=cycles_per_word)
        self.ports, self.words = ports, memory_bytes // WORD_BYTES
        self.latency, self.pace = latency, cycles_per_word
        super().__init__({"axi": In(MEMORY_AXI).array(ports), "backdoor": In(BackdoorSignature())})

    def elaborate(self, platform):
        name = f"Dram_{self.ports}_{self.words}_{self.latency}_{self.pace}"
        emit.handwritten(name, self._text(name))
        connections = {"i_clk": ClockSignal(), "i_rst": ResetSignal()}
        for path, member, value in self.signature.flatten(self):
            connections[f"{'i' if member.flow is In else 'o'}_{'__'.join(map(str, path))}"] = Value.cast(value)
        return Instance(name, **connections)

    def _text(self, name: str) -> str:
        inputs, outputs = [], []
        for path, member, _ in self.signature.flatten(self):
            declared = f"[{member.shape - 1}:0] {'__'.join(map(str, path))}"
            (inputs if member.flow is In else outputs).append(declared)
        queue = 1 << (self.latency // self.pace + 2 * LONGEST).bit_length()
        answers = 1 << (self.latency + 4).bit_length()
        ports = range(self.ports)
        return "\n".join(
            [
                f"module {name}(input clk, input rst,",
                *(f"  input {each}," for each in inputs),
                ",\n".join(f"  output {each}" for each in outputs),
                ");",
                f"  localparam WORDS = {self.words}, PACE = {self.pace};",
                f"  localparam QUEUE = {queue}, ANSWERS = {answers};",
                f"  reg [{WORD_BITS - 1}:0] store [0:WORDS-1];",
                "  reg [63:0] now, first;",
                "  reg [31:0] latency, seed;",
                "  reg drawn;",
                "  integer k, b;",
                "  function [31:0] following(input [31:0] state);",
                "    begin",
                "      following = state ^ (state << 13);",
                "      following = following ^ (following >> 17);",
                "      following = following ^ (following << 5);",
                "    end",
                "  endfunction",
                "  initial begin",
                '    drawn = $value$plusargs("latency_seed=%d", seed) != 0;',
                f'    if (!$value$plusargs("latency=%d", latency)) latency = {self.latency};',
                f'    if (latency < 1 || latency > {self.latency}) $fatal(1, "+latency=%0d: 1 to {self.latency}", '
                'latency);',
                "    for (k = 0; k < WORDS; k = k + 1) store[k] = 0;",
                "    now = 0;",
                "  end",
                *(_PORT.replace("@", str(i)) for i in ports),
                "  always @(posedge clk) begin",
                "    now = now + 1;  // the cycle that begins with this edge",
                "    if (rst) begin",
                *(_RESET.replace("@", str(i)) for i in ports),
                "    end else begin",
                *(_READ.replace("@", str(i)) for i in ports),
                *(_WRITE.replace("@", str(i)) for i in ports),
                "    end",
                "  end",
                "  always @(posedge backdoor__load) $readmemh(backdoor__path, store);",
                "  always @(posedge backdoor__dump)",
                "    $writememh(backdoor__path, store, backdoor__first, backdoor__last);",
                "endmodule",
                "",
            ]
        )


_PORT = """\
  reg p@_ar_ok, p@_w_ok, p@_open, p@_rv, p@_bv;
  reg [31:0] p@_r_state, p@_w_state;
  reg [63:0] p@_r_next;  // the first cycle in which another beat may come
  reg [63:0] p@_next_read, p@_next_beat;
  reg [255:0] p@_r_data [0:QUEUE-1];
  reg [63:0] p@_r_due [0:QUEUE-1];
  reg [4:0] p@_r_mark [0:QUEUE-1];  // {id, last}
  reg [31:0] p@_r_put, p@_r_get, p@_b_put, p@_b_get, p@_beat;
  reg [255:0] p@_w_data [0:255];
  reg [31:0] p@_w_strb [0:255];
  reg [34:0] p@_w_word;
  reg [8:0] p@_w_beats;
  reg [3:0] p@_w_id;
  reg [63:0] p@_b_due [0:ANSWERS-1];
  reg [3:0] p@_b_id [0:ANSWERS-1];
  reg [255:0] p@_rdata;
  reg [4:0] p@_rmark;
  reg [3:0] p@_bid;
  assign axi__@__arready = p@_ar_ok;
  assign axi__@__awready = p@_w_ok & ~p@_open;
  assign axi__@__wready = p@_w_ok & (p@_open | axi__@__awvalid);
  assign axi__@__rvalid = p@_rv;
  assign axi__@__rdata = p@_rdata;
  assign axi__@__rlast = p@_rmark[0];
  assign axi__@__rid = p@_rmark[4:1];
  assign axi__@__rresp = 0;
  assign axi__@__bvalid = p@_bv;
  assign axi__@__bid = p@_bid;
  assign axi__@__bresp = 0;"""

# In the edge that ends cycle now - 1. Every port reads before any writes.
_READ = """\
    if (axi__@__arvalid && axi__@__arready) begin
      if (axi__@__araddr / 32 + axi__@__arlen >= WORDS || axi__@__araddr[11:5] + axi__@__arlen > 127
          || (axi__@__arburst != 1 && axi__@__arlen != 0))
        $fatal(1, "port @ reads %0d words at %h", axi__@__arlen + 1, axi__@__araddr);
      p@_r_state = following(p@_r_state);
      first = now - 1 + (drawn ? 1 + p@_r_state % latency : latency);
      if (first < p@_r_next) first = p@_r_next;
      p@_r_next = first + (axi__@__arlen + 1) * PACE;
      for (k = 0; k <= axi__@__arlen; k = k + 1) begin
        p@_r_data[p@_r_put % QUEUE] = store[axi__@__araddr / 32 + k];
        p@_r_due[p@_r_put % QUEUE] = first + k * PACE;
        p@_r_mark[p@_r_put % QUEUE] = {axi__@__arid, k == axi__@__arlen};
        p@_r_put = p@_r_put + 1;
      end
      p@_next_read = now - 1 + (axi__@__arlen + 1) * PACE;
    end
    if (p@_rv && axi__@__rready) p@_rv <= 0;
    if ((!p@_rv || axi__@__rready) && p@_r_put != p@_r_get && p@_r_due[p@_r_get % QUEUE] <= now) begin
      p@_rv <= 1;
      p@_rdata <= p@_r_data[p@_r_get % QUEUE];
      p@_rmark <= p@_r_mark[p@_r_get % QUEUE];
      p@_r_get = p@_r_get + 1;
    end
    p@_ar_ok <= now >= p@_next_read && p@_r_put - p@_r_get <= QUEUE - 256;"""

_WRITE = """\
    begin : write_@
      reg begins, beats;
      begins = axi__@__awvalid && axi__@__awready;
      beats = axi__@__wvalid && axi__@__wready;
      if (begins) begin
        if (axi__@__awaddr / 32 + axi__@__awlen >= WORDS || axi__@__awaddr[11:5] + axi__@__awlen > 127
            || (axi__@__awburst != 1 && axi__@__awlen != 0))
          $fatal(1, "port @ writes %0d words at %h", axi__@__awlen + 1, axi__@__awaddr);
        p@_w_word = axi__@__awaddr / 32;
        p@_w_beats = axi__@__awlen + 1;
        p@_w_id = axi__@__awid;
        p@_beat = 0;
        p@_open <= 1;
      end
      if (beats) begin
        p@_w_data[p@_beat] = axi__@__wdata;
        p@_w_strb[p@_beat] = axi__@__wstrb;
        p@_beat = p@_beat + 1;
        if (axi__@__wlast != (p@_beat == p@_w_beats))
          $fatal(1, "port @: WLAST on beat %0d of %0d", p@_beat, p@_w_beats);
        p@_next_beat = now - 1 + PACE;
        if (p@_beat == p@_w_beats) begin
          for (k = 0; k < p@_w_beats; k = k + 1)
            if (&p@_w_strb[k]) store[p@_w_word + k] = p@_w_data[k];
            else
              for (b = 0; b < 32; b = b + 1)
                if (p@_w_strb[k][b]) store[p@_w_word + k][8*b +: 8] = p@_w_data[k][8*b +: 8];
          p@_open <= 0;
          p@_w_state = following(p@_w_state);
          p@_b_due[p@_b_put % ANSWERS] = now - 1 + (drawn ? 1 + p@_w_state % latency : latency);
          p@_b_id[p@_b_put % ANSWERS] = p@_w_id;
          p@_b_put = p@_b_put + 1;
        end
      end
      if (p@_bv && axi__@__bready) p@_bv <= 0;
      if ((!p@_bv || axi__@__bready) && p@_b_put != p@_b_get && p@_b_due[p@_b_get % ANSWERS] <= now) begin
        p@_bv <= 1;
        p@_bid <= p@_b_id[p@_b_get % ANSWERS];
        p@_b_get = p@_b_get + 1;
      end
      p@_w_ok <= now >= p@_next_beat && p@_b_put - p@_b_get < ANSWERS;
    end"""

_RESET = """\
      p@_ar_ok <= 1; p@_w_ok <= 1; p@_open <= 0; p@_rv <= 0; p@_bv <= 0;
      p@_r_put = 0; p@_r_get = 0; p@_b_put = 0; p@_b_get = 0; p@_next_read = 0; p@_next_beat = 0;
      p@_rdata <= 0; p@_rmark <= 0; p@_bid <= 0; p@_r_next = 0;
      p@_r_state = (seed * 32'h9E3779B1) ^ ((2 * @ + 1) * 32'h85EBCA6B);
      p@_w_state = (seed * 32'h9E3779B1) ^ ((2 * @ + 2) * 32'h85EBCA6B);
      if (p@_r_state == 0) p@_r_state = 1;
      if (p@_w_state == 0) p@_w_state = 1;"""


def image(pieces: Iterable[tuple[int, bytes]]) -> str:
    """`$readmemh` text of whole words: (byte address, data) pairs, both multiples of 32."""
    lines = []
    for address, content in pieces:
        if address % WORD_BYTES or len(content) % WORD_BYTES:
            raise ValueError(f"{len(content)} bytes at {address:#x}: whole words of {WORD_BYTES} bytes are expected")
        lines.append(f"@{address // WORD_BYTES:x}")
        lines += [content[at : at + WORD_BYTES][::-1].hex() for at in range(0, len(content), WORD_BYTES)]
    return "\n".join([*lines, ""])


class Backdoor:
    """Memory contents of a running simulation whose top has a `BackdoorSignature` named `name`; takes 60
    picoseconds between two clock edges."""

    def __init__(self, dut, name: str = "backdoor"):
        self.wires = {wire: getattr(dut, f"{name}__{wire}") for wire in BackdoorSignature().members}
        self.wires["load"].value = self.wires["dump"].value = 0
        handle, path = tempfile.mkstemp(suffix=".hex", dir=os.environ.get("TMPDIR"))
        os.close(handle)
        self.path = Path(path)
        if len(path) > PATH_BYTES:
            raise ValueError(f"the path of the exchange file is longer than {PATH_BYTES} bytes: {path}")
        self.wires["path"].value = int.from_bytes(path.encode(), "big")

    async def _pulse(self, name: str) -> None:
        for value in (1, 0):
            self.wires[name].value = value
            await Timer(SETTLE_PS, "ps")

    async def load(self, *pieces: tuple[int, bytes]) -> None:
        """Put data at byte addresses: whole words."""
        self.path.write_text(image(pieces))
        await self._pulse("load")

    async def dump(self, address: int, length: int) -> bytes:
        """The bytes at `address`."""
        first, end = address // WORD_BYTES, -(-(address + length) // WORD_BYTES)
        self.wires["first"].value, self.wires["last"].value = first, end - 1
        await self._pulse("dump")
        words = [line for line in self.path.read_text().split() if line[0] not in "@/"]
        data = b"".join(bytes.fromhex(word)[::-1] for word in words if len(word) == 2 * WORD_BYTES)
        if len(data) != (end - first) * WORD_BYTES:
            raise RuntimeError(f"the simulator dumped {len(data)} bytes of words {first} to {end - 1}")
        return data[address - first * WORD_BYTES :][:length]

    def close(self) -> None:
        self.path.unlink(missing_ok=True)
