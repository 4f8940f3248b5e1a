"""GPU kernels in Triton. Imported only where a tensor is on a GPU: a CPU installation of torch has no triton."""
