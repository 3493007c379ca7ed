"""Random kernels: mixed types and signs, shifts, loops, branches, vectors, Shared memory, barriers and waves.

Most have a meaning; some are refused or undefined, and must be so on every path alike.
"""

from __future__ import annotations

from random import Random

import numpy as np

from kohakutpu.xpu.types import SCALARS

INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
FLOATS = ("f16", "bf16", "f32", "f64")
PARAMETERS = {
    "a": "i8", "b": "u8", "c": "i16", "d": "u32", "e": "i32", "f": "i64", "g": "u64", "p": "f32", "q": "f16",
    "r": "bf16", "s": "f64",
}  # fmt: skip
# How often an operand is kept from undefined behaviour.
SAFE = {word: [word] * 15 + [""] for word in (" | 1", " & 7")}
WIDTH = 4
BLOCK = 8
COUNT = 32


class Generator:
    """Builds one kernel's text. `locals` are the names in scope with what they are: "int", "float" or "vector"."""

    def __init__(self, random: Random):
        self.random = random
        self.locals = {name: "float" if kind in FLOATS else "int" for name, kind in PARAMETERS.items()}
        self.fresh = 0

    def name(self) -> str:
        self.fresh += 1
        return f"t{self.fresh}"

    def pick(self, what: str) -> str:
        names = [name for name, kind in self.locals.items() if kind == what]
        return self.random.choice(names)

    def integer(self, depth: int) -> str:
        """An integer expression."""
        choice = self.random.randrange(13 if depth else 3)
        left, right = (self.integer(depth - 1), self.integer(depth - 1)) if depth else ("", "")
        match choice:
            case 0:
                return str(self.random.choice([0, 1, 2, 3, 7, 31, 100, 255, 256, 70000, 1 << 31, 1 << 40]))
            case 1 | 2:
                return self.pick("int")
            case 3 | 4:
                return f"({left} {self.random.choice('+-*&|^')} {right})"
            case 5:
                return f"{self.random.choice(['div', 'rem'])}({left}, {right}{self.random.choice(SAFE[' | 1'])})"
            case 6:
                return f"({left} {self.random.choice(['<<', '>>'])} ({right}{self.random.choice(SAFE[' & 7'])}))"
            case 7:
                return f"lshr({left}, u8({right} & 7))"
            case 8:
                return f"{self.random.choice(INTEGERS)}({left})"
            case 9:
                return f"{self.random.choice(['-', '~'])}({left})"
            case 10:
                return f"(i32({left}) if {self.condition(depth - 1)} else i32({right}))"
            case 11:
                return f"i32(math.min(math.max(f64({self.floating(depth - 1)}), f64(-1e9)), f64(1e9)))"
            case _:
                kind = self.random.choice(INTEGERS)
                return f"math.{self.random.choice(['min', 'max'])}({kind}({left}), {kind}({right}))"

    def floating(self, depth: int) -> str:
        """A float expression."""
        choice = self.random.randrange(9 if depth else 2)
        left, right = (self.floating(depth - 1), self.floating(depth - 1)) if depth else ("", "")
        match choice:
            case 0:
                return f"{self.random.choice(FLOATS)}({self.random.choice(['0.1', '-2.5', '3.0', '1e9'])})"
            case 1:
                return self.pick("float")
            case 2 | 3 | 4:
                return f"({left} {self.random.choice('+-*/')} {right})"
            case 5:
                return f"{self.random.choice(FLOATS)}({self.integer(depth - 1)})"
            case 6:
                return f"math.{self.random.choice(['abs', 'sqrt', 'floor', 'exp', 'sin', 'round'])}({left})"
            case 7:
                return f"rem({left}, {right})"
            case _:
                return f"(f32({left}) if {self.condition(depth - 1)} else f32({right}))"

    def condition(self, depth: int) -> str:
        """A bool expression."""
        make = self.random.choice([self.integer, self.floating])
        test = f"{make(max(depth, 0))} {self.random.choice(['<', '<=', '>', '>=', '==', '!='])} {make(max(depth, 0))}"
        if depth > 0 and self.random.random() < 0.3:
            return f"({test} {self.random.choice(['and', 'or'])} {self.condition(depth - 1)})"
        return f"(not {test})" if self.random.random() < 0.1 else f"({test})"

    def block(self, depth: int, length: int, inside: bool) -> list[str]:
        """Some statements."""
        kept = dict(self.locals)
        lines = []
        for _ in range(length):
            lines += self.statement(depth, inside)
        self.locals = kept
        return ["    " + line for line in lines] or ["    pass"]

    def statement(self, depth: int, inside: bool) -> list[str]:
        choice = self.random.randrange(10 if depth else 4)
        kind, make = self.random.choice([("int", self.integer), ("float", self.floating)])
        match choice:
            case 0 | 1:
                name, value = self.name(), make(2)
                self.locals[name] = kind
                return [f"{name} = {value}"]
            case 2:
                return [f"{self.pick(kind)} = {make(2)}"]
            case 3:
                return [f"{self.pick('int')} {self.random.choice(['+=', '-=', '*=', '|=', '^='])} {self.integer(2)}"]
            case 4 | 5:
                lines = [f"if {self.condition(1)}:", *self.block(depth - 1, 2, inside)]
                return lines + (["else:", *self.block(depth - 1, 2, inside)] if self.random.random() < 0.5 else [])
            case 6:
                name = self.name()
                body = self.block(depth - 1, 2, True)
                body += ["    " + line for line in self.way_out()]
                return [f"for {name} in range(({self.integer(1)}) & 3):", *body]
            case 7:
                name = self.name()
                return [f"{name} = 0", f"while {name} < 3 and {self.condition(1)}:", f"    {name} += 1",
                        *self.block(depth - 1, 2, True)]  # fmt: skip
            case 8:
                name, lanes = self.name(), self.name()
                kind = self.random.choice(INTEGERS)
                return [f"{lanes} = data.vload[4]({self.integer(1)} & 15)", f"{name} = Vector[{kind}, 4]({lanes})",
                        f"{name} = {name} {self.random.choice('+-*&|^')} {self.integer(1)}",
                        f"{self.pick('int')} = {name}[i32({self.integer(1)}) & 3]"]  # fmt: skip
            case _:
                name = self.name()
                self.locals[name] = "int"
                return [f"{name} = data[{self.integer(1)} & 15]"]

    def way_out(self) -> list[str]:
        word = self.random.choice(["break", "continue", "pass", "return"])
        return [f"if {self.condition(1)}:", f"    {word}"] if self.random.random() < 0.4 else []

    def meeting(self) -> list[str]:
        """Work-items meet: through Shared memory and barriers, or in their waves."""
        name = self.name()
        kept = self.random.randrange(5)
        lines = {
            0: ["share[t] = i32(e)", "barrier.workgroup()", f"{name} = share[(t + 3) & {BLOCK - 1}]",
                "barrier.workgroup()"],
            1: [f"{name} = wave.reduce_sum(u32(d))"],
            2: [f"{name} = wave.shuffle_xor_sync(u32(d), 1)"],
            3: [f"{name} = workgroup.reduce(Op.ADD, i32(e))"],
            4: [f"{name} = wave.ballot_sync(e > 0)"],
        }[kept]  # fmt: skip
        self.locals[name] = "int"
        return lines

    def kernel(self) -> str:
        """The text of kernel k; its parameters are out, real, data and the scalars of PARAMETERS."""
        meets = self.random.random() < 0.4
        body = ["t = thread.x()", "i = thread.global_id_x()", "d += i", "e -= i32(t)"]
        self.locals |= {"t": "other", "i": "other"}
        if meets:
            body.append(f"share = Shared[i32]({BLOCK})")
        for _ in range(self.random.randrange(2, 5)):
            body += self.statement(2, False)
            if meets and self.random.random() < 0.6:
                body += self.meeting()
        body += [f"out[i] = i64({self.integer(2)})", f"real[i] = f64({self.floating(2)})"]
        scalars = ", ".join(f"{name}: {kind}" for name, kind in PARAMETERS.items())
        head = f"@kernel\ndef k(out: KernelBuffer[i64], real: KernelBuffer[f64], data: KernelBuffer[i16], {scalars}):\n"
        return head + "\n".join("    " + line for line in body) + "\n"


def arguments(random: Random) -> list:
    """Arguments of a generated kernel."""
    scalars = []
    for kind in map(SCALARS.get, PARAMETERS.values()):
        if kind.kind == "int":
            scalars.append(random.choice([kind.low, kind.high, 0, 1, 3, random.randint(kind.low, kind.high)]))
        else:
            scalars.append(random.choice([0.0, -0.0, 1.5, -3.25, 1e-6, 1e4, float("inf"), float("nan")]))
    data = np.array([random.randint(-(1 << 15), (1 << 15) - 1) for _ in range(32)], np.int16)
    return [np.zeros(COUNT, np.int64), np.zeros(COUNT), data, *scalars]
