"""Model functions and machines for the session's tests."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np

from kohakutpu.host.model_transport import ModelTransport
from kohakutpu.kernels import linear_add, matmul, rmsnorm
from kohakutpu.kernels.elementwise import silu
from kohakutpu.machine import load
from kohakutpu.model.memory import Memory
from kohakutpu.model.system import System
from kohakutpu.session import Session, call

TILE = {"gm": 2, "gn": 8, "nk": 1}


def numbers(*shape, seed=0, scale=0.5):
    return np.random.default_rng(seed).normal(0, scale, shape).astype(np.float16)


def on_model(machine="quad", **more):
    """A session on the cycle models of a fresh machine."""
    description = load(machine)
    return Session(description, ModelTransport(System(description)), **more)


def block(session, width=32, hidden=64):
    """A norm, a gated step and a residual: results in tiles and in rows, some read in two orders."""
    shapes = {"square": (width, width), "gain": (width,), "up": (hidden, width), "down": (width, hidden)}
    square, gain, up, down = (session.pin(name, numbers(*shape, seed=seed)) for seed, (name, shape) in enumerate(shapes.items()))

    def made(x):
        e = call(matmul, a=x, b=square, **TILE).named("e")
        n = call(rmsnorm, x=e, w=gain).named("n")
        h = call(matmul, a=n, b=up, **TILE).named("h")
        s = call(silu, x=h).named("s")
        return call(linear_add, x=s, w=down, r=e, **TILE).named("y")

    return made


@contextmanager
def touched(monkeypatch):
    """Ends of all accesses to memory, of units and of the host, reads and writes."""
    ends = []
    with monkeypatch.context() as patch:
        for name in ("_store", "sample", "read"):
            original = getattr(Memory, name)

            def wrapped(self, *args, original=original, name=name):
                address, size = (args[0], len(args[1])) if name == "_store" else args[-2:]
                ends.append(address + size)
                return original(self, *args)

            patch.setattr(Memory, name, wrapped)
        yield ends

