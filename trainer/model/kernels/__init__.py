"""GPU kernels in Triton. Imported late, where a tensor is on a GPU: a CPU installation of torch has no triton.

`adamw`, `bias_gelu`, `cross_entropy`, `residual_norm` and `short_attention`.
"""
