"""GPU kernels in Triton. Import the kernels late, when a tensor is on a GPU, because a CPU installation of torch has no
triton.

The modules are `adamw`, `bias_gelu`, `cross_entropy`, `residual_norm` and `short_attention`.
"""
