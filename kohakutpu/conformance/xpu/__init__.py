"""XPU conformance: recorded launches judged by the reference interpreter (spec/xpu.md 3), and the census of kernels."""
