"""Equal modules of a Verilog text become one: simulators and synthesis then see each block of a machine once.

Works on what Yosys writes. Two modules are equal when their texts differ in nothing but the numbers in generated names.
"""

from __future__ import annotations

import re

# An identifier as Yosys writes it: plain, or escaped and ended by a space.
_NAME = r"(?:\\\S+ |\w+)"
_MODULE = re.compile(rf"^module ({_NAME}) ?\(.*?^endmodule\n", re.M | re.S)
_INSTANCE = re.compile(rf"^  ({_NAME}) ?({_NAME}) ?\(\n((?:    \..*\n)*)  \);$", re.M)
_CONNECTION = re.compile(rf"^    \.({_NAME})\(", re.M)
_GENERATED = re.compile(r"\\\S*\$\d+\S* |\bzero_\d+\b")


class _Merger:
    def __init__(self, modules: dict[str, str]):
        self.modules = modules
        self.kept: dict[str, str] = {}  # texts to write, by name
        self.stands_for: dict[str, str] = {}
        self.generated: dict[str, list[str]] = {}  # generated names in order of appearance
        self.by_text: dict[str, str] = {}

    def visit(self, name: str) -> str:
        """The name of the module that stands for `name`."""
        if name not in self.stands_for:
            text = _INSTANCE.sub(self._instance, self.modules[name])
            order: dict[str, int] = {}
            anonymous = _GENERATED.sub(
                lambda found: f"@{order.setdefault(found[0], len(order))} ", text.replace(name, "@", 1)
            )
            self.generated[name] = list(order)
            self.stands_for[name] = standing = self.by_text.setdefault(anonymous, name)
            if standing == name:
                self.kept[name] = text
        return self.stands_for[name]

    def _instance(self, found: re.Match) -> str:
        kind, label, connections = found.groups()
        if kind not in self.modules:
            return found[0]
        standing = self.visit(kind)
        names = dict(zip(self.generated[kind], self.generated[standing], strict=True))
        renamed = _CONNECTION.sub(lambda c: f"    .{names.get(c[1], c[1])}(", connections)
        return f"  {standing} {label} (\n{renamed}  );"


def merge(text: str) -> str:
    """`text` with one module of each kind; the first of equal ones stays, and instances name it."""
    modules = {found[1]: found[0] for found in _MODULE.finditer(text)}
    merger = _Merger(modules)
    for name in modules:
        merger.visit(name)
    return _MODULE.sub(lambda found: merger.kept.get(found[1], ""), text)
