"""The kernel library: `kohakutpu.kernels:NAME`."""

from .attention import attention, flash_attention
from .conv import conv2d, conv2d_bias, conv2d_bias_staged
from .linear import (
    bmm, geglu, linear_add, linear_add_act, linear_bias, linear_bias_act, linear_gate_add, linear_gelu, linear_relu,
    linear_scale, linear_silu, linear_silu_staged, linear_transposed, matmul, swiglu,
)  # fmt: skip
from .mlp import gated_mlp, mlp
from .rows import (
    group_norm, group_norm_silu, in_rows, layernorm, rmsnorm, row_max, row_min, row_stats, row_sum, softmax,
)  # fmt: skip

__all__ = [
    "attention", "bmm", "conv2d", "conv2d_bias", "conv2d_bias_staged", "flash_attention", "gated_mlp", "geglu", "group_norm", "group_norm_silu", "in_rows", "layernorm",
    "linear_add",
    "linear_add_act", "linear_bias", "linear_bias_act", "linear_gate_add", "linear_gelu", "linear_relu",
    "linear_scale", "linear_silu", "linear_silu_staged", "linear_transposed", "matmul", "mlp", "rmsnorm", "row_max",
    "row_min", "row_stats", "row_sum", "softmax", "swiglu",
]  # fmt: skip
