"""The RTL side of the harness: simulators, cocotb benches, lockstep and traces."""
