"""A whole cluster as a frozen value: its hosts, its pools, and its processes' specs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from twolane.deploy.spec.settings import (
    LAUNCHER,
    RouterSettings,
    ScalerSettings,
    TimingSpec,
    WorkerSettings,
)
from twolane.deploy.spec.specs import ModelSpec, RouterSpec, WorkerSpec, new_epoch
from twolane.rpc.listen import is_loopback
from twolane.rpc.secret import new_secret
from twolane.security.credentials import Credentials
from twolane.security.tls import TlsFiles

_STEP = 10  # from a router's own ports to those of the next one on its host


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeIn:
    """A host that comes when a worker has a seat on it, and goes when none has: number `number` of
    the set `set_name`, for workers of `pools`. In a set that `is_ordered`, the highest number goes
    first. `is_pod`: another boot of it proves nothing of what ran there, see
    `twolane.deploy.kubernetes`."""

    set_name: str
    number: int
    pools: tuple[str, ...]
    is_ordered: bool = False
    is_pod: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    """A host that runs our agent at `agent`, host:port. Its processes listen at `bind_host`; others
    dial them at `advertise_host`.

    `gpus`: the GPUs to use, as CUDA_VISIBLE_DEVICES names them there; None: all that the agent
    offers. `seats`: how many workers it takes if they compute on the CPU; None: an equal share.
    `fence_command` switches the host off: a shell on the controller's machine runs it, and exit
    code 0 means that the host is off. `routers`: how many run there; None: if no host says how
    many, the first host has all of the cluster's, else none. `made`: it is not always there,
    and has no addresses before it is.
    """

    name: str
    agent: str
    bind_host: str
    advertise_host: str
    gpus: tuple[str, ...] | None = None
    seats: int | None = None
    fence_command: str = ""
    routers: int | None = None
    made: MadeIn | None = None


@dataclass(frozen=True, slots=True)
class Resource:
    """So much of it, as Ray counts."""

    name: str
    amount: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSetSpec:
    """Hosts that are alike and come and go with the workers of `pools`, at most `most` of them. On
    Ray, a node that has `resources` is one of them; in Kubernetes, a pod of the StatefulSet called
    `name`."""

    name: str
    pools: tuple[str, ...]
    most: int
    gpus: int = 0  # of each host
    seats: int = 1  # of each host, for workers that compute on the CPU
    resources: tuple[Resource, ...] = ()
    is_pods: bool = False

    def hosts(self) -> list[HostSpec]:
        return [
            HostSpec(
                name=f"{self.name}-{i}",
                agent="",
                bind_host="",
                advertise_host="",
                gpus=tuple(map(str, range(self.gpus))),
                seats=self.seats,
                made=MadeIn(
                    set_name=self.name,
                    number=i,
                    pools=self.pools,
                    is_ordered=self.is_pods,
                    is_pod=self.is_pods,
                ),
            )
            for i in range(self.most)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSpec:
    """Workers with equal options, called `<name>-0`, `<name>-1`, …

    `devices`: the GPUs of each worker (`twolane.deploy.spec.devices`); empty: each sees the GPUs
    that its launcher sees. Their metrics are at `settings.worker_metrics_port` and the ports that
    follow; 0: any free ports. `host_names`: the host of each worker; empty: this machine.
    """

    name: str
    roles: tuple[str, ...]
    model: ModelSpec
    n_workers: int = 1
    settings: WorkerSettings = field(default_factory=WorkerSettings)
    devices: tuple[tuple[str, ...], ...] = ()
    host_names: tuple[str, ...] = ()
    flips: bool = False

    @property
    def gpus(self) -> list[tuple[str, str]]:
        """Host and GPU of each rank: hosts may call their GPUs alike."""
        hosts = self.host_names or ("",) * len(self.devices)
        return [(host, gpu) for host, its in zip(hosts, self.devices, strict=True) for gpu in its]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """Routers and pools of workers. `bind_host`, `advertise_host` and `ports` hold for every
    process, see `WorkerSpec`. With `hosts`, each host has its own addresses. `seats` holds for
    hosts that do not say themselves how many workers they take if these compute on the CPU."""

    model: ModelSpec  # as the router sees it: its name, and where its tokenizer is
    pools: tuple[PoolSpec, ...]
    settings: RouterSettings = field(default_factory=RouterSettings)
    admin_socket: str = ""
    bind_host: str = "127.0.0.1"
    advertise_host: str = ""
    ports: str = ""
    log_level: str = "info"
    timing: TimingSpec = field(default_factory=TimingSpec)
    secret: str = field(default_factory=new_secret, repr=False, compare=False)
    tls: TlsFiles | None = None  # the paths may contain {name}: see `tls_of`
    insecure: bool = False
    hosts: tuple[HostSpec, ...] = ()
    host_sets: tuple[HostSetSpec, ...] = ()
    seats: int | None = None
    scaler: ScalerSettings = field(default_factory=ScalerSettings)

    def tls_of(self, name: str) -> TlsFiles | None:
        """The TLS files of the process with that name."""
        return None if self.tls is None else self.tls.of(name)

    @property
    def credentials(self) -> Credentials:
        """The launcher's own credentials."""
        return Credentials(secret=self.secret, tls=self.tls_of(LAUNCHER), insecure=self.insecure)

    @property
    def n_workers(self) -> int:
        return sum(pool.n_workers for pool in self.pools)

    @property
    def devices(self) -> list[str]:
        """The GPUs of all workers. A GPU that several workers share occurs more than once."""
        return [gpu for pool in self.pools for devices in pool.devices for gpu in devices]

    def routers(self) -> list[RouterSpec]:
        """Every router, as router-0, router-1, …: those of a host side by side. Of those that share
        ports, all but a host's first may have to be told which (`beside`)."""
        found: list[RouterSpec] = []
        for host_name, n in self._routers_by_host():
            for i in range(n):
                router = self.router(f"router-{len(found)}", host_name)
                found.append(replace(_nth(router, i), shares_ports=n > 1))
        return found

    def _routers_by_host(self) -> list[tuple[str, int]]:
        if not self.hosts:
            return [("", self.settings.processes)]
        if all(host.routers is None for host in self.hosts):
            return [(self.hosts[0].name, self.settings.processes)]
        return [(host.name, host.routers or 0) for host in self.hosts]

    def router(self, router_id: str = "router-0", host_name: str = "") -> RouterSpec:
        """The only one, or that of `host_name`."""
        place = self._place(host_name or (self.hosts[0].name if self.hosts else ""))
        return RouterSpec(
            router_id=router_id,
            model=self.model,
            settings=self.settings,
            admin_socket=self.admin_socket,
            bind_host=place.bind_host,
            advertise_host=place.advertise_host,
            ports=self.ports,
            log_level=self.log_level,
            timing=self.timing,
            secret=self.secret,
            host_name=place.name,
            tls=self.tls_of(router_id),
            insecure=self.insecure,
        )

    def workers(self, *worker_endpoints: str) -> list[WorkerSpec]:
        """The specs of all workers, each with a new epoch. They announce themselves to
        `worker_endpoints`, host:port of each router."""
        return [
            self.worker(
                pool.name,
                i,
                worker_endpoints,
                host_name=pool.host_names[i] if pool.host_names else "",
                devices=pool.devices[i] if pool.devices else (),
            )
            for pool in self.pools
            for i in range(pool.n_workers)
        ]

    def worker(
        self,
        pool_name: str,
        i: int,
        routers: Sequence[str],
        *,
        host_name: str,
        devices: Sequence[str],
        name: str = "",
        roles: tuple[str, ...] = (),
        model_dir: str = "",
        fingerprint: str = "",
    ) -> WorkerSpec:
        """The next incarnation of that pool's worker number `i`, at any seat. `name`: of one that
        came from another pool. `roles`, `model_dir`: others than the pool's; `fingerprint`: of the
        files in `model_dir`, where it is known."""
        (pool,) = (pool for pool in self.pools if pool.name == pool_name)
        place = self._place(host_name)
        is_inside = place.made is None and is_loopback(place.bind_host)
        return WorkerSpec(
            worker_id=(name := name or f"{pool.name}-{i}"),
            epoch=new_epoch(),
            roles=roles or pool.roles,
            flips=pool.flips,
            model=pool.model.at(model_dir) if model_dir else pool.model,
            fingerprint=fingerprint,
            routers=tuple(routers),
            settings=pool.settings,
            secret=self.secret,
            pool=pool.name,
            bind_host=place.bind_host,
            advertise_host=place.advertise_host,
            ports=self.ports,
            metrics_host=self.settings.host if is_inside else "",
            metrics_port=self._metrics_port(name),
            log_level=self.log_level,
            timing=self.timing,
            devices=tuple(devices),
            tls=self.tls_of(name),
            insecure=self.insecure,
            host_name=place.name,
        )

    def _metrics_port(self, name: str) -> int:
        """Of the worker of that name, whose pool it may have left; 0: any."""
        title, _, number = name.rpartition("-")
        own = next((pool for pool in self.pools if pool.name == title), None)
        port = own.settings.worker_metrics_port if own is not None else 0
        return port + int(number) if port else 0

    def _place(self, host_name: str) -> HostSpec:
        """The host of that name; without hosts, this machine, which needs no name."""
        for host in self.hosts:
            if host.name == host_name:
                return host
        return HostSpec(
            name="", agent="", bind_host=self.bind_host, advertise_host=self.advertise_host
        )


def _nth(router: RouterSpec, i: int) -> RouterSpec:
    """Of several on one host: what each has of its own, beside its name."""
    if not i:
        return router
    its = router.settings
    settings = replace(
        its,
        worker_port=its.worker_port and its.worker_port + _STEP * i,
        metrics_port=its.metrics_port and its.metrics_port + _STEP * i,
        admin_port=its.admin_port and its.admin_port + _STEP * i,
    )
    socket = router.admin_socket and f"{router.admin_socket}.{i}"
    return replace(router, settings=settings, admin_socket=socket)


def beside(router: RouterSpec, port: int, http_port: int | None) -> RouterSpec:
    """The same at the ports where the first one of its host is."""
    its = router.settings
    http_port = None if its.no_http else http_port
    return replace(router, settings=replace(its, port=port, http_port=http_port))
