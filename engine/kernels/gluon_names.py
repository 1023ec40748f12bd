"""What Gluon calls by other names in other versions of Triton: the newer ones here."""

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

# Of the threads of a group; until 3.6 thread_barrier.
barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
# From a tensor descriptor to shared memory; removed by its older name in 3.9.
async_load = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
# And back.
async_store = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global
