"""A simulation-only observer of one link: counts by type and the last flit, for reports."""

from __future__ import annotations

from kohakutpu.isa.flit import HEADER

NAME = "flit_monitor"
_TYPE = HEADER.fields["type"].bits[0]

# The fields of the flit as signals of their own, for people who look at waves.
WAVES = "\n".join(
    f"  wire {f'[{item.width - 1}:0] ' if item.width > 1 else ''}flit_{item.name} = flit[{high}:{low}];"
    for item in HEADER.fields.values()
    for high, low in item.bits
)
VERILOG = f"""
module {NAME} (
  input clk, input rst, input [31:0] cycle, input valid, input busy, input [{HEADER.width - 1}:0] flit
);
`ifdef WAVES
{WAVES}
`endif
  reg [{HEADER.width - 1}:0] last = 0;
  reg [31:0] last_cycle = 0;
  reg [31:0] count [0:15];
  reg stuck = 0;
  integer i;
  initial for (i = 0; i < 16; i = i + 1) count[i] = 0;
  always @(posedge clk) begin
    stuck <= valid & busy;
    if (rst) begin
      last_cycle <= 0;
      for (i = 0; i < 16; i = i + 1) count[i] <= 0;
    end else if (valid & ~busy) begin
      last <= flit;
      last_cycle <= cycle;
      count[flit[{_TYPE[0]}:{_TYPE[1]}]] <= count[flit[{_TYPE[0]}:{_TYPE[1]}]] + 1;
    end
  end
endmodule
"""

# What Python may read of a monitor under Verilator.
PUBLIC = [f'public_flat_rd -module "{NAME}" -var "{name}"' for name in ("last", "last_cycle", "count", "stuck")]
