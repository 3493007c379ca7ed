"""From the calls of a model function to buffers with addresses: byte orders, copies between kernels, one arena.

Kernels are compiled up to addresses (`compiler.prepare`). A tensor that a kernel leaves in one byte order and another reads in
another is copied in between; all buffers of all kernels, with their lives over all stages, are then placed at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kohakutpu.compiler import BufferImage, CompileError, Options
from kohakutpu.compiler import copies as copying
from kohakutpu.compiler import payloads
from kohakutpu.compiler.compile import Compilation
from kohakutpu.compiler.layouts import ChannelBias, ConvEntry, Entry, Flat, Layout, Quantised, Shifted, Tile
from kohakutpu.compiler.layouts import in_rows as in_rows_order
from kohakutpu.compiler.padding import COMPUTED, Dirt
from kohakutpu.compiler.placement import Access, Life, NoRoom, Reach, guard, place
from kohakutpu.compiler.refusals import PAGE
from kohakutpu.compiler.relayout import Shape, covers, padding_rows, read_bytes
from kohakutpu.kernels import in_rows
from kohakutpu.lang.source import KernelError

from .graph import Call, Graph
from .tensors import SessionError, Tensor

if TYPE_CHECKING:
    from .session import Session

ONLY = (
    "vector cores copy into operands' orders and from tiles into rows only, options=Options(relayout='host') lets the host copy"
)
# Orders that instructions need; in any other, elementwise and row work takes what is there.
FIXED = (Entry, Shifted, ConvEntry, ChannelBias)


def pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


def _one_run(image: BufferImage) -> bool:
    """Whether the elements of a flat image lie side by side, whatever the batch."""
    return image.copies == 1 or image.stride == 2 * math.prod(image.layout.shape)


@dataclass
class Slot:
    """A buffer of a plan. `life`: the first and the last stage that touch it, None for one that shares its pages with nobody.

    `role`: 'pinned' and 'constant' stay in memory as long as the session; 'input', 'result', 'copy' and 'temp' belong to
    the plan; 'resident' is another call's result. `cleared`: relies on zeros that the host writes once.
    """

    name: str
    role: str
    image: BufferImage
    tensor: Tensor | None = None
    life: tuple[int, int] | None = None
    cleared: bool = False
    stays: bool = False  # until the plan ends
    placed: bool = False  # has an address already
    loaded: bool = False  # what the host writes once is in memory

    def touch(self, stage: int) -> None:
        first, last = self.life or (stage, stage)
        self.life = min(first, stage), max(last, stage)


@dataclass(frozen=True)
class KernelStep:
    """A call; `slots` by the compiled kernel's own names of its buffers; `stages` counts those of the plan before it."""

    call: Call
    compilation: Compilation
    key: tuple
    slots: Mapping[str, str]
    stages: range


@dataclass(frozen=True)
class CopyStep:
    """A tensor copied into another byte order for `call`: into an operand's by vector cores as `cut` says, into rows by the
    kernel `in_rows` (`compilation`, with `key` and `slots` as a `KernelStep` has them), or by the host."""

    call: Call
    port: str
    source: str
    target: str
    stages: range
    cut: Shape | None = None
    compilation: Compilation | None = None
    key: tuple = ()
    slots: Mapping[str, str] = field(default_factory=dict)
    view: BufferImage | None = None  # of the source, where it is read in another shape


Step = KernelStep | CopyStep


@dataclass
class Placed:
    """A plan before execution: steps, and every slot with its address."""

    steps: list[Step]
    slots: dict[str, Slot]
    accesses: list[Access]
    reach: dict[str, Reach]
    lives: dict[str, Life]
    dirt: Dirt

    def end(self, name: str) -> int:
        """The first byte behind what is touched of a slot."""
        image, reach = self.slots[name].image, self.reach.get(name, Reach())
        return image.address + max(image.bytes, reach.read, reach.written)


class Dirty(SessionError):
    """A copy that is refused for what lies in its source's padding; `copies`, nearest first, are those that may have brought it
    there and could leave out their padding rows."""

    copies: tuple[str, ...] = ()


@dataclass
class Planner:
    """Makes the steps of one graph. Copies named in `clean` keep their padding rows zero, at the price of more runs, and
    of memory that they share with nobody."""

    session: Session
    graph: Graph
    clean: frozenset[str] = frozenset()
    steps: list[Step] = field(default_factory=list)
    slots: dict[str, Slot] = field(default_factory=dict)
    accesses: list[Access] = field(default_factory=list)
    reach: dict[str, Reach] = field(default_factory=dict)
    dirt: Dirt = field(default_factory=Dirt)
    homes: dict[Tensor, Slot] = field(default_factory=dict)  # of what kernels have written
    orders: dict[tuple[Tensor, Layout, int], Slot] = field(default_factory=dict)
    fed: dict[Tensor, list[str]] = field(default_factory=dict)  # copies with dirt in their rows, behind a result, nearest first

    def plan(self) -> Placed:
        for call in self.graph.calls:
            for tensor in call.operands.values():
                tensor.require(call.source)  # the model function may have freed it since
            try:
                self._whole(call) if call.whole else self._call(call)
            except SessionError:
                raise
            except KernelError as error:
                raise SessionError(f"{call.name}: {error.message}", call.source) from error
        for tensor in self.graph.outputs.values():
            self.homes[tensor].stays = True
        return self._placed()

    # ---- calls ----

    def _device(self, call: Call) -> dict[str, Tensor]:
        """Operands that a kernel has written, and so have a byte order."""
        return {port: tensor for port, tensor in call.operands.items() if tensor.root.kind == "result"}

    def _home(self, tensor: Tensor) -> Slot:
        if tensor not in self.homes:
            name = tensor.name if self.session.holds(tensor) else self._fresh(f"{tensor.graph.name}/{tensor.name}")
            self.homes[tensor] = self.slots[name] = Slot(name, "resident", tensor.image, tensor, placed=True)
            self.dirt.add(name, *tensor.dirt)
        return self.homes[tensor]

    def _lies(self, call: Call, port: str, tensor: Tensor, like: BufferImage | None = None) -> Slot:
        """Where an operand that a kernel has written lies, as a slot; a view in batch elements as `like` has them.

        A view's slot is its base's, with an image of its own; out of tiles it is copied first.
        """
        home = self._home(tensor.root)
        if tensor.base is None:
            return home
        if isinstance(home.image.layout, Tile):
            home = self._rows(call, port, tensor.base)
        held = home.image
        element = tensor.shape[-2:] if like is None else like.layout.shape
        layout = Flat(element)
        copies = math.prod(tensor.shape) // math.prod(element)
        image = replace(held, shape=tensor.shape, layout=layout, copies=copies, stride=pages(layout.bytes))
        size = math.prod(held.layout.shape) == math.prod(element)
        if not isinstance(held.layout, Flat) or not (size and held.copies == copies or _one_run(held) and _one_run(image)):
            way = f"lies as {held.layout.key}" if not isinstance(held.layout, Flat) else (
                f"lies in {held.copies} batch elements of {held.layout.bytes} bytes and is read in {copies} of {layout.bytes}, each on "
                f"pages of {PAGE}"
            )  # fmt: skip
            raise SessionError(f"{call.name}: {port}={tensor.name}: {tensor.base.name} {way}: not the same bytes", call.source)
        return replace(home, image=image)

    def _wanted(self, call: Call, shapes: Mapping[str, tuple[int, ...]],
                images: Mapping[str, BufferImage]) -> tuple[dict[str, BufferImage], dict[str, Layout]]:  # fmt: skip
        """By port, for operands that do not lie as the kernel would have them (`images`): the image to copy them into, or the
        order in which it takes them."""
        device = self._device(call)
        copied: dict[str, BufferImage] = {}
        given: dict[str, Layout] = {}
        for port, tensor in device.items():
            wanted = images[port]
            home = self._lies(call, port, tensor, wanted).image
            if isinstance(wanted.layout, Quantised):
                raise SessionError(
                    f"{call.name}: preq: {port}={tensor.name} is computed on the machine; only what the host uploads is quantised",
                    call.source,
                )
            if home.layout != wanted.layout and isinstance(wanted.layout, FIXED):
                copied[port] = wanted
            elif home.layout != wanted.layout:
                given[port] = home.layout
        refusal = self._refusal(call, shapes, given)
        if refusal is None:
            return copied, given
        if call.options.relayout == "host":
            return copied | {port: images[port] for port in given}, {}
        rows = {port: self._rows_of(layout) for port, layout in given.items()}
        if rows != given and self._refusal(call, shapes, rows) is None:
            return copied, rows
        held = ", ".join(f"{port}={device[port].name} lies as {layout.key}" for port, layout in given.items())
        raise SessionError(f"{call.name}: {held}, and that order will not do: {refusal.message}; {ONLY}", call.source) from refusal

    def _refusal(self, call: Call, shapes: Mapping[str, tuple[int, ...]], given: Mapping[str, Layout]) -> CompileError | None:
        """Why a kernel does not take its operands in these orders."""
        try:
            self.session.prepared(call, shapes, given)
        except CompileError as error:
            return error
        return None

    def _call(self, call: Call) -> None:
        shapes = {port: tensor.shape for port, tensor in call.operands.items()}
        probe, _ = self.session.prepared(call, shapes)
        copied, given = self._wanted(call, shapes, probe.images)
        device = self._device(call)
        used: dict[str, Slot] = {}
        for port, tensor in device.items():
            if port in copied:
                used[port] = self._copy(call, port, tensor, copied[port])
            else:
                home = self._lies(call, port, tensor, probe.images[port])
                used[port] = home if given.get(port, home.image.layout) == home.image.layout else self._rows(call, port, tensor)
        dirt = Dirt()
        for port, slot in used.items():
            dirt.add(port, slot.name in self.dirt.rows, self.dirt.columns.get(slot.name))
        try:
            compilation, key = self.session.prepared(call, shapes, given, dirt)
        except CompileError as error:
            raise self._refused(error, call, *device.values()) from error
        for port, tensor in call.operands.items():
            if port not in used:
                used[port] = self._host(tensor, compilation.images[port])
        near = [slot.name for slot in used.values() if slot.role == "copy" and slot.name in self.dirt.rows]
        far = [name for tensor in device.values() for name in self.fed.get(tensor.root, [])]
        self.fed |= dict.fromkeys(call.results.values(), list(dict.fromkeys((*near, *far))))
        self._step(call, compilation, key, used, {port: compilation.images[port] for port in call.results})

    def _whole(self, call: Call) -> None:
        """Work on elements one by one: on images as they lie, whatever their order, padding and all."""
        homes = {port: self._lies(call, port, tensor) for port, tensor in self._device(call).items()}
        shape = next(iter(call.operands.values())).shape
        layout = in_rows_order(shape[-2:])
        order = next((slot.image for slot in homes.values()), None)
        if order is None:
            order = BufferImage("", "in", shape, layout, math.prod(shape[:-2]), pages(layout.bytes), 0)
        by_host = call.options.relayout == "host"
        alike = len({(slot.image.layout, slot.image.copies) for slot in homes.values()}) < 2
        rows = {(self._rows_of(slot.image.layout), slot.image.copies) for slot in homes.values()}
        if not alike and not by_host and len(rows) > 1:
            held = ", ".join(f"{p}={s.tensor.name} lies as {s.image.layout.key}" for p, s in homes.items())
            raise SessionError(f"{call.name}: {held}, and elements are worked on where they lie; {ONLY}", call.source)
        used: dict[str, Slot] = {}
        for port, slot in homes.items():
            if alike or not by_host:
                moves = not alike and isinstance(slot.image.layout, Tile)
                used[port] = self._rows(call, port, call.operands[port]) if moves else slot
                order = used[port].image
            elif (slot.image.layout, slot.image.copies) == (order.layout, order.copies):
                used[port] = slot
            else:
                used[port] = self._copy(call, port, call.operands[port], order)
        for port, tensor in call.operands.items():
            if port not in used:
                used[port] = self._host(tensor, order)
        compilation, key = self.session.prepared(call, {port: (order.bytes // 2,) for port in call.operands})
        self._step(call, compilation, key, used, dict.fromkeys(call.results, order))
        for tensor in call.results.values():
            self.dirt.add(tensor.name, True, COMPUTED)

    def _step(self, call: Call, compilation: Compilation, key: tuple, used: Mapping[str, Slot],
              results: Mapping[str, BufferImage]) -> None:  # fmt: skip
        """Add the call: its operands' slots, new ones for its results, temps and constants."""
        names = {port: slot.name for port, slot in used.items()}
        for port, image in results.items():
            tensor = call.results[port]
            tensor.quiet = port not in compilation.carriers
            slot = Slot(tensor.name, "result", replace(image, name=tensor.name, role="temp", shape=tensor.shape), tensor)
            self.homes[tensor] = self.slots[slot.name] = slot
            names[port] = slot.name
        stages = self._stages(call.name, compilation, names)
        if not call.whole:
            for port, tensor in call.results.items():
                self.dirt.add(tensor.name, port in compilation.dirt.rows, compilation.dirt.columns.get(port))
        self.steps.append(KernelStep(call, compilation, key, names, stages))

    def _stages(self, of: str, compilation: Compilation, names: dict[str, str]) -> range:
        """Add a kernel's stages, with slots for its temps and constants, which `names` gets too."""
        for name, image in compilation.images.items():
            if name in names:
                continue
            if image.role == "constant":
                slot = self.session.constant(image, self._fresh)
                names[name] = slot.name
                self.slots.setdefault(slot.name, slot)
            else:
                names[name] = self._fresh(f"{of}.{name}")
                slot = Slot(names[name], "temp", replace(image, name=names[name]), cleared=name not in compilation.lives)
                self.slots[slot.name] = slot
        first = len(self.accesses)
        for access in compilation.accesses:
            self._access(tuple(names[n] for n in access.reads), tuple(names[n] for n in access.writes))
        for name, reach in compilation.reach.items():
            self._reach(names[name], reach)
        return range(first, len(self.accesses))

    # ---- operands ----

    def _host(self, tensor: Tensor, image: BufferImage) -> Slot:
        """The image of a tensor that the host packs, in the order that a kernel reads."""
        key = tensor, image.layout, image.copies
        if key in self.orders:
            return self.orders[key]
        if tensor.root.kind == "pinned":
            slot = self.session.pinned(tensor, image, self._fresh)
        else:
            own = tensor.name not in self.slots and tensor.base is None
            name = tensor.name if own else self._fresh(f"{tensor.name}@{image.layout.key}")
            slot = Slot(name, "input", replace(image, role="in", shape=tensor.shape), tensor)
            slot.image = replace(slot.image, name=slot.name)
            slot.touch(-1)
        self.orders[key] = self.slots[slot.name] = slot
        return slot

    def _fresh(self, name: str) -> str:
        """The name, or one like it, for a buffer that is no tensor of that name: tensors may be called anything."""
        while name in self.slots or name in self.graph.names or name in self.session.names:
            name += "'"
        return name

    def _copy(self, call: Call, port: str, tensor: Tensor, wanted: BufferImage) -> Slot:
        """A tensor in another order; made once for all that read it so."""
        key = tensor, wanted.layout, wanted.copies
        if key in self.orders:
            return self.orders[key]
        source = self._lies(call, port, tensor, wanted)
        by_host = call.options.relayout == "host"
        cut = None
        name = self._fresh(f"{source.name}@{wanted.layout.key}")
        if not by_host:
            try:
                if isinstance(source.image.layout, Tile) and not tensor.root.quiet:
                    raise payloads.refusal(tensor.name, None)
                cut = self._cut(source.image, wanted.layout, name)
            except CompileError as error:
                if not isinstance(source.image.layout, Tile):
                    raise self._refused(error, call, tensor) from error
                try:
                    rows, _ = self._compiled_rows(call, tensor)
                    self._cut(rows.images["y"], wanted.layout, name)
                except CompileError:
                    raise self._refused(error, call, tensor) from error
                source = self._rows(call, port, tensor)
                cut = self._cut(source.image, wanted.layout, name)
        image = replace(wanted, name=name, role="temp", shape=tensor.shape)
        slot = Slot(name, "copy", image, tensor)
        if cut is not None:
            slot.cleared = not covers(source.image.layout, wanted.layout, cut)
            self._reach(source.name, Reach(read_bytes(source.image, wanted.layout, cut), 0))
            self.dirt.add(name, bool(padding_rows(wanted.layout)) and not cut.clean, None)
        self.orders[key] = self.slots[name] = slot
        first = len(self.accesses)
        self._access((source.name,), (name,))
        view = source.image if tensor.base is not None else None
        self.steps.append(CopyStep(call, port, source.name, name, range(first, first + 1), cut, view=view))
        return slot

    def _cut(self, source: BufferImage, target: Layout, name: str) -> Shape:
        return copying.cut_of(source, target, self.session.machine, self.dirt, name in self.clean)

    @staticmethod
    def _rows_of(layout: Layout) -> Layout:
        """The order that vector cores copy a result into where its own will not do: rows, out of tiles."""
        return in_rows_order(layout.shape) if isinstance(layout, Tile) else layout

    def _compiled_rows(self, call: Call, tensor: Tensor) -> tuple[Compilation, tuple]:
        copy = Call(call.number, in_rows, {"x": tensor}, {}, {}, Options(), call.source)
        return self.session.prepared(copy, {"x": tensor.shape}, {"x": self.homes[tensor].image.layout})

    def _rows(self, call: Call, port: str, tensor: Tensor) -> Slot:
        """A tensor that lies in tiles row by row; made once for all that read it so."""
        source = self.homes[tensor]
        key = tensor, self._rows_of(source.image.layout), source.image.copies
        if key in self.orders:
            return self.orders[key]
        compilation, compiled = self._compiled_rows(call, tensor)
        name = self._fresh(f"{source.name}@{key[1].key}")
        slot = Slot(name, "copy", replace(compilation.images["y"], name=name, role="temp", shape=tensor.shape), tensor)
        self.orders[key] = self.slots[name] = slot
        names = {"x": source.name, "y": name}
        stages = self._stages(name, compilation, names)
        self.steps.append(CopyStep(call, port, source.name, name, stages, None, compilation, compiled, names))
        return slot

    def _refused(self, error: CompileError, call: Call, *tensors: Tensor) -> SessionError:
        refusal = Dirty(f"{call.name}: {error.message}", call.source)
        refusal.copies = tuple(name for tensor in tensors for name in self.fed.get(tensor.root, []))
        return refusal

    # ---- memory ----

    def _access(self, reads: Sequence[str], writes: Sequence[str]) -> None:
        for name in (*reads, *writes):
            self.slots[name].touch(len(self.accesses))
        self.accesses.append(Access(tuple(reads), tuple(writes)))

    def _reach(self, name: str, reach: Reach) -> None:
        held = self.reach.get(name, Reach())
        self.reach[name] = Reach(max(held.read, reach.read), max(held.written, reach.written))

    def _placed(self) -> Placed:
        end = len(self.accesses)
        lives: dict[str, Life] = {}
        for slot in self.slots.values():
            if slot.stays:
                slot.touch(end)
            if slot.role in ("input", "result", "copy", "temp") and not slot.cleared:
                lives[slot.name] = Life(*slot.life)
            else:
                slot.life = None
        here = {name: slot.image for name, slot in self.slots.items() if not slot.placed}
        fixed = [name for name in here if name not in lives]
        shared = sorted(lives, key=lambda name: -here[name].bytes)
        reach = {name: far for name, far in self.reach.items() if name in here}
        try:
            placed = place(
                {name: here[name] for name in (*fixed, *shared)}, self.session.machine.memory.bytes, {}, False, reach, lives,
                self.session.taken(),
            )  # fmt: skip
        except NoRoom as error:
            raise self._full(error, lives) from error
        for name, image in placed.items():
            self.slots[name].image = image
        placed_plan = Placed(self.steps, self.slots, self.accesses, self.reach, lives, self.dirt)
        check(placed_plan)
        return placed_plan

    def _full(self, error: NoRoom, lives: Mapping[str, Life]) -> SessionError:
        sizes = {name: pages(slot.image.bytes) for name, slot in self.slots.items()}
        moments = range(-1, len(self.accesses) + 1)
        most = max(sum(sizes[name] for name, life in lives.items() if life.first <= at <= life.last) for at in moments)
        stays = sum(size for name, size in sizes.items() if name not in lives and not self.slots[name].placed)
        held = sum(end - first for first, end in self.session.taken())
        return SessionError(
            f"{self.graph.name} does not fit: no {error.size} bytes in a row for {error.image.name}. It needs {stays} bytes "
            f"for what stays and at least {most} for what shares; the memory has {self.session.machine.memory.bytes}, of "
            f"which {held} are taken"
        )


def check(plan: Placed) -> None:
    """The alias guard over the whole plan: no stage reads bytes that another buffer was written to since."""
    images = {name: replace(slot.image, role="temp" if name in plan.lives and slot.role != "input" else "in")
              for name, slot in plan.slots.items()}  # fmt: skip
    guard(images, plan.accesses)


def planned(session: Session, graph: Graph) -> Placed:
    """The plan of a graph. Raises SessionError for byte orders that cannot be made and for buffers that do not fit."""
    clean: frozenset[str] = frozenset()
    while True:
        try:
            return Planner(session, graph, clean).plan()
        except Dirty as error:
            session.forget_unplaced()
            left = [name for name in error.copies if name not in clean]
            if not left:
                raise
            clean |= {left[0]}
        except SessionError:
            session.forget_unplaced()
            raise
