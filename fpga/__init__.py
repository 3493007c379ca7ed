"""Machines on FPGA boards: what is around the gates there, and the flows that build them (`docs/fpga.md`)."""
