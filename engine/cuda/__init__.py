"""The engine on a GPU: Triton kernels, cuBLAS products, CUDA graphs. Imported only where asked for.

Everything takes a `torch.device`; on `cpu`, in Triton's interpreter, the same code runs in tests.
"""
