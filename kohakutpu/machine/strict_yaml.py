"""YAML with line marks and without YAML's guesses: what could be read in two ways is refused by line and column.

Plain decimal integers, `true`/`false`, strings, lists and mappings; no tabs, anchors, aliases, merge keys,
explicit tags, duplicate keys or second documents.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import NoReturn

import yaml

from kohakutpu.wording import counted

from .description import MachineError

Node = yaml.nodes.Node
DEPTH_MAX = 16  # the composer recurses
_ODD_SPACE = re.compile("[\t\r\x85\u2028\u2029]")
_DECIMAL = re.compile(r"0|-?[1-9][0-9]{0,18}")
_SIZE = re.compile(r"([1-9][0-9]{0,8}) ?(KiB|MiB|GiB)")
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class Document:
    """One YAML document, read strictly; every refusal is a MachineError that begins with `source:line:column`.

    `what` is what the file describes, in one word or two.
    """

    def __init__(self, text: str, source: str, what: str = "machine"):
        self.source = source
        self.what = what
        text = text.replace("\r\n", "\n")
        self.lines = text.split("\n")
        self.root = self._compose(text)

    # ---- refusing -----------------------------------------------------------------------------------

    def at(self, line: int, column: int) -> str:
        """`source:line:column`, counting from 1."""
        return f"{self.source}:{line}:{column}"

    def where(self, node: Node) -> str:
        return self.at(node.start_mark.line + 1, node.start_mark.column + 1)

    def refuse(self, node: Node, message: str) -> NoReturn:
        raise MachineError(message, where=self.where(node))

    # ---- reading ------------------------------------------------------------------------------------

    def _compose(self, text: str) -> Node:
        for number, line in enumerate(self.lines, 1):
            odd = _ODD_SPACE.search(line)
            if odd:
                meant = "a tab" if odd[0] == "\t" else f"line break U+{ord(odd[0]):04X}"
                raise MachineError(f"{meant}; use spaces and plain newlines", where=self.at(number, odd.start() + 1))
        try:
            documents = depth = 0
            for event in yaml.parse(text, Loader=yaml.SafeLoader):
                mark = event.start_mark
                where = self.at(mark.line + 1, mark.column + 1)
                if isinstance(event, yaml.DocumentStartEvent):
                    documents += 1
                    if documents > 1:
                        raise MachineError(f"a second YAML document; a file describes one {self.what}", where=where)
                if isinstance(event, yaml.AliasEvent):
                    raise MachineError(f"alias *{event.anchor}; write the value out", where=where)
                if getattr(event, "anchor", None) is not None:
                    raise MachineError(f"anchor &{event.anchor}; write the value out", where=where)
                if getattr(event, "tag", None) is not None:
                    raise MachineError(f"explicit tag {event.tag}; values say their own type", where=where)
                depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
                if depth > DEPTH_MAX:
                    raise MachineError(f"nested {depth} deep; no statement here needs more than 4", where=where)
            root = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            raise MachineError(f"character U+{error.character:04X} is not allowed", where=self.at(line, 1)) from error
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            parts = " ".join(part for part in (error.context, error.problem) if part)
            raise MachineError(f"not YAML: {parts}", where=self.at(mark.line + 1, mark.column + 1)) from error
        if root is None:
            raise MachineError(f"an empty file; a {self.what} description is expected", where=self.at(1, 1))
        return root

    def mapping(self, node: Node, known: Iterable[str], what: str) -> dict[str, Node]:
        """The values of a mapping by key; keys outside `known` and repeated keys are refused."""
        known = list(known)
        if not isinstance(node, yaml.MappingNode):
            self.refuse(node, f"{what} is a mapping with keys {', '.join(known)}, not {self._kind(node)}")
        found: dict[str, Node] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.refuse(key, f"a key of {what} is a word, not {self._kind(key)}")
            name = key.value
            if name == "<<":
                self.refuse(key, "merge key <<; write the values out")
            if name not in known:
                near = difflib.get_close_matches(name, known, 1, 0.5)
                hint = f"did you mean {near[0]}? " if near else ""
                self.refuse(key, f"unknown key {name!r} in {what}; {hint}Keys are {', '.join(known)}")
            if name in found:
                first = found[name].start_mark.line + 1
                self.refuse(key, f"duplicate key {name!r} in {what}; the first is on line {first}")
            found[name] = value
        return found

    def sequence(self, node: Node, what: str) -> list[Node]:
        if not isinstance(node, yaml.SequenceNode):
            self.refuse(node, f"{what} is a list, not {self._kind(node)}")
        return node.value

    def integer(self, node: Node, what: str) -> int:
        """A plain decimal integer, and no other spelling of a number."""
        text = self._plain(node, what, "a plain decimal integer")
        if not _DECIMAL.fullmatch(text):
            self.refuse(node, f"{what} is a plain decimal integer, not {text!r}{self._pitfall(text)}")
        return int(text)

    def size(self, node: Node, what: str) -> int:
        """Bytes: a plain decimal integer, or one with KiB, MiB or GiB."""
        text = self._plain(node, what, "a number of bytes such as 65536 or 64 MiB")
        match = _SIZE.fullmatch(text)
        if match:
            return int(match[1]) * _UNITS[match[2]]
        if not _DECIMAL.fullmatch(text):
            self.refuse(node, f"{what} is a number of bytes such as 65536 or 64 MiB, not {text!r}{self._pitfall(text)}")
        return int(text)

    def boolean(self, node: Node, what: str) -> bool:
        text = self._plain(node, what, "true or false")
        if text not in ("true", "false"):
            self.refuse(node, f"{what} is true or false, not {text!r}")
        return text == "true"

    def word(self, node: Node, what: str) -> str:
        """A string; a plain word that YAML takes for a number, boolean, date or null must be quoted."""
        if not isinstance(node, yaml.ScalarNode):
            self.refuse(node, f"{what} is a word, not {self._kind(node)}")
        if node.tag != "tag:yaml.org,2002:str":
            tag = node.tag.rsplit(":", 1)[1]
            meant = {"bool": "a boolean", "null": "nothing", "timestamp": "a date"}.get(tag, "a number")
            self.refuse(node, f"{what} is a word, but YAML reads {node.value!r} as {meant}; quote it if it is meant")
        return node.value

    def is_sequence(self, node: Node) -> bool:
        return isinstance(node, yaml.SequenceNode)

    def pair(self, node: Node, what: str) -> tuple[int, int]:
        """Two integers `[x, y]`."""
        if not isinstance(node, yaml.SequenceNode):
            self.refuse(node, f"{what} is a pair [x, y], not {self._kind(node)}")
        parts = node.value
        if len(parts) != 2:
            self.refuse(node, f"{what} is a pair [x, y], not {counted(len(parts), 'value')}")
        return self.integer(parts[0], f"{what}'s x"), self.integer(parts[1], f"{what}'s y")

    def block(self, node: Node, what: str) -> tuple[str, int, int]:
        """A literal block (`|`): its text, the line it starts on and its indentation."""
        if not isinstance(node, yaml.ScalarNode) or node.style != "|":
            self.refuse(node, f"{what} is a literal block after '{what}: |', not {self._kind(node)}")
        first = node.start_mark.line + 1
        for offset, content in enumerate(node.value.split("\n")):
            if content.strip():
                return node.value, first + 1, len(self.lines[first + offset]) - len(content)
        self.refuse(node, f"{what} is empty")

    def _plain(self, node: Node, what: str, wanted: str) -> str:
        if not isinstance(node, yaml.ScalarNode):
            self.refuse(node, f"{what} is {wanted}, not {self._kind(node)}")
        if node.style is not None:
            self.refuse(node, f"{what} is {wanted}, not the quoted string {node.value!r}")
        return node.value

    @staticmethod
    def _pitfall(text: str) -> str:
        if re.fullmatch(r"[-+]?0[0-7_]+", text):
            return " (YAML reads a leading 0 as octal)"
        if re.fullmatch(r"[-+]?0o[0-7]+", text):
            return " (an octal number in some YAML versions and a string in others)"
        if re.fullmatch(r"[-+]?[0-9.]+[eE][-+]?[0-9]+", text):
            return " (a string in some YAML versions and a float in others)"
        if text.lower() in ("yes", "no", "on", "off", "true", "false", "y", "n"):
            return " (a boolean in some YAML versions)"
        if text.lower() in ("", "~", "null"):
            return " (nothing was given)"
        return ""

    @staticmethod
    def _kind(node: Node) -> str:
        if isinstance(node, yaml.MappingNode):
            return "a mapping"
        if isinstance(node, yaml.SequenceNode):
            return "a list"
        return repr(node.value) if node.value else "nothing"
