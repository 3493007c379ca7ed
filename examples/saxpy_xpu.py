"""An XPU kernel and its launch, on whatever back end XPU_BACKEND names.

    XPU_RECORD=rec XPU_BACKEND=cpu python examples/saxpy_xpu.py
    kohakutpu xpu conform rec --kernels examples/saxpy_xpu.py
"""

import numpy as np

import kohakutpu.backends.cpu  # noqa: F401 - a back end is there once it is imported
import kohakutpu.backends.ktpu  # noqa: F401
import kohakutpu.reference.xpu  # noqa: F401
from kohakutpu.xpu import KernelBuffer, f32, kernel, thread, u32


@kernel
def saxpy(y: KernelBuffer[f32], x: KernelBuffer[f32], a: f32, n: u32):
    i = thread.global_id_x()
    if i < n:
        y[i] = a * x[i] + y[i]


def main() -> None:
    x, ones = np.arange(100, dtype=np.float32), np.ones(100, np.float32)
    y = KernelBuffer.of(f32, ones)
    saxpy.launch(grid=4, block=32)(y, KernelBuffer.of(f32, x), 2.5, 100)
    print("equal" if (y.download() == np.float32(2.5) * x + ones).all() else "different")


if __name__ == "__main__":
    main()
