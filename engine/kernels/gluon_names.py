"""Gluon functions whose names differ between versions of Triton, under their newer names."""

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

# Synchronises the threads of a group; thread_barrier until 3.6.
barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
# Copies from a tensor descriptor to shared memory; the older name was removed in 3.9.
async_load = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
# Copies back.
async_store = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global
