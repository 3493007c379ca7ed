"""Number formats of the machine, exact on bit patterns in integer arithmetic. See `docs/formats.md`.

`fp16`, `fp32` the edges; `mxfp7` matmul operands; `accumulator` the cluster's resident float; `e8m15` the vector
core's word, `alu`, `seeds` and `reduction` its arithmetic; `words` wide words as ints, arrays and bytes.
"""
