"""Merges the status reports of several routers into the status of the cluster."""

from __future__ import annotations

from twolane.v1 import cluster_pb2, worker_pb2


def router_status(
    address: worker_pb2.RouterAddress, status: cluster_pb2.GetClusterStatusResponse
) -> cluster_pb2.RouterStatus:
    """The part of a router's status that is shown per router, not summed."""
    return cluster_pb2.RouterStatus(
        address=address,
        uptime_s=status.uptime_s,
        requests=sum(status.requests_by_state.values()),
        metrics_endpoint=status.metrics_endpoint,
    )


def add_status(
    whole: cluster_pb2.GetClusterStatusResponse, part: cluster_pb2.GetClusterStatusResponse
) -> None:
    """Add another router's `part`. Requests and counters are added; workers are the same ones, and
    each router knows only the load that it has assigned to them."""
    whole.requests.extend(part.requests)
    for state, n in part.requests_by_state.items():
        whole.requests_by_state[state] += n
    for name, n in part.counters.items():
        whole.counters[name] += n
    known = {worker.worker.epoch: worker for worker in whole.workers}
    for worker in part.workers:
        if worker.worker.epoch in known:
            known[worker.worker.epoch].requests += worker.requests
        else:
            whole.workers.append(worker)
    tenants = {tenant.tenant: tenant for tenant in whole.tenants}
    for tenant in part.tenants:
        mine = tenants.get(tenant.tenant)
        if mine is None:
            whole.tenants.append(tenant)
            continue
        for field in ("live", "requests", "refused", "prompt_tokens", "output_tokens"):
            setattr(mine, field, getattr(mine, field) + getattr(tenant, field))
    insecure = [line for line in part.insecure_listeners if line not in whole.insecure_listeners]
    whole.insecure_listeners.extend(insecure)
