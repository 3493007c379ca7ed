"""Smoke"""
import cocotb
from kohakutpu.isa.flit import Flit, FlitType, node
from support.links import Links

@cocotb.test()
async def smoke(dut):
    links = await Links.start(dut)
    dut.eats.value = 1
    links.sources["in_link"].send(Flit(node(2,1), node(0,1), FlitType.CU_INST, 7, 0, 0, (5<<32)|4))
    await links.until(lambda: links.sinks["out_link"].received, 100)
    print(links.transfers)
