"""Ways to a machine, by name: `open_transport("model", machine)`. docs/transports.md has every one."""

from .opening import KINDS, open_transport, prepare

__all__ = ["KINDS", "open_transport", "prepare"]
