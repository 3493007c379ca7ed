"""The kernel library: `kohakutpu.kernels:NAME`."""

from .linear import (
    geglu, linear_add, linear_bias, linear_gelu, linear_relu, linear_scale, linear_silu, linear_silu_staged, matmul, swiglu,
)  # fmt: skip
from .rows import group_norm, layernorm, rmsnorm, row_max, row_min, row_sum, softmax

__all__ = [
    "geglu", "group_norm", "layernorm", "linear_add", "linear_bias", "linear_gelu", "linear_relu", "linear_scale",
    "linear_silu", "linear_silu_staged", "matmul", "rmsnorm", "row_max", "row_min", "row_sum", "softmax", "swiglu",
]  # fmt: skip
