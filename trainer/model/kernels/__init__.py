"""GPU kernels in Triton. Import them late, for tensors on a GPU: a CPU installation of torch has no triton.

The modules are `adamw`, `bias_gelu`, `cross_entropy`, `residual_norm` and `short_attention`.
"""
