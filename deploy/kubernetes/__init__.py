"""A cluster in Kubernetes: a StatefulSet for each set of hosts, whose pods come and go with the
workers on them.

    controller ── /scale ──▶ StatefulSet ──▶ pods, each with an agent
        ▲                                       │
        └──────── pods' states, agents ─────────┘

A pod is a host. Its number of replicas follows from the seats that are taken, and a seat is free
once its worker is proven dead, which follows its ticket. So no pod goes that has a worker.

What the API server says of a pod is no proof, but for two things: the kubelet's own word that all
containers of a pod that is being deleted have terminated (class B), and the taint
`node.kubernetes.io/out-of-service` (class C), which an operator sets on a node that is off.
"""
