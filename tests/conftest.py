"""What holds for every test but those of tests/gpu, which run under a pytest.ini of their own.

Kernels run in Triton's interpreter, on the CPU. It is chosen when triton is first imported, by
whoever is first (transformers is, by way of torch): so here, before any other import.

No card is visible, neither here nor to the clusters that tests start: what they compare with is the
CPU engine, on any machine. NIXL moves pages by sockets, whatever else the machine has.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["UCX_TLS"] = "tcp"
