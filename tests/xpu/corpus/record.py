"""Record what is committed: a launch of each known kernel on the cpu back end, ragged data, into `recorded/`.

python tests/xpu/corpus/record.py
"""

import os
import shutil
from pathlib import Path

from kohakutpu.backends.cpu import CpuBackEnd
from kohakutpu.conformance.xpu.load import load, module_of
from kohakutpu.xpu import KernelStream
from kohakutpu.xpu.launch import Runtime

HERE = Path(__file__).parent


def main() -> None:
    runtime, data = Runtime(), module_of(HERE / "data.py")
    runtime.register(CpuBackEnd())
    shutil.rmtree(HERE / "recorded", ignore_errors=True)
    os.environ["XPU_RECORD"] = str(HERE / "recorded")
    for kernel in load(str(path) for path in sorted(HERE.glob("known_*.py"))):
        data.launch(kernel, "ragged", KernelStream(runtime))


if __name__ == "__main__":
    main()
