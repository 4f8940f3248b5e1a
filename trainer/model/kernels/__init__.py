"""GPU kernels in Triton: `adamw`, `bias_gelu`, `cross_entropy`, `residual_norm` and `short_attention`.

Import the kernels only when a tensor is on a GPU, because a CPU installation of torch has no triton.
"""
