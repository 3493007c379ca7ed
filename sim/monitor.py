"""A simulation-only observer of one link: counts by type, the last flit, and every transfer as text when asked.

`+flits=PREFIX` on the simulator's command line writes `PREFIX.INDEX`, one line a transfer: cycle and flit in hexadecimal.
"""

from __future__ import annotations

from amaranth import ClockSignal, Instance, ResetSignal, Signal

from kohakutpu.isa.flit import HEADER
from kohakutpu.noc.trace import TraceError

NAME = "flit_monitor"
_TYPE = HEADER.fields["type"].bits[0]

# The fields of the flit as signals of their own, for people who look at waves.
WAVES = "\n".join(
    f"  wire {f'[{item.width - 1}:0] ' if item.width > 1 else ''}flit_{item.name} = flit[{high}:{low}];"
    for item in HEADER.fields.values()
    for high, low in item.bits
)
VERILOG = f"""
module {NAME} #(parameter LINK = 0) (
  input clk, input rst, input [31:0] cycle, input valid, input busy, input [{HEADER.width - 1}:0] flit
);
`ifdef WAVES
{WAVES}
`endif
  integer file = 0;
  reg [8 * 200 - 1:0] prefix;
  reg [8 * 220 - 1:0] path;
  reg [{HEADER.width - 1}:0] last = 0;
  reg [31:0] last_cycle = 0;
  reg [31:0] count [0:15];
  reg stuck = 0;
  integer i;
  initial begin
    for (i = 0; i < 16; i = i + 1) count[i] = 0;
    if ($value$plusargs("flits=%s", prefix)) begin
      $sformat(path, "%0s.%0d", prefix, LINK);
      file = $fopen(path, "w");
    end
  end
  always @(posedge clk) begin
    stuck <= valid & busy;
    if (rst) begin
      last_cycle <= 0;
      for (i = 0; i < 16; i = i + 1) count[i] <= 0;
    end else if (valid & ~busy) begin
      last <= flit;
      last_cycle <= cycle;
      count[flit[{_TYPE[0]}:{_TYPE[1]}]] <= count[flit[{_TYPE[0]}:{_TYPE[1]}]] + 1;
      if (file != 0) $fwrite(file, "%0h %0h\\n", cycle, flit);
    end
  end
  final if (file != 0) $fclose(file);
endmodule
"""

# What Python may read of a monitor under Verilator.
PUBLIC = [f'public_flat_rd -module "{NAME}" -var "{name}"' for name in ("last", "last_cycle", "count", "stuck")]
