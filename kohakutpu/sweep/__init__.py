"""Sweeps: one kernel over shapes, knobs, machines and seeds, spread over the workers of a dask scheduler
(`docs/sweep.md`)."""
