"""Machine descriptions: YAML or a text picture to a checked, frozen `Machine`, and back (`docs/machines.md`)."""

from .description import (
    Agent,
    ClusterUnit,
    Dram,
    Machine,
    MachineError,
    MemoryPort,
    Unit,
    VectorUnit,
    nearest_port,
    site_kind,
)
from .files import from_picture, from_yaml, list_machines, load, to_yaml
from .text_map import draw as picture

__all__ = [
    "Agent", "ClusterUnit", "Dram", "Machine", "MachineError", "MemoryPort", "Unit", "VectorUnit", "from_picture",
    "from_yaml", "list_machines", "load", "nearest_port", "picture", "site_kind", "to_yaml",
]  # fmt: skip
