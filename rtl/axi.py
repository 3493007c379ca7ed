"""The AXI4 interface as one signature (AMBA AXI4, IHI 0022; only the signals that this machine uses)."""

from __future__ import annotations

from enum import IntEnum

from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .parameters import positive


class Burst(IntEnum):
    FIXED = 0
    INCR = 1
    WRAP = 2


class Response(IntEnum):
    OKAY = 0
    EXOKAY = 1
    SLVERR = 2
    DECERR = 3


class AxiSignature(wiring.Signature):
    """Master's view of AXI4: addresses of `addr_width` bits, data of `data_width` (a power of two of at least 8)."""

    def __init__(self, *, addr_width: int, data_width: int, id_width: int):
        positive("AxiSignature", addr_width=addr_width, data_width=data_width, id_width=id_width)
        if data_width < 8 or data_width & (data_width - 1):
            raise TypeError(f"AxiSignature data_width must be a power of two of at least 8, not {data_width}")
        self.addr_width, self.data_width, self.id_width = addr_width, data_width, id_width
        members = {}
        for prefix in ("aw", "ar"):
            members |= {
                f"{prefix}id": Out(id_width), f"{prefix}addr": Out(addr_width), f"{prefix}len": Out(8),
                f"{prefix}size": Out(3), f"{prefix}burst": Out(2), f"{prefix}valid": Out(1), f"{prefix}ready": In(1),
            }  # fmt: skip
        members |= {
            "wdata": Out(data_width), "wstrb": Out(data_width // 8), "wlast": Out(1), "wvalid": Out(1), "wready": In(1),
            "bid": In(id_width), "bresp": In(2), "bvalid": In(1), "bready": Out(1),
            "rid": In(id_width), "rdata": In(data_width), "rresp": In(2), "rlast": In(1), "rvalid": In(1),
            "rready": Out(1),
        }  # fmt: skip
        super().__init__(members)

    def __eq__(self, other):
        return isinstance(other, AxiSignature) and self.members == other.members
