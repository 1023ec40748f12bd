"""What each bound means: the rows of docs/limits.md, whose values the config classes bring."""

from __future__ import annotations

from tests.docs.bound_rows import Row, Section
from twolane.config import ClientConfig
from twolane.decode_worker.config import DecodeConfig
from twolane.deploy.agent.host_link import LinkConfig
from twolane.deploy.launch.fencing import FencingConfig
from twolane.deploy.launch.restart import RestartConfig
from twolane.deploy.launch.supervisor import SupervisorConfig
from twolane.deploy.process.compose_worker import GPU_STEP_LIMITS, sender_config, step_watch_config
from twolane.deploy.spec.settings import TimingSpec
from twolane.kvtransfer.config import LeaseConfig, ReceiverConfig, SenderConfig
from twolane.prefill_worker.batching import BatchingConfig
from twolane.prefill_worker.config import PrefillConfig
from twolane.router.config import (
    AdmissionConfig,
    DispatchConfig,
    GrpcDoorConfig,
    HttpConfig,
    LimitsConfig,
    MembershipConfig,
    ReadersConfig,
)
from twolane.rpc.call_gate import CallGateConfig
from twolane.worker.config import SessionConfig, StepLimits, StepWatchConfig

INVALID = "InvalidParameterError"
OVERLOADED = "OverloadedError"
_ALL = "connections; those of the loopback have no other bound"
_GPU_WATCH = step_watch_config(TimingSpec(), on_gpu=True)
_GPU_SENDER = sender_config(TimingSpec(), on_gpu=True)

SECTIONS = (
    Section(
        "Requests",
        "Checked before a request is queued. The error names the value and the bound.",
        {
            LimitsConfig: {
                "message_bytes": Row(
                    "one gRPC message, one HTTP body",
                    "",
                    "InvalidRequestError in the client; HTTP 413",
                ),
                "prompt_bytes": Row("a prompt's text, or all messages of a chat", "", INVALID),
                "prompt_tokens": Row("a prompt", "--max-prompt-tokens", INVALID),
                "max_tokens": Row("max_tokens of a request", "--max-output-tokens", INVALID),
                "default_max_tokens": Row(
                    "an answer whose request sets no max_tokens; less where the context, the "
                    "pool or max_tokens above leave less",
                    "",
                    "finish reason length",
                ),
                "stop_strings": Row("stop strings of a request", "", INVALID),
                "chat_messages": Row("messages of a chat", "", INVALID),
                "priority": Row("priority, plus or minus", "", INVALID),
            },
        },
    ),
    Section(
        "Admission",
        "How many requests wait, and how long. See [what overload does](design.md#overload).",
        {
            AdmissionConfig: {
                "max_queued": Row("requests that wait", "--max-queued", OVERLOADED),
                "growth_reserve_tokens": Row(
                    "answer tokens that a request reserves on its decode worker",
                    "--growth-tokens",
                    "the row takes spare pages, or is preempted",
                ),
                "extra_rows": Row(
                    "requests on a decode worker beyond its rows, still in prefill", "", "waits"
                ),
                "max_prefill_backlog_tokens": Row(
                    "prompt tokens assigned to a prefill worker", "", "waits"
                ),
                "slo_prefill_backlog_tokens": Row(
                    "those of one router's, two prompts at least, while a controller tells an SLO "
                    "(`--autoscale`)",
                    "",
                    "waits",
                ),
                "beside_rows_s": Row(
                    "what prompts cost the rows of a worker with both roles, together, beside "
                    "workers that only prefill",
                    "--beside-rows-s",
                    "prefill worker",
                ),
                "max_wait_s": Row(
                    "expected wait of a new request, and wait of one that others go before, as it "
                    "is deferred",
                    "",
                    OVERLOADED,
                ),
                "queue_timeout_s": Row("wait of a queued request", "", OVERLOADED),
                "unavailable_after_s": Row(
                    "time without a worker that could serve it", "", "UnavailableError"
                ),
                "cold_start_s": Row(
                    "the same where a worker starts for it (`--autoscale`, pools of 0)",
                    "",
                    "UnavailableError",
                ),
                "lost_workers_wait_s": Row(
                    "the same for a request whose workers were lost", "", "UnavailableError"
                ),
                "retry_after_min_s": Row("shortest RetryInfo", "", ""),
                "retry_after_max_s": Row("longest RetryInfo", "", ""),
                "hopeless_factor": Row(
                    "expected wait and answer, as a multiple of the time left, from which a "
                    "request is refused at once while others wait",
                    "",
                    "DeadlineError",
                ),
            },
        },
    ),
    Section(
        "Doors",
        "What one client may hold. The connection bounds are lowered to what the process's "
        "descriptor limit allows (`deploy/process/descriptors.py`). Messages are never compressed: "
        "a compressed gRPC call gets UNIMPLEMENTED.\n\n"
        "`tests/faults/test_attacks.py` (`make soak`) attacks a running cluster with each of these "
        "and measures its memory and what other clients notice. The router grew by 74 MiB under "
        "100 bodies of 4 MB that never end, by 57 under 9,000 idle connections, by 39 under floods "
        "of gRPC frames, by 14 under 200 gRPC clients that read nothing, and by less than 10 under "
        "the others (`python -m benchmarks.cluster.attacks`). 8,192 idle gRPC connections of one "
        "peer cost others none of their goodput, the router 46 MiB "
        "(`tests/faults/test_idle_peer.py`).",
        {
            HttpConfig: {
                "requests": Row(
                    "HTTP requests that run (twice as many, where a tenant has few of them)",
                    "",
                    "503 with Retry-After",
                ),
                "retry_after_s": Row("Retry-After of that 503", "", ""),
                "connections": Row(f"HTTP {_ALL}", "", "the one that has waited longest is closed"),
                "connections_per_peer": Row(
                    "connections of one address (IPv6: a /64) other than the loopback", "", "closed"
                ),
                "bodies_bytes": Row("all unfinished bodies", "", "the oldest gets 503"),
                "head_bytes": Row("an HTTP head, its URL, trailers", "", "431"),
                "head_timeout_s": Row("from connection to the end of a head", "", "408"),
                "body_timeout_s": Row("from head to the end of the body", "", "408"),
                "prompts": Row("prompts of one completion", "", "InvalidRequestError"),
                "keep_alive_s": Row("an idle connection", "", "closed"),
                "unread_s": Row("no byte taken of an answer (to twice that)", "", "closed"),
            },
            GrpcDoorConfig: {
                "connections": Row(f"gRPC {_ALL}", "", "closed"),
                "connections_per_peer": Row(
                    "connections of one address (IPv6: a /64) other than the loopback",
                    "",
                    "the newest are closed within a second",
                ),
                "idle_s": Row("a connection without a call", "", "closed"),
            },
            CallGateConfig: {
                "calls_per_connection": Row("open calls of a connection", "", OVERLOADED),
                "unread_calls": Row("calls whose message is awaited", "", OVERLOADED),
                "slow_messages": Row(
                    "of those, messages under way for over a second",
                    "",
                    "the oldest gets DeadlineError",
                ),
                "message_s": Row("from a call's start to its whole message", "", "DeadlineError"),
                "retry_after_s": Row("RetryInfo of these refusals", "", ""),
            },
            ReadersConfig: {
                "unread_bytes": Row(
                    "of an answer that its client does not read", "", "CancelledError"
                ),
                "pause_s": Row("a write that is never judged by bytes", "", ""),
                "unread_s": Row("one write", "", "CancelledError"),
            },
        },
    ),
    Section(
        "Steps and batches",
        f"On a GPU the defaults are {GPU_STEP_LIMITS.step_tokens} step tokens and "
        f"{GPU_STEP_LIMITS.decode_rows} decode rows.",
        {
            StepLimits: {
                "step_tokens": Row(
                    "positions of one forward pass", "--step-tokens", "prompts are split"
                ),
                "decode_rows": Row("rows that a worker decodes", "--decode-rows", "waits"),
            },
            PrefillConfig: {
                "queue_limit": Row(
                    "rows that wait at a prefill worker", "", "REFUSED: placed elsewhere"
                ),
                "holding_cap_share": Row(
                    "share of the pool held for decode workers",
                    "--holding-cap-share",
                    "no prefill starts",
                ),
                "unplaced_after_s": Row(
                    "a finished prompt without granted pages", "", "UNPLACED: other decode worker"
                ),
                "drop_after_s": Row(
                    "the same, where this worker decodes too and others wait for its pages "
                    "(twice that where the decode worker has the lower epoch)",
                    "",
                    "given up, computed again later",
                ),
            },
            BatchingConfig: {
                "window_s": Row(
                    "wait of a prompt in a burst for others; none: learnt "
                    "(`--prefill-learns-window`)",
                    "--prefill-window-s",
                    "starts",
                ),
                "watermark_rows": Row(
                    "waiting prompts above which there is a burst, if the wait is not learnt",
                    "--prefill-watermark-rows",
                    "",
                ),
                "most_window_s": Row("a learnt wait", "", "starts"),
                "most_rows": Row("waiting prompts for which a wait is learnt", "", "start"),
            },
            DecodeConfig: {
                "least_growth_tokens": Row("growth reserved for any row, at least", "", ""),
            },
        },
    ),
    Section(
        "Failure detection",
        "A timeout is suspicion: work goes elsewhere, pages stay where they are until there is "
        f"proof. On a GPU the first step of a kind may take {_GPU_WATCH.first_late_s:g} s. "
        "Times that follow from an option scale with it.",
        {
            TimingSpec: {
                "heartbeat_s": Row("between signs of life of any process", "--heartbeat-s", ""),
                "suspicion_s": Row(
                    "silence of a worker or a router", "--suspicion-s", "requests go elsewhere"
                ),
                "lease_s": Row("pages held for a silent peer", "--lease-s", "suspicion"),
                "grace_s": Row("rows without their router", "--grace-s", "cancelled"),
                "stop_grace_s": Row(
                    "running answers when a process is stopped", "--stop-grace-s", "cut off"
                ),
                "orphan_s": Row(
                    "silence of a worker's agent and of all its routers",
                    "--orphan-s",
                    "the worker ends itself",
                ),
            },
            MembershipConfig: {
                "announce_interval_s": Row(
                    "between announcements of a worker", "--heartbeat-s", ""
                ),
                "heartbeat_s": Row("between a router's heartbeats", "--heartbeat-s", ""),
                "suspicion_s": Row(
                    "silence of a worker", "--suspicion-s", "its requests go elsewhere"
                ),
                "gone_after_s": Row("silence of a worker", "", "it is no member any more"),
                "forget_after_s": Row("a member that is gone stays in the status", "", ""),
                "most_members": Row(
                    "members, gone ones included", "", f"{OVERLOADED} to the worker"
                ),
                "open_timeout_s": Row("from dial to a session's first message", "", "redialed"),
                "redial_min_s": Row("first wait between dials", "", ""),
                "redial_max_s": Row("longest wait between dials", "", ""),
            },
            DispatchConfig: {
                "max_failures": Row("failed attempts of one request", "", "UnavailableError"),
                "judge_wait_s": Row("for LANDED or DEAD", "", "new attempt"),
                "retarget_wait_s": Row("for RETARGETED or GONE", "", "new attempt"),
                "move_pause_s": Row("between searches for another decode worker", "", ""),
                "attach_wait_s": Row("for tokens asked for again", "", "new attempt"),
                "find_wait_s": Row(
                    "for workers' word on an answer of another router", "", "what is known by then"
                ),
                "ledger_wait_s": Row("after the last token, for the workers' figures", "", ""),
                "stall_s": Row("an attempt without news", "", "new attempt on two other workers"),
                "retry_delay_s": Row("before the second retry; doubles", "", ""),
                "retry_delay_max_s": Row("longest such delay", "", ""),
            },
            SessionConfig: {
                "open_within_s": Row("a router's stream until its Open", "", "closed"),
                "load_every_s": Row("between load reports", "--heartbeat-s", ""),
                "load_least_s": Row("between load reports while steps run, at least", "", ""),
                "grace_s": Row("rows without their router", "--grace-s", "cancelled, pages freed"),
                "fence_s": Row(
                    "a router that was paused is kept from what another one has had", "", ""
                ),
                "tombstone_s": Row("a cancelled attempt is remembered", "--lease-s", ""),
                "suspicion_s": Row(
                    "silence of a router", "--suspicion-s", "another process may take its id"
                ),
            },
            StepWatchConfig: {
                "late_s": Row("a step", "--suspicion-s", "the router suspects the worker"),
                "late_factor": Row("the same, times an average step, if that is more", "", ""),
                "first_late_s": Row("the first step of its kind", "", "as above"),
            },
            SupervisorConfig: {
                "ready_timeout_s": Row(
                    "from ready workers to a router that sees them alive", "", "the start fails"
                ),
                "ready_poll_s": Row("between looks while starting", "", ""),
                "stop_margin_s": Row("a stop beyond --stop-grace-s", "", "killed"),
                "loading_poll_s": Row("between lines of loading progress", "", ""),
            },
            FencingConfig: {
                "poll_s": Row("between looks at the router's status", "", ""),
                "hung_factor": Row("a late step, times its bound", "", "the worker is killed"),
                "lost_s": Row(
                    "a worker that the router has called gone", "", "killed, started again"
                ),
                "hung_router_s": Row(
                    "a router that has answered before and answers nothing",
                    "",
                    "killed, started again",
                ),
            },
            LinkConfig: {
                "silence_s": Row("of a host's agent", "", "its seats are lost"),
                "reconnect_s": Row("between calls of an agent that does not answer", "", ""),
                "connect_s": Row("for the first word of an agent", "", "the start fails"),
                "remember_s": Row(
                    "at a takeover, for silent hosts that may know what was desired",
                    "",
                    "it goes on with what answers",
                ),
                "fence_command_s": Row("for a host's fence command", "", "killed, no proof"),
            },
            RestartConfig: {
                "first_delay_s": Row(
                    "before the second restart in a row; doubles (the first is at once)", "", ""
                ),
                "most_delay_s": Row("longest such delay", "", ""),
                "calm_s": Row("without a death, after which the count starts again", "", ""),
                "well_s": Row("a router that has served for so long starts again at once", "", ""),
            },
        },
    ),
    Section(
        "Transfers",
        f"On a GPU a sender's window is {_GPU_SENDER.window_bytes >> 20} MiB and a post "
        f"{_GPU_SENDER.post_bytes >> 20} MiB.",
        {
            LeaseConfig: {
                "lease_s": Row("pages held for a silent peer", "--lease-s", "suspicion"),
                "heartbeat_s": Row("between Renew messages to a peer", "--heartbeat-s", ""),
                "retry_first_s": Row("first repeat of an unanswered message; doubles", "", ""),
                "retry_most_s": Row("longest wait before a repeat", "", ""),
            },
            SenderConfig: {
                "window_bytes": Row("posted and not complete, a peer", "", "waits"),
                "post_bytes": Row("one post", "", "split"),
                "holding_cap_pages": Row(
                    "pages held; set from the share above", "--holding-cap-share", "as above"
                ),
                "max_regrants": Row("lost grants of a transfer", "", "the attempt fails"),
                "stuck_after_s": Row(
                    "posts under way that do not move", "--lease-s", "called back, sent again"
                ),
            },
            ReceiverConfig: {
                "queue_limit": Row("reservations that wait for pages", "", "BUSY"),
                "pass_looks": Row("smaller reservations tried behind a head without room", "", ""),
                "quarantine_cap_pages": Row(
                    "quarantined pages (0: half the pool)", "", "BUSY, and a fence is asked for"
                ),
                "fence_after_s": Row("age of a quarantine", "--lease-s", "a fence is asked for"),
                "landing_timeout_s": Row(
                    "from DONE to the last byte", "--lease-s", "Revoke: sent again"
                ),
                "max_late": Row(
                    "transfers sent again as their bytes were late", "", "the attempt fails"
                ),
                "reattach_s": Row("a broken link to a sender", "--lease-s", "judged"),
                "judge_wait_s": Row("bytes of a judged sender may still land", "", ""),
                "max_regrants": Row("spoilt grants of a transfer", "", "the attempt fails"),
            },
        },
    ),
    Section(
        "Clients",
        "Of `twolane.Client` and `twolane.AsyncClient`.",
        {
            ClientConfig: {
                "timeout_s": Row("a generation", "timeout_s=", "DeadlineError"),
                "connect_timeout_s": Row("a connection", "connect_timeout_s=", "UnavailableError"),
                "call_timeout_s": Row(
                    "cancel, models, status, drain", "call_timeout_s=", "DeadlineError"
                ),
            },
        },
    ),
)
# Fields that bound nothing: other configs, and switches.
PARTS = {"lease", "sender", "receiver", "batching", "restart", "fencing", "calls", "port"}
SWITCHES = {"api_key", "ca", "cert", "context", "key", "index_answers", "require_checksums"}
