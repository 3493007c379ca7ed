"""Reading calls: conversions, constructors, built-ins, methods, helpers and function values."""

from __future__ import annotations

import ast

from kohakutpu.wording import counted

from . import conversions as rules
from .alignment import proven
from .constants import NotStatic
from .conversions import refuse
from .errors import Source
from .names import Syntax, Unmodelled, VerbName
from .tree import (
    Call, CallTag, Convert, Expression, Invoke, Literal, LoadVector, MakeVector, MakeWaveVector, Read, Slice, Splat,
    Variable,
)  # fmt: skip
from .types import (
    BOOL, MEMORY, VOID, FunctionType, Scalar, SharedType, SliceType, TileType, VectorType, WaveVectorType, u32, u64,
)  # fmt: skip
from .verbs import VERBS

INSTEAD = {
    "abs": "math.abs", "min": "math.min", "max": "math.max", "round": "math.round", "pow": "math.pow", "int": "i32",
    "float": "f32 or f64", "divmod": "div and rem", "sum": "a loop", "len": "the element count as a parameter",
    "range": "range(...) in a for", "enumerate": "buffer.range(n) in a for",
}  # fmt: skip
HOST_METHODS = ("slice", "word_view", "half_view", "upload", "download", "upload_async", "download_async", "host_load",
                "host_store", "free")  # fmt: skip


class Calls:
    """The calls of one function. Mixed into the reader."""

    def read_Call(self, node: ast.Call, at: Source) -> Expression:
        """Any call."""
        function = node.func
        if isinstance(function, ast.Subscript) and isinstance(function.value, ast.Attribute):
            if function.value.attr == "vload":
                return self.vload(node, function, at)
        try:
            target = self.static(function)
        except NotStatic:
            return self.method_or_value(node, at)
        target = BOOL if target is bool else target
        if isinstance(target, Syntax):
            return self.syntax(target, node, at)
        if isinstance(target, VerbName):
            return self.verb(target.verb, [], node, at)
        if isinstance(target, Scalar):
            return self.conversion(target, node, at)
        if isinstance(target, VectorType):
            return self.make_vector(target, node, at)
        if isinstance(target, FunctionType):
            (tag,) = self.arguments(node, 1, at)
            return Convert(at, target, rules.cast(rules.index(tag, "a function's tag"), u32))
        if isinstance(target, tuple):
            return self.wave_vector(*target, node, at)
        if getattr(target, "is_device_helper", False):
            return self.helper(target, node, at)
        if isinstance(target, SharedType):
            refuse(f"{target}(...) declares memory: name = {target}(n) is a statement of its own", at)
        if isinstance(target, TileType):
            refuse(f"a tile is declared by its annotation (name: {target}) and filled by splat or load", at)
        if isinstance(target, Unmodelled):
            refuse(f"{target}: textures, images, samplers and ray queries are not modelled", at)
        if getattr(target, "is_kernel", False):
            refuse(f"{target.name} is a kernel; a kernel calls only @xpu.device helpers", at)
        word = INSTEAD.get(getattr(target, "__name__", None) if target.__class__.__module__ == "builtins" else None)
        if word:
            refuse(f"{ast.unparse(function)} is Python's; {word} says it", at)
        refuse(f"{ast.unparse(function)} is no @xpu.device helper and no built-in", at)

    def arguments(self, node: ast.Call, count: int | tuple[int, ...], at: Source) -> list[Expression]:
        """The positional arguments, each with a value."""
        counts = (count,) if isinstance(count, int) else count
        if node.keywords:
            refuse(f"{node.keywords[0].arg or '**'}= is no argument of this call", at)
        if len(node.args) not in counts:
            refuse(f"{' or '.join(map(str, counts))} arguments expected, not {len(node.args)}", at)
        values = self.all(*node.args)
        for value in values:
            if value.type is VOID:
                refuse("this call gives no value", value.at)
        return values

    def conversion(self, kind: Scalar, node: ast.Call, at: Source) -> Expression:
        """`f32(x)`: rule 9. A literal past int64 has a meaning only in u64."""
        if kind is u64 and len(node.args) == 1 and not node.keywords:
            value = self.static_or_none(node.args[0])
            if type(value) is int and 0 <= value <= u64.high:
                return Literal(at, u64, value)
        if kind.kind == "float" and len(node.args) == 1 and not node.keywords:
            value = self.static_or_none(node.args[0])
            if type(value) is float:
                return Literal(at, kind, value)
        (value,) = self.arguments(node, 1, at)
        if not isinstance(value.type, Scalar):
            refuse(f"{kind} of {value.type}; a primitive is converted, a vector by its to_ methods", at)
        converted = rules.cast(value, kind, at)
        return Convert(at, kind, value) if getattr(converted, "bare", False) else converted

    def make_vector(self, kind: VectorType, node: ast.Call, at: Source) -> Expression:
        """No argument: zeros. One: every lane, or another vector's lanes converted. Else: the lanes."""
        values = self.arguments(node, (0, 1, kind.count), at)
        if len(values) == 1 and isinstance(values[0].type, VectorType):
            return rules.assign(values[0], kind, str(kind), at)
        if len(values) == 1:
            return Splat(at, kind, rules.assign(values[0], kind.element, "a lane"))
        if not values:
            zero = False if kind.element is BOOL else 0.0 if kind.element.kind == "float" else 0
            return Splat(at, kind, Literal(at, kind.element, zero))
        return MakeVector(at, kind, tuple(rules.assign(value, kind.element, "a lane") for value in values))

    def wave_vector(self, kind: WaveVectorType, form: str, node: ast.Call, at: Source) -> Expression:
        """`WaveVector[T, N].of_slice(memory, base[, stride])`, `.broadcast(v)`, `.of_lane(v)`."""
        if form == "of_slice":
            memory, *numbers = self.arguments(node, (2, 3), at)
            if not isinstance(memory.type, MEMORY) or memory.type.element != kind.element:
                refuse(f"of_slice of {memory.type}; memory of {kind.element} is taken", at)
            return MakeWaveVector(at, kind, "slice", (memory, *map(rules.index, numbers)))
        if form not in ("broadcast", "of_lane"):
            refuse(f"WaveVector has no {form}; it has of_slice, broadcast and of_lane", at)
        (value,) = self.arguments(node, 1, at)
        value = rules.assign(value, kind.element, "a column factor")
        return MakeWaveVector(at, kind, {"of_lane": "lane"}.get(form, form), (value,))

    def syntax(self, word: Syntax, node: ast.Call, at: Source) -> Expression:
        """The helpers for what Python's operators cannot say."""
        if word.verb not in ("div", "rem", "lshr"):
            places = {"break_to": "a statement", "continue_to": "a statement", "do_while": "the test of a while"}
            refuse(f"{word.verb} has a meaning only as {places.get(word.verb, 'what a loop runs over')}", at)
        left, right = self.arguments(node, 2, at)
        result = rules.binary(word.verb, left, right, at)
        if rules.element_of(result.type) is BOOL:
            refuse(f"{word.verb} of bool", at)
        return result

    def verb(self, name: str, receiver: list[Expression], node: ast.Call, at: Source) -> Expression:
        """A built-in; the constants that it takes are stated in its positional arguments or by name."""
        verb = VERBS[name]
        options, plain = [], list(node.args)
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        for option, kind, default in verb.options:
            given = keywords.pop(option, None)
            if given is None:
                given = next((arg for arg in plain if isinstance(self.static_or_none(arg), kind)), None)
                plain = [arg for arg in plain if arg is not given]
            value = default if given is None else self.static_or_none(given)
            if not isinstance(value, kind):
                refuse(f"{name}: {option} must be a constant {kind.__name__}", at)
            options.append(value)
        call = ast.Call(node.func, plain, [ast.keyword(k, v) for k, v in keywords.items()])
        counts = tuple(count - len(receiver) for count in verb.counts)
        values = receiver + self.arguments(call, counts, at)
        values, gives = verb.typing(values, at)
        target = None
        if verb.changes is not None:
            changed = values[verb.changes]
            if not isinstance(changed, Read) or changed.variable.kind == "loop":
                refuse(f"{name} changes a tile; a tile's name is expected", changed.at)
            target, gives = changed.variable, VOID
        return Invoke(at, gives, name, tuple(values), target, tuple(options))

    def method_or_value(self, node: ast.Call, at: Source) -> Expression:
        """A method of a vector, a tile or memory; or a call of a function value."""
        function = node.func
        if isinstance(function, ast.Attribute):
            root = function.value
            if isinstance(root, ast.Name) and self.find(root.id) is None and root.id not in self.assigned:
                if self.static_or_none(root) is None:
                    refuse(f"{root.id} names nothing", at)
                refuse(f"{ast.unparse(function)} is no built-in and no @xpu.device helper", at)
            return self.method(self.value(root), function.attr, node, at)
        value = self.read(function)
        if not isinstance(value.type, FunctionType):
            refuse(f"{value.type} cannot be called", at)
        members = tuple(self.session.function(member, at) for member in value.type.members)
        kinds = [variable.type for variable in members[0].parameters]
        values = self.call_arguments(members[0].name, members[0].parameters, node, at)
        for member in members[1:]:
            if [p.type for p in member.parameters] != kinds or member.result != members[0].result:
                refuse(f"{value.type}: {member.name} differs from {members[0].name} in its types", at)
        return CallTag(at, members[0].result, value, members, values)

    def method(self, receiver: Expression, word: str, node: ast.Call, at: Source) -> Expression:
        """A method by the receiver's type."""
        kind = receiver.type
        family = {VectorType: "vector", TileType: "tile"}.get(type(kind), "memory" if isinstance(kind, MEMORY) else "")
        if isinstance(kind, TileType) and not isinstance(receiver, Read):
            refuse("a method of a computed tile", at)
        if isinstance(kind, MEMORY) and word == "at":
            (offset,) = self.arguments(node, 1, at)
            if not isinstance(kind, SharedType):
                refuse(f"row factors are a slice of Shared, not of {kind}", at)
            return Slice(at, SliceType(kind.element), receiver, rules.index(offset))
        if isinstance(kind, MEMORY) and word == "vload":
            refuse("vload needs its lane count: memory.vload[N](index)", at)
        if isinstance(kind, MEMORY) and word in ("vstore", "range"):
            refuse(f"{word} has a meaning only as {'a statement' if word == 'vstore' else 'what a for runs over'}", at)
        if isinstance(kind, MEMORY) and word in HOST_METHODS:
            refuse(f"{word} is the host's; pass the kernel the view", at)
        if f"{family}.{word}" not in VERBS:
            known = ", ".join(sorted(name.partition(".")[2] for name in VERBS if name.startswith(f"{family}.")))
            refuse(f"{kind} has no {word}" + (f"; it has {known}" if family and known else ""), at)
        return self.verb(f"{family}.{word}", [receiver], node, at)

    def vload(self, node: ast.Call, function: ast.Subscript, at: Source) -> Expression:
        """`memory.vload[N](index, align=bytes)`."""
        memory = self.value(function.value.value)
        count = self.static_or_none(function.slice)
        if not isinstance(memory.type, MEMORY) or type(count) is not int or count < 1:
            refuse("vload[N] takes a constant lane count and reads a buffer or Shared", at)
        align = self.alignment(node, count * memory.type.element.size, at)
        (position,) = self.arguments(ast.Call(node.func, node.args, []), 1, at)
        kind = VectorType(memory.type.element, count)
        return LoadVector(at, kind, memory, rules.index(position), align, proven(position, memory.type.element.size))

    def alignment(self, node: ast.Call, width: int, at: Source) -> int:
        """The author's `align=`, in bytes: a constant power of two from 1 to 16, no wider than the access."""
        for keyword in node.keywords:
            if keyword.arg != "align":
                refuse(f"{keyword.arg or '**'}= is no argument of this call", at)
        if not node.keywords:
            return 0
        value = self.static_or_none(node.keywords[0].value)
        if type(value) is not int or value not in (1, 2, 4, 8, 16) or value > width:
            text = ast.unparse(node.keywords[0].value)
            refuse(f"align={text}: a constant power of two from 1 to 16, no wider than the {width} bytes read", at)
        return value

    def call_arguments(self, name: str, parameters: tuple[Variable, ...], node: ast.Call, at: Source) -> tuple:
        """A helper's arguments, converted to its parameters' types; a tile and memory only at the exact type."""
        if node.keywords:
            refuse(f"{name}: {node.keywords[0].arg or '**'}= is no argument; helpers take theirs by position", at)
        if len(node.args) != len(parameters):
            refuse(f"{name} takes {counted(len(parameters), 'argument')}, not {len(node.args)}", at)
        values = []
        for parameter, given in zip(parameters, node.args, strict=True):
            values.append(rules.assign(self.read(given, parameter.type), parameter.type, f"{name}: {parameter.name}"))
        return tuple(values)

    def helper(self, helper, node: ast.Call, at: Source) -> Expression:
        """A call of an @xpu.device helper."""
        function = self.session.function(helper, at)
        return Call(at, function.result, function, self.call_arguments(helper.name, function.parameters, node, at))
