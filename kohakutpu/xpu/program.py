"""From a Python function to a `tree.Program`: the kernel, the helpers that it reaches, and what has no meaning."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import dataclass
from types import FunctionType as PythonFunction

from .constants import Names
from .conversions import Unread, refuse
from .errors import DeclarationError, Refusal, Source
from .names import Unmodelled
from .statements import Reader
from .tree import Declare, ForStripe, Function, Invoke, Program, Variable, walk
from .types import VOID, BufferType, FunctionType, Scalar, SharedType, TileType, VectorType
from .uniform import check_uniform
from .verbs import VERBS

HELPER_PARAMETERS = (Scalar, VectorType, BufferType, SharedType, TileType, FunctionType)


@dataclass(frozen=True)
class Definition:
    """A function's source: its `ast` node, the text that the node's columns refer to, its file and first line."""

    node: ast.FunctionDef
    text: str
    file: str
    first_line: int


def definition_of(function: PythonFunction) -> Definition:
    """The source of a function, found through `inspect`; nothing is executed."""
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError) as error:
        raise DeclarationError(f"{function.__qualname__}: its source cannot be read ({error})") from None
    text = textwrap.dedent("".join(lines))
    try:
        node = ast.parse(text).body[0]
    except SyntaxError as error:
        raise DeclarationError(f"{function.__qualname__}: its source does not stand alone ({error})") from None
    if not isinstance(node, ast.FunctionDef):
        raise DeclarationError(f"{function.__qualname__}: a plain function is expected")
    return Definition(node, text, inspect.getsourcefile(function) or function.__code__.co_filename, first)


class Session:
    """The reading of one kernel: helpers are read once each, and all refusals come together here."""

    def __init__(self, backend: str | None = None):
        self.backend = backend
        self.refusals: list[Refusal] = []
        self.dynamic: list[Source] = []
        self.helpers: dict[object, Function] = {}
        self._reading: list[object] = []

    def function(self, helper, at: Source) -> Function:
        """A helper's tree. Recursion is refused at the call that closes the circle."""
        if helper in self._reading:
            refuse(f"recursion: {helper.name} is being called", at)
        if helper not in self.helpers:
            self._reading.append(helper)
            self.helpers[helper] = self.read(helper, False)
            self._reading.pop()
        return self.helpers[helper]

    def read(self, routine, is_kernel: bool) -> Function:
        """The tree of a kernel or a helper."""
        arm = getattr(routine, "arms", {}).get(self.backend)
        function = arm or routine.function
        source = definition_of(function)
        names = Names(function, routine.values)
        reader = Reader(self, routine.name, is_kernel, source.node, source.text, source.file, source.first_line, names)
        at = Source(source.file, source.first_line + source.node.lineno - 1, f"def {routine.name}")
        scope: dict[str, object] = {}
        parameters = []
        for argument in source.node.args.args:
            try:
                variable = Variable(argument.arg, self.parameter(reader, argument, is_kernel), at, "parameter")
                parameters.append(variable)
                scope[argument.arg] = variable
            except Unread as unread:
                reader.record(unread, argument)
                scope[argument.arg] = object()
        self._signature(source.node.args, reader, at)
        try:
            reader.result = self.result(reader, source.node, is_kernel)
        except Unread as unread:
            reader.record(unread, source.node.returns or source.node)
        portable = arm is not None or getattr(routine, "portable", True)
        body = reader.body(source.node.body, scope) if portable else ()
        return Function(at, routine.name, tuple(parameters), reader.result, body, portable)

    @staticmethod
    def _signature(arguments: ast.arguments, reader: Reader, at: Source) -> None:
        odd = arguments.vararg or arguments.kwarg or arguments.posonlyargs or arguments.defaults
        if odd:
            reader.record(Unread("a parameter with *, **, / or a default", at), reader.definition)

    @staticmethod
    def parameter(reader: Reader, argument: ast.arg, is_kernel: bool):
        """A parameter's type. What a kernel cannot take is XPU-K01."""
        at = reader.at(argument)
        if argument.annotation is None:
            refuse(f"XPU-K01: parameter {argument.arg} has no type", at)
        kind = reader.type_of(argument.annotation)
        if isinstance(kind, Unmodelled):
            refuse(f"XPU-K01: {kind}: textures, images, samplers and ray queries are not modelled", at)
        allowed = (Scalar, BufferType, FunctionType) if is_kernel else HELPER_PARAMETERS
        if not isinstance(kind, allowed):
            if isinstance(kind, type):
                refuse(f"XPU-K01: parameter {argument.arg}: {kind.__name__}: value types are not modelled", at)
            takes = "primitives, buffers and functions" if is_kernel else "no such type"
            refuse(f"XPU-K01: parameter {argument.arg} of type {kind!s}: this takes {takes}", at)
        return kind

    @staticmethod
    def result(reader: Reader, node: ast.FunctionDef, is_kernel: bool):
        """What a function gives: nothing, a primitive or a vector."""
        if node.returns is None or (isinstance(node.returns, ast.Constant) and node.returns.value is None):
            return VOID
        at = reader.at(node.returns)
        if is_kernel:
            refuse("a kernel returns no value", at)
        kind = reader.type_of(node.returns)
        if not isinstance(kind, (Scalar, VectorType)):
            refuse(f"a helper returns a primitive or a vector, not {kind}", at)
        return kind


def _uses(functions: list[Function]) -> frozenset[str]:
    found = set()
    for node in (node for function in functions for statement in function.body for node in walk(statement)):
        if isinstance(node, Invoke):
            verb = VERBS[node.verb]
            found |= {"wave"} if verb.width else set()
            found |= {f"{verb.rendezvous} rendezvous"} if verb.rendezvous else set()
            found |= {"atomic"} if verb.atomic else set()
            found |= {"fragment"} if node.verb == "tile.set" else set()
        if isinstance(node, ForStripe) or (isinstance(node, Declare) and isinstance(node.variable.type, TileType)):
            found.add("wave")
    return frozenset(found | ({"wave rendezvous"} if "fragment" in found else set()))


def build(kernel, backend: str | None = None) -> Program:
    """Read a kernel and all it reaches. Never raises for a bad body: `refusals` says what is wrong with it.

    With a `backend`, helpers that have an arm for it are read as that.
    """
    session = Session(backend)
    body = session.read(kernel, True)
    helpers = list(session.helpers.values())
    if not session.refusals:
        session.refusals += check_uniform(body)
    uses = _uses([body, *helpers])
    width = kernel.wave_width
    arms = frozenset(name for helper in session.helpers for name in helper.arms)
    annotations = tuple(kernel.annotations)
    return Program(kernel.name, body, tuple(helpers), tuple(session.refusals), width, uses, annotations, arms)
