"""XPU kernels: one source, read through `ast` and never run, that means the same on every back end.

    from kohakutpu.xpu import KernelBuffer, f32, kernel, thread, u32

    @kernel
    def saxpy(y: KernelBuffer[f32], x: KernelBuffer[f32], a: f32, n: u32):
        i = thread.global_id_x()
        if i < n:
            y[i] = a * x[i] + y[i]

`tree` holds what a kernel is; `kohakutpu.reference.xpu` runs it. docs/xpu.md is the manual.
"""

from .errors import (
    DeclarationError, HostUse, OverBudget, Refusal, Refused, Source, Undefined, XpuError, XpuLaunchError,
)  # fmt: skip
from .kernel import (
    Backend, Device, FastMath, Instantiate, Kernel, Occupancy, Requires, Unbounded, Unlowered, Wave, define, device,
    kernel, registered_kernels,
)  # fmt: skip
from .launch import RUNTIME, Event, Geometry, KernelStream, lane_block, lane_block_of, row_grid
from .memory import KernelBuffer, Residency
from .names import (
    Image, RayQuery, Sampler, Texture, async_copy, barrier, bits, bits_to_f32, bits_to_f64, break_to, continue_to,
    div, do_while, f32_to_bits, f64_to_bits, group, label, lshr, math, quad, rem, thread, wave, workgroup,
)  # fmt: skip
from .timer import KernelTimer
from .types import (
    BlockPadded, CooperativeMatrix, Function, MemoryOrder, Op, Shared, Swizzled, Use, Vector, WaveVector, bf16, f16,
    f32, f64, i8, i16, i32, i64, u8, u16, u32, u64,
)  # fmt: skip

__all__ = [
    "Backend", "BlockPadded", "CooperativeMatrix", "DeclarationError", "Device", "Event", "FastMath", "Function",
    "Geometry", "HostUse", "Image", "Instantiate", "Kernel", "KernelBuffer", "KernelStream", "KernelTimer",
    "MemoryOrder", "Occupancy", "Op", "OverBudget", "RUNTIME", "RayQuery", "Refusal", "Refused", "Requires",
    "Residency", "Sampler", "Shared", "Source", "Swizzled", "Texture", "Unbounded", "Undefined", "Unlowered", "Use",
    "Vector", "Wave", "WaveVector", "XpuError", "XpuLaunchError", "async_copy", "barrier", "bf16", "bits",
    "bits_to_f32", "bits_to_f64", "break_to", "continue_to", "define", "device", "div", "do_while", "f16", "f32",
    "f32_to_bits", "f64", "f64_to_bits", "group", "i16", "i32", "i64", "i8", "kernel", "label", "lane_block",
    "lane_block_of", "lshr", "math", "quad", "registered_kernels", "rem", "row_grid", "thread", "u16", "u32", "u64",
    "u8", "wave", "workgroup",
]  # fmt: skip

_NOT_HERE = {
    **dict.fromkeys(("Global", "Constant", "Private", "Generic"),
                    "KernelBuffer is global, Shared is the workgroup's, a local is private"),
    **dict.fromkeys(("PushConstant", "KernelArg", "Intrinsic", "Native"), "the plumbing of other back ends"),
    **dict.fromkeys(("Tile", "Access", "Streaming", "BestEffort"), "it never landed"),
    **dict.fromkeys(("DeviceScan", "DeviceSort"), "a draft"),
    "Autotune": "a family lists its members, and measures them",
    "Host": "what is not marked is the host's",
}  # fmt: skip


def __getattr__(word: str):
    raise AttributeError(f"kohakutpu.xpu has no {word}" + (f": {_NOT_HERE[word]}" if word in _NOT_HERE else ""))
