"""The engine on a GPU: Triton kernels, cuBLAS products, CUDA graphs. Imported only when needed.

Everything takes a `torch.device`; tests run the same code on `cpu`, in Triton's interpreter.
"""
