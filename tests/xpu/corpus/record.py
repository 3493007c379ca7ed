"""Record what is committed into `recorded/`: each known kernel on `cpu`, some kernels of the machine on `ktpu`.

python tests/xpu/corpus/record.py
"""

import os
import shutil
from pathlib import Path

from kohakutpu.backends.cpu import CpuBackEnd
from kohakutpu.backends.ktpu import KtpuBackEnd
from kohakutpu.conformance.xpu.load import load, module_of
from kohakutpu.xpu import KernelStream
from kohakutpu.xpu.launch import Runtime

HERE = Path(__file__).parent
MACHINE = ("add", "div", "chain", "half_operators", "wave_sum", "workgroup_sum", "softmax", "rmsnorm", "silu", "gemm")


def main() -> None:
    data = module_of(HERE / "data.py")
    shutil.rmtree(HERE / "recorded", ignore_errors=True)
    os.environ["XPU_RECORD"] = str(HERE / "recorded")
    known = load(str(path) for path in sorted(HERE.glob("known_*.py")))
    blocks = {kernel.name: kernel for kernel in load([str(HERE / "blocks_machine.py")])}
    for backend, kernels in ((CpuBackEnd(), known), (KtpuBackEnd(), [blocks[f"machine_{name}"] for name in MACHINE])):
        runtime = Runtime()
        runtime.register(backend)
        for kernel in kernels:
            data.launch(kernel, "ragged", KernelStream(runtime), oracle=backend.name == "cpu")


if __name__ == "__main__":
    main()
