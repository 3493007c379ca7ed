"""Cooperative matrices: the wave's, one copy each."""

from __future__ import annotations

from .vectors import Vectors


class Tiles(Vectors):
    """Not lowered yet."""

    def new_tile(self, kind, value):
        self.refuse("a cooperative matrix has no code on cpu yet", self.frame.function.at, "XPU-N04")

    def set_tile(self, kind, slot, value):
        raise NotImplementedError
