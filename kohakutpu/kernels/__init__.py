"""The kernel library: `kohakutpu.kernels:NAME`."""

from .linear import (
    geglu, linear_add, linear_bias, linear_gelu, linear_relu, linear_scale, linear_silu, linear_silu_staged, matmul, swiglu,
)  # fmt: skip

__all__ = [
    "geglu", "linear_add", "linear_bias", "linear_gelu", "linear_relu", "linear_scale", "linear_silu",
    "linear_silu_staged", "matmul", "swiglu",
]  # fmt: skip
