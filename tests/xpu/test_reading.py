"""What the front end refuses, by name and place, and that it reads without running (spec/xpu.md 1, 2.4, 7.3)."""

import importlib
import itertools
import types

import pytest

from kohakutpu import xpu
from kohakutpu.xpu import DeclarationError, Refused, tree
from kohakutpu.xpu.program import Session

PARAMETERS = "out: KernelBuffer[i32], n: i32, u: u32, x: f32, b: bool"
REFUSED = [
    ("out[0] = n / 2", "/ of integers is a float in Python; div(a, b) truncates toward zero"),
    ("out[0] = n // 2", "// of signed integers floors in Python; div(a, b) truncates toward zero"),
    ("out[0] = n % 2", "% of signed integers floors in Python; rem(a, b) truncates toward zero"),
    ("x2 = x % x", "% of floats takes the divisor's sign in Python; rem(a, b) is C's fmod"),
    ("x2 = x // x", "// of floats floors; math.floor(a / b) says it"),
    ("x2 = x ** x", "this operator has no meaning in a kernel; math.pow says it"),
    ("x2 = x @ x", "this operator has no meaning in a kernel; tile.mma says it"),
    ("n **= 2", "this operator has no meaning in a kernel; math.pow and tile.mma say it"),
    ("out[0] = +n", "unary + has no meaning in a kernel; `x += 1` increments"),
    ("out[0] = --n", "`--` reads as a decrement and is none; `x -= 1` decrements"),
    ("b2 = 0 < n < 5", "a chained comparison has no meaning in a kernel; `a < b and b < c` says it"),
    ("b2 = n in out", "`in` and `is` have no meaning in a kernel; == compares"),
    ("x2 = x & x", "f32 & f32: bits of a float; f32_to_bits gives them"),
    ("x2 = x << 1", "f32 << f32: bits of a float; f32_to_bits gives them"),
    ("n2 = n + b", "i32 + bool: bool goes only with bool, in == != & | ^"),
    ("n2 = b + b", "bool + bool: bool goes only with bool, in == != & | ^"),
    ("b2 = b < b", "bool < bool: bool goes only with bool, in == != & | ^"),
    ("b2 = -b", "- of bool; not may be meant"),
    ("b2 = ~x", "~ of f32; f32_to_bits may be meant"),
    ("b2 = not n", "the operand of not must be bool, not i32; compare it (x != 0)"),
    ("b2 = b and n", "an operand of and must be bool, not i32; compare it (x != 0)"),
    ("if n:\n    pass", "the condition of if must be bool, not i32; compare it (x != 0)"),
    ("while n:\n    pass", "the condition of while must be bool, not i32; compare it (x != 0)"),
    ("n2 = 1 if n else 2", "the condition must be bool, not i32"),
    ("out[0] = b", "the element: bool does not become i32 by itself; i32(...) says it"),
    ("b = n", "b: i32 does not become bool by itself; bool(...) says it"),
    ("out[x] = 1", "an index must be an integer, not f32"),
    ("out[b] = 1", "an index must be an integer, not bool"),
    ("n2 = n if b else u", "a choice of i32 and u32: the result would carry either type; convert one"),
    ("n2 = math.min(n, u)", "min or max of i32 and u32: the result would carry either type; convert one"),
    ("n2 = 9223372036854775808", "the integer 9223372036854775808 is past int64; u64(9223372036854775808) says it"),
    ("n2 = nowhere", "nowhere names nothing"),
    ("nowhere(n)", "nowhere names nothing"),
    ("n2 = nowhere.far", "nowhere.far names nothing"),
    ("n2 = 'text'", "a string has no meaning in a kernel"),
    ("n2 = f'{n}'", "a string has no meaning in a kernel"),
    ("n2 = None", "None has no meaning in a kernel"),
    ("n2 = 1j", "a complex number has no meaning in a kernel"),
    ("n2 = [n]", "a list has no meaning in a kernel"),
    ("n2 = (n, n)", "a tuple has no meaning in a kernel"),
    ("n2 = lambda: n", "a lambda has no meaning in a kernel"),
    ("n2 = [i for i in out]", "a comprehension has no meaning in a kernel"),
    ("n2 = {}", "a dict has no meaning in a kernel"),
    ("try:\n    pass\nfinally:\n    pass", "an exception has no meaning in a kernel"),
    ("raise ValueError", "an exception has no meaning in a kernel"),
    ("assert b", "an exception has no meaning in a kernel"),
    ("with b:\n    pass", "with has no meaning in a kernel"),
    ("import os", "an import has no meaning in a kernel"),
    ("global q", "global has no meaning in a kernel"),
    ("def f():\n    pass", "a nested function has no meaning in a kernel"),
    ("class F:\n    pass", "a class has no meaning in a kernel"),
    ("del n", "del has no meaning in a kernel"),
    ("match n:\n    case 1:\n        pass", "match has no meaning in a kernel"),
    ("n", "an expression whose value goes nowhere"),
    ("return n", "a kernel returns no value"),
    ("q = r = n", "a = b = c has no meaning in a kernel; assign one after the other"),
    ("q, r = n, n", "storing into this: a name, an element or a lane is expected"),
    ("n.field = 1", "i32 has no field field; vectors have .x .y .z .w"),
    ("n2 = n[0]", "i32 has no elements to index"),
    ("n2 = n.x", "i32 has no field x; vectors have .x .y .z .w"),
    ("n2: f16\nn2: f32", "n2 is declared already"),
    ("n2: int", "a local of type <class 'int'>"),
    ("n2: nowhere", "nowhere is no type of the kernel language"),
    ("if b:\n    q = n\nout[0] = q", "q has no value here: it is bound in another block; declare it before (q: f32)"),
    ("out[0] = (q := n)", "q := binds a new name inside an expression; declare it before"),
    ("out = n", "out is KernelBuffer[i32], which is not assigned as a whole"),
    ("q = out", "q = KernelBuffer[i32]: only numbers, vectors and functions are assigned"),
    ("q = out if b else out", "a choice of KernelBuffer[i32]: only values can be chosen"),
    ("for i in range(n):\n    i = 3", "i counts a loop whose bounds are read once; a while loop may change"),
    ("for n in range(3):\n    pass", "n is declared already; a loop's counter is its own"),
    ("for i in range(n, u):\n    pass", "a range of i32 and u32: the result would carry either type; convert one"),
    ("for i in range(0, 3, n):\n    pass", "a range's step is a constant other than 0; a while loop may step"),
    ("for i in range(0, 3, 0):\n    pass", "a range's step is a constant other than 0; a while loop may step"),
    ("for i in range(x):\n    pass", "a bound must be an integer, not f32"),
    ("for i in out:\n    pass", "for runs over range(...), group.stripe(n) or buffer.range(n)"),
    ("for i in list(out):\n    pass", "for runs over range(...), group.stripe(n) or buffer.range(n)"),
    ("for i in out.range(n):\n    pass", "for index, element in buffer.range(n) binds two names"),
    ("for i, j in range(n):\n    pass", "a loop counts with one name"),
    ("for i in range(3):\n    pass\nelse:\n    pass", "else after a loop has no meaning in a kernel"),
    ("for i in range(3):\n    break_to('a')", "no loop around this is labelled a"),
    ("for i in label('a', range(3)):\n    for j in label('a', range(3)):\n        pass", "labelled a already"),
    ("for i in label(n, range(3)):\n    pass", "a label is a constant name in quotes"),
    ("n2 = label('a', n)", "label has a meaning only as what a loop runs over"),
    ("n2 = do_while(b)", "do_while has a meaning only as the test of a while"),
    ("n2 = abs(n)", "abs is Python's; math.abs says it"),
    ("n2 = int(x)", "int is Python's; i32 says it"),
    ("n2 = len(out)", "len is Python's; the element count as a parameter says it"),
    ("print(n)", "print is no @xpu.device helper and no built-in"),
    ("n2 = out.upload(n)", "upload is the host's; pass the kernel the view"),
    ("n2 = out.slice(0, 1)", "slice is the host's; pass the kernel the view"),
    ("n2 = out.word_view()", "word_view is the host's; pass the kernel the view"),
    ("n2 = out.nothing()", "KernelBuffer[i32] has no nothing; it has atomic_add"),
    ("n2 = out.vload(0)", "vload needs its lane count: memory.vload[N](index)"),
    ("n2 = out.vload[n](0)", "vload[N] takes a constant lane count and reads a buffer or Shared"),
    ("n2 = out.vload[4](0, align=3)", "align=3: a constant power of two from 1 to 16, no wider than the 16 bytes read"),
    ("n2 = out.vload[4](0, align=32)", "align=32: a constant power of two from 1 to 16, no wider than the 16"),
    ("n2 = out.vload[1](0, align=8)", "align=8: a constant power of two from 1 to 16, no wider than the 4 bytes read"),
    ("n2 = out.vload[4](0, align=n)", "align=n: a constant power of two from 1 to 16, no wider than the 16 bytes read"),
    ("n2 = out.vload[4](0, order=1)", "order= is no argument of this call"),
    ("q = out.vstore(0, n)", "vstore has a meaning only as a statement"),
    ("out.vstore(0, n)", "vstore of i32; it takes a vector"),
    ("n2 = thread.x(1)", "0 arguments expected, not 1"),
    ("n2 = thread.x(q=1)", "q= is no argument of this call"),
    ("n2 = barrier.workgroup()", "this call gives no value"),
    ("n2 = wave.shuffle_sync(x, u)", "an argument of f32 where u32 is taken; a form for floats or u32(...) says it"),
    ("n2 = thread.w()", "thread has no w; it has"),
    ("out.atomic_and(0, x)\nn2 = out.atomic_sub(x, 1)", "an index must be an integer, not f32"),
    ("n2 = out.atomic_add(0, 1, order=n)", "memory.atomic_add: order must be a constant MemoryOrder"),
    ("x2 = group.reduce(n, x)", "group.reduce: op must be a constant Op"),
    ("n2 = workgroup.reduce(Op.ADD, u)", "workgroup.reduce of u32; it takes f32, i32, i64"),
    ("x2 = workgroup.scan(Op.ADD, x)", "workgroup.scan of f32; it takes i32, i64"),
    ("s = Shared[f32](0)", "0 elements of Shared"),
    ("s = Shared[f32](n)\nt = Shared[f32](n)", "a second Shared array sized at run time; the launch sizes one"),
    ("out[0] = Shared[f32](4)", "Shared[f32](...) declares memory: name = Shared[f32](n) is a statement of its own"),
    ("s: Shared[f32] = n", "Shared memory is declared by its size: s = Shared[f32](n)"),
    ("v = Vector[f32, 0](x)", "Vector: expected a positive integer constant, not 0"),
    ("v = Vector[f32, 4](x, x)", "0 or 1 or 4 arguments expected, not 2"),
    ("v = Vector[i32, 4](n)\nv2 = v + Vector[i32, 2](n)", "Vector[i32, 4] + Vector[i32, 2]: the lane counts differ"),
    ("v = Vector[i32, 4](n)\nn2 = n\nn2 = v", "n2: i32 expected, not Vector[i32, 4]"),
    ("v = Vector[i32, 4](n)\nv = n", "v: a scalar is not a vector; Vector[i32, 4](...) broadcasts it"),
    ("v = Vector[i32, 4](n)\nv = Vector[i32, 2](n)", "v: 2 lanes cannot become 4"),
    ("v = Vector[i32, 2](n)\nn2 = v.z", "Vector[i32, 2] has no .z"),
    ("v = Vector[i32, 2](n)\nv2 = v.to_f16()", "where a vector of any-bit float lanes"),
    ("v = Vector[i32, 2](n)\nv2 = v.as_words()", "where a vector of 8-bit int lanes, a multiple of 4 of them is taken"),
    ("v = Vector[i64, 2](n)\nv2 = v.widen_lo()", "64-bit lanes do not widen"),
    ("v = Vector[i8, 2](n)\nv2 = v.narrow(v)", "8-bit lanes do not narrow"),
    ("v = Vector[i8, 8](n)\nv2 = v.dot(v)", "integers are exactly 4 lanes of 8 bits; dot_sum takes more"),
    ("v = Vector[i8, 8](n)\nv2 = v.lut4(v)", "a table of 8 entries; lut4 takes 16"),
    ("c: CooperativeMatrix[f32, 16, 16, Use.ACCUMULATOR] = x", "a tile is declared without a value"),
    ("c = CooperativeMatrix[f32, 16, 16, 2]()", "a tile is declared by its annotation"),
    ("c: CooperativeMatrix[f32, 4, 4, 2]\nd: CooperativeMatrix[f32, 4, 4, 2]\nc = d", "is not assigned as a whole"),
    ("c: CooperativeMatrix[f32, 4, 4, 2]\nc.load(out, 0, 0, 4)", "a buffer or Shared of exactly f32 is taken"),
    ("t = Texture(n)", "Texture: textures, images, samplers and ray queries are not modelled"),
    ("k2 = xpu.wave.nothing()", "wave has no nothing; it has"),
]  # fmt: skip


@pytest.mark.parametrize("body, reason", REFUSED, ids=[reason[:50] + str(i) for i, (_, reason) in enumerate(REFUSED)])
def test_refused_by_name_and_place(body_of, reasons, launch, body, reason):
    kernel = body_of(body, PARAMETERS)
    found = reasons(kernel)
    assert any(reason in text for text in found), found
    assert all("(line " in text and ", near `" in text for text in found)
    with pytest.raises(Refused, match="^XPU-REF01: k: "):
        launch(kernel)


def test_every_refusal_is_listed_and_the_first_is_thrown_with_the_count(kernel_of, reasons, launch):
    kernel = kernel_of("""
@kernel
def k(out: KernelBuffer[i32], n: i32):
    out[0] = n / 2 + nowhere
    if n:
        out[1] = n // 2
    missing = 'text'
    out[2] = missing
""")
    assert reasons(kernel) == [
        "/ of integers is a float in Python; div(a, b) truncates toward zero (line 4, near `n / 2`)",
        "nowhere names nothing (line 4, near `nowhere`)",
        "the condition of if must be bool, not i32; compare it (x != 0) (line 5, near `n`)",
        "// of signed integers floors in Python; div(a, b) truncates toward zero (line 6, near `n // 2`)",
        "a string has no meaning in a kernel (line 7, near `'text'`)",
    ]
    with pytest.raises(Refused) as caught:
        launch(kernel)
    assert str(caught.value).endswith("(line 4, near `n / 2`), and 4 more")
    assert len(caught.value.refusals) == 5


PARAMETER_TYPES = [
    ("v: Vector[f32, 4]", "XPU-K01: parameter v of type Vector[f32, 4]: this takes primitives, buffers and functions"),
    ("s: Shared[f32]", "XPU-K01: parameter s of type Shared[f32]: this takes primitives, buffers and functions"),
    ("t: Texture", "XPU-K01: Texture: textures, images, samplers and ray queries are not modelled"),
    ("p: Point", "XPU-K01: parameter p: Point: value types are not modelled"),
    ("p", "XPU-K01: parameter p has no type"),
    ("p: 3", "3 is no type of the kernel language"),
    ("p: i32 = 4", "a parameter with *, **, / or a default"),
    ("*p: i32", "a parameter with *, **, / or a default"),
]


@pytest.mark.parametrize("parameter, reason", PARAMETER_TYPES)
def test_a_parameter_that_a_kernel_cannot_take(body_of, reasons, parameter, reason):
    class Point:
        pass

    assert any(reason in text for text in reasons(body_of("pass", parameter, Point=Point)))


HELPERS = [
    ("@device\ndef f(a: i32) -> i32:\n    return f(a)", "f(n)", "f: recursion: f is being called"),
    ("@device\ndef g(a: i32) -> i32:\n    return f(a)\n@device\ndef f(a: i32) -> i32:\n    return g(a)", "f(n)",
     "g: recursion: f is being called"),
    ("@device\ndef f(a: i32):\n    return a", "f(n)", "f: f declares no result; `-> f32` after its parameters does"),
    ("@device\ndef f(a: i32) -> i32:\n    return", "f(n)", "f: f must return i32"),
    ("@device\ndef f(a: i32) -> i32:\n    return a", "f(n, n)", "f takes 1 argument, not 2"),
    ("@device\ndef f(a: i32) -> i32:\n    return a", "f(a=n)", "f: a= is no argument; helpers take theirs by position"),
    ("@device\ndef f(a: KernelBuffer[f32]) -> i32:\n    return 1", "f(out)", "f: a: KernelBuffer[f32] expected, not"),
    ("@device\ndef f(a: i32) -> KernelBuffer[i32]:\n    return a", "f(n)",
     "f: a helper returns a primitive or a vector, not KernelBuffer[i32]"),
    ("@device\ndef f(a: i32) -> i32:\n    return a / 2", "f(n)", "f: / of integers is a float in Python"),
    ("@device\ndef f(a: i32) -> i32: ...", "f(n)", "f has back-end arms and no portable body"),
    ("@kernel\ndef f(a: i32):\n    pass", "f(n)", "f is a kernel; a kernel calls only @xpu.device helpers"),
    ("def f(a):\n    return a", "f(n)", "f is no @xpu.device helper and no built-in"),
    ("import math as f", "f.sqrt(n)", "f.sqrt is no @xpu.device helper and no built-in"),
]  # fmt: skip


@pytest.mark.parametrize("helper, call, reason", HELPERS)
def test_a_helper_that_cannot_be_called(kernel_of, reasons, helper, call, reason):
    kernel = kernel_of(f"{helper}\n@kernel\ndef k(out: KernelBuffer[i32], n: i32):\n    out[0] = {call}\n")
    assert any(text.startswith(reason) for text in reasons(kernel)), reasons(kernel)


def test_the_body_is_read_and_never_run(kernel_of, reasons):
    ran = []
    kernel = kernel_of("@kernel\ndef k(n: i32):\n    touch(n)\n", touch=lambda n: ran.append(n))
    assert reasons(kernel) == ["touch is no @xpu.device helper and no built-in (line 3, near `touch(n)`)"]
    assert not ran


@pytest.mark.parametrize(
    "use",
    [
        lambda k: k(1),
        lambda k: xpu.thread.x(),
        lambda k: xpu.f32(1.0),
        lambda k: xpu.Shared(4),
        lambda k: xpu.div(1, 2),
    ],
)
def test_the_host_cannot_use_a_kernels_words(kernel_of, use):
    kernel = kernel_of("@kernel\ndef k(n: i32):\n    pass\n")
    with pytest.raises(xpu.HostUse):
        use(kernel)


def test_every_node_has_a_line_and_its_text(kernel_of):
    kernel = kernel_of("""
@kernel
def k(y: KernelBuffer[f32], x: KernelBuffer[f32], a: f32, n: u32):
    i = thread.global_id_x()
    if i < n:
        y[i] = a * x[i] + y[i]
""")
    nodes = [node for statement in kernel.program.kernel.body for node in tree.walk(statement)]
    assert {(type(n).__name__, n.at.line, n.at.text) for n in nodes} >= {
        ("Declare", 4, "i = thread.global_id_x()"), ("Invoke", 4, "thread.global_id_x()"), ("Compare", 5, "i < n"),
        ("Store", 6, "y[i] = a * x[i] + y[i]"), ("Binary", 6, "a * x[i]"), ("Load", 6, "x[i]"),
    }  # fmt: skip
    assert all(n.at.line and n.at.text for n in nodes)


def test_names_come_from_where_python_finds_them(kernel_of, launch):
    import numpy as np

    text = """
SCALE = 3
def make(offset):
    @kernel
    def k(out: KernelBuffer[i32]):
        out[0] = SCALE * 10 + offset + xpu.Use.ACCUMULATOR
    return k
k = make(7)
"""
    out = np.zeros(1, np.int32)
    launch(kernel_of(text), out)
    assert out[0] == 39


STANDARD = ["ast", "calendar", "csv", "fractions", "heapq", "inspect", "random", "textwrap"]


@pytest.mark.parametrize("name", STANDARD)
def test_any_python_is_read_to_its_end(name, monkeypatch):
    """Functions that were never meant as kernels are refused by name, whatever types they get."""
    kinds = [xpu.i32, xpu.u8, xpu.f32, xpu.types.BOOL, xpu.KernelBuffer[xpu.i32], xpu.Vector[xpu.i8, 16],
             xpu.CooperativeMatrix[xpu.f32, 4, 4, 2], xpu.types.SharedType(xpu.f32)]  # fmt: skip
    turn = itertools.cycle(kinds)
    module = importlib.import_module(name)
    functions = [value for value in vars(module).values() if isinstance(value, types.FunctionType)]
    functions += [f for kind in vars(module).values() if isinstance(kind, type) for f in vars(kind).values()]
    read = 0
    for function in functions:
        if isinstance(function, types.FunctionType) and function.__module__ == name:
            try:
                program = xpu.kernel(function).program
                monkeypatch.setattr(Session, "parameter", staticmethod(lambda *_: next(turn)))
                typed = xpu.kernel(function).program
                monkeypatch.undo()
            except DeclarationError:
                continue
            read += 1
            assert all(refusal.at.line and str(refusal) for refusal in program.refusals + typed.refusals)
    assert read > 5
