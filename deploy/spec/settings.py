"""Options of a cluster and of its processes, each declared once.

See `twolane.deploy.spec.declared_options`.
"""

from __future__ import annotations

from dataclasses import dataclass

from twolane.kvtransfer.page_lane import PageLane
from twolane.kvtransfer.transport_names import TRANSPORTS
from twolane.options import option
from twolane.router.shared.address import parse_address
from twolane.rpc.listen import MAX_PORT, is_unspecified, port_range

MAX_SOCKETS = 64  # from a sender to a receiver
MOST_WORKERS = 10_000  # of a pool
_MOST_TIMEOUT_S = 3600.0
_HTTP_ABOVE = 2  # between them, workers come in where a router is started alone
PREFILL, DECODE = "prefill", "decode"
AUTO, NONE = "auto", "none"  # which generation_config.json: the model's, none
LAUNCHER = "controller"  # {name} in the paths of its TLS files
BUNDLED = "bundled"  # the model that comes with us


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Options of a whole cluster."""

    model: str = option(BUNDLED, "What to serve.", metavar="DIR_OR_HUB_ID")
    launcher: str = option("ray", "", choices=("ray", "process", "agents", "kubernetes"))
    seats: int | None = option(
        None,
        "Most workers on each host that compute on the CPU.  [default: as many as are asked for, "
        "or one for each core of this machine]",
        least=1,
    )
    share_gpus: bool = option(False, "Several workers on a GPU, where there is not one for each.")
    log_level: str = option("info", "", choices=("debug", "info", "warning", "error"), is_live=True)
    tls_ca: str = option("", "PEM file of the authorities to trust.", metavar="FILE")
    tls_cert: str = option(
        "",
        "PEM file of a process's certificate; {name} in the path is the process's name.",
        metavar="FILE",
    )
    tls_key: str = option("", "PEM file of that certificate's key.", metavar="FILE")
    insecure: bool = option(
        False, "Allow listeners that other machines reach without TLS: the network must be private."
    )
    bind_host: str = option(
        "127.0.0.1", "Where routers and workers listen for each other, on each host."
    )
    advertise_host: str = option(
        "", "The address of this host that others dial.  [default: that of --bind-host]"
    )
    ports: str = option(
        "",
        "Ports that each host gives to whatever has none of its own.  [default: any]",
        metavar="FIRST-LAST",
    )

    def __post_init__(self) -> None:
        if self.ports:
            port_range(self.ports)
        if is_unspecified(self.advertise_host):
            raise ValueError(f"advertise_host is {self.advertise_host}, which others cannot dial")


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySettings:
    """Which Ray has the cluster, where the launcher is Ray."""

    address: str = option(
        "local",
        "The Ray that runs already, from one of its nodes; auto: the one that is here; local: "
        "one of our own on this machine.",
        flag="--ray-address",
        metavar="auto|HOST:PORT|local",
    )
    cluster: str = option("default", "The cluster's name on that Ray, which may have several.")
    fence_command: str = option(
        "",
        "Switches a silent host off; exit code 0 means that it is off. A shell on the controller's "
        "host runs it, with the other host's name in TWOLANE_HOST.",
        metavar="COMMAND",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerSettings:
    """Whether and how pools size themselves. Raises ValueError for bounds that contradict each
    other."""

    autoscale: bool = option(
        False, "Let the cluster size its prefill and its decode pool, by what comes."
    )
    budget: int | None = option(
        None,
        "With --autoscale: most GPUs of all workers together; on CPUs most workers.  [default: all "
        "there are]",
        least=1,
        is_live=True,
    )
    min_prefill: int = option(
        1, "With --autoscale: fewest prefill workers; 0 is for both.", least=0, is_live=True
    )
    max_prefill: int = option(
        1024, "With --autoscale: most prefill workers.", least=1, is_live=True
    )
    min_decode: int = option(
        1, "With --autoscale: fewest decode workers; 0 is for both.", least=0, is_live=True
    )
    max_decode: int = option(1024, "With --autoscale: most decode workers.", least=1, is_live=True)
    flips: bool | None = option(
        None,
        "Make workers ready for both roles at their start, so that they can change theirs while "
        "they run.  [default: with --autoscale]",
    )
    slo_ttft_s: float = option(
        0.5, "With --autoscale: time to the first token to hold.", above=0, is_live=True
    )
    slo_gap_s: float = option(
        0.02, "With --autoscale: gap between tokens to hold.", above=0, is_live=True
    )
    idle_s: float = option(
        900.0,
        "With --autoscale: time without a request after which pools go to zero.",
        above=0,
        is_live=True,
    )
    hardware: str | None = option(
        None,
        "With --autoscale: whose measured figures to begin with, by name or file.  [default: "
        "h200 on GPUs]",
        metavar="NAME_OR_FILE",
    )

    def __post_init__(self) -> None:
        for role in ("prefill", "decode"):
            least, most = getattr(self, f"min_{role}"), getattr(self, f"max_{role}")
            if least > most:
                raise ValueError(f"min_{role} is {least}, more than max_{role}, which is {most}")
        if (self.min_prefill == 0) != (self.min_decode == 0):
            raise ValueError(
                f"min_prefill is {self.min_prefill} and min_decode {self.min_decode}: only both "
                "pools together may go to zero"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingSpec:
    """Timeouts of failure detection (tests shorten them) and of a clean stop. Raises ValueError for
    timeouts so short that living processes would be taken for dead."""

    heartbeat_s: float = option(
        1.0, "How often everybody shows signs of life.", above=0, most=_MOST_TIMEOUT_S
    )
    suspicion_s: float = option(
        3.0,
        "Silence after which requests go elsewhere.",
        above=0,
        most=_MOST_TIMEOUT_S,
        is_live=True,
    )
    lease_s: float = option(
        6.0, "How long pages are held for a silent peer.", above=0, most=_MOST_TIMEOUT_S
    )
    grace_s: float = option(
        10.0, "How long answers outlive a lost router.", above=0, most=_MOST_TIMEOUT_S
    )
    stop_grace_s: float = option(5.0, "How long running answers get at a stop.", above=0)
    orphan_s: float = option(
        60.0, "Silence of agent and routers after which a worker ends itself.", above=0
    )

    def __post_init__(self) -> None:
        for name in ("suspicion_s", "lease_s"):
            if getattr(self, name) <= self.heartbeat_s:
                raise ValueError(
                    f"{name} is {getattr(self, name):g}; it must be more than heartbeat_s, "
                    f"which is {self.heartbeat_s:g}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Options of a worker apart from those of its engine. None keeps the default of the component
    that the option configures. `checksums`, `sockets` and `page_lane` are explained in
    `twolane.kvtransfer.transports.registry`."""

    step_tokens: int | None = option(
        None, "Most tokens of a step; longer prompts are split.", least=1
    )
    decode_rows: int | None = option(None, "Most answers that one worker decodes.", least=1)
    prefill_window_s: float | None = option(
        None,
        "The longest that a prompt of a burst waits for others, so that steps are fuller.  "
        "[default: 0]",
        least=0,
    )
    prefill_learns_window: bool = option(
        False,
        "Learn from steps and arrivals how long prompts wait for others: for engines whose steps "
        "cost much without any token.",
    )
    prefill_watermark_rows: int | None = option(
        None, "With --prefill-window-s, more waiting prompts than so many are a burst.", least=0
    )
    holding_cap_share: float | None = option(
        None,
        "Share of a pool that may wait for decode workers before prefills stop.",
        above=0,
        most=1,
    )
    transports: tuple[str, ...] = option(
        TRANSPORTS,
        "How pages travel; may be repeated, best first.  [default: the best that works]",
        choices=TRANSPORTS,
        flag="--transport",
    )
    checksums: bool | None = option(
        None,
        "Compare a checksum of each page on both sides. Over networks (nixl, tcp) always: "
        "--no-checksums is for a --transport of one host.  [default: all but cuda_ipc]",
    )
    sockets: int | None = option(
        None,
        "Sockets from each sender to each receiver, for unix and tcp.  [default: 1, or 4 where "
        "pages are encrypted]",
        least=1,
        most=MAX_SOCKETS,
    )
    page_lane: str | None = option(
        None,
        "What protects pages over tcp: encryption, or a key that each connection proves (for "
        "private networks).  [default: encrypted; plain on the loopback]",
        choices=tuple(lane.value for lane in PageLane),
    )
    trusted_fabric: bool = option(
        False, "Nobody else is on the RDMA network: nixl may carry pages between hosts."
    )
    worker_metrics_port: int = option(
        0,
        "Port of the first worker's metrics; the others take the next ports.  [default: any]",
        least=0,
        most=MAX_PORT,
    )
    worker_metrics_ports: str = option(
        "",
        "Ports that each host gives to its workers' metrics, if they have none of their own.  "
        "[default: --ports]",
        metavar="FIRST-LAST",
    )

    def __post_init__(self) -> None:
        if self.worker_metrics_ports:
            port_range(self.worker_metrics_ports, "worker_metrics_ports")
        if self.prefill_learns_window and self.prefill_window_s is not None:
            raise ValueError(
                "prefill_window_s says how long prompts wait, prefill_learns_window that it is "
                "learnt: give one"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    """Options of a router: its listeners for clients and for workers, its limits, and the defaults
    of requests. Port 0 is any free port. None keeps the default of the component that the option
    configures."""

    host: str = option("127.0.0.1", "Where clients connect.")
    port: int = option(7200, "", least=0, most=MAX_PORT)
    worker_port: int = option(
        0, "Port where workers connect.  [default: any]", least=0, most=MAX_PORT
    )
    metrics_port: int = option(
        0, "Port of the router's metrics.  [default: any]", least=0, most=MAX_PORT
    )
    admin_port: int | None = option(
        None,
        "Port for operators and viewers, at --bind-host, by their certificates.  [default: none; "
        "a socket of this machine]",
        least=0,
        most=MAX_PORT,
    )
    http_port: int | None = option(
        None,
        "Port of the OpenAI-style HTTP API, at --host.  [default: --port + 2]",
        least=0,
        most=MAX_PORT,
    )
    no_http: bool = option(False, "Serve no HTTP.")
    processes: int = option(
        1, "Routers on one host, at the same --port and --http-port.", flag="--routers", least=1
    )
    generation_config: str = option(
        AUTO,
        "Whose generation_config.json tells what requests take that set no temperature, "
        "top_k, top_p, min_p, repetition_penalty or max_tokens; auto: the model's.",
        metavar="auto|none|DIR",
    )
    keys: str | None = option(
        None, "Ask clients for API keys: the file that `twolane auth` writes.", metavar="FILE"
    )
    store: str | None = option(
        None,
        "A Redis that routers share: redis://HOST, rediss://…, redis+sentinel://HOST,HOST/SERVICE.",
        metavar="URL",
        is_secret=True,
    )
    store_cluster: str = option(
        "default", "This cluster's name in the store, which may have several."
    )
    otlp_endpoint: str | None = option(
        None,
        "Send traces of requests to this OpenTelemetry collector, by gRPC.  "
        "[default: $OTEL_EXPORTER_OTLP_ENDPOINT, or none]",
        metavar="URL",
    )
    max_prompt_tokens: int | None = option(
        None, "Longer prompts are refused.", stands_for=131_072, least=1, is_live=True
    )
    max_output_tokens: int | None = option(
        None,
        "Longest answer; more max_tokens are refused.",
        stands_for=131_072,
        least=1,
        is_live=True,
    )
    max_queued: int | None = option(
        None, "Requests that may wait at the router.", stands_for=1024, least=1, is_live=True
    )
    growth_tokens: int | None = option(
        None, "Tokens that each answer reserves.", stands_for=64, least=1, is_live=True
    )
    beside_rows_s: float | None = option(
        None,
        "Beside workers that only prefill, one with both roles takes a prompt that costs its "
        "answers this time together, and decodes it too; 0: none.  [default: 0.03]",
        least=0,
    )

    def __post_init__(self) -> None:
        if self.http_port is not None and self.no_http:
            raise ValueError(
                "http_port says where the HTTP door is, no_http that there is none: give one"
            )
        if self.store is not None:
            parse_address(self.store)

    @property
    def http_door(self) -> int | None:
        """The HTTP port; None if HTTP is off. By default it is gRPC's port plus two, or any free
        port if gRPC's is 0 or too high for that."""
        if self.no_http or self.http_port is not None:
            return self.http_port
        above = self.port + _HTTP_ABOVE
        return above if self.port and above <= MAX_PORT else 0
