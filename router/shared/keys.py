"""The names of keys. All begin with {tw:CLUSTER}, so that Redis Cluster keeps them in one slot.

| key | type | expires | what |
|--|--|--|--|
| `routers` | sorted set: names by their leases' end | never | all routers |
| `router:NAME` | hash | 5 s | where that router listens; NAME is of one incarnation |
| `claim:HASH` | string: NAME SUBMISSION | 15 s | the owner of a label |
| `r:SUBMISSION` | hash | 60 s | the router that answers it, its attempt, its workers |
| `q:TENANT` | hash: requests, tokens, when each was written | 2 min | what is left of its quotas |
| `live:TENANT` | sorted set: submissions by their leases' end | 15 s | concurrent submissions |
| `aff` | stream of about 100,000 | never | prefixes that were assigned to workers |
| `ev` | stream of about 10,000 | never | what happened to routers and the store |

The owner of a key rewrites it every 5 s (a router its own record every second).
"""

from __future__ import annotations

from hashlib import blake2b

from twolane.router.requests.request import Label

ROUTER_MS = 5_000
LEASE_MS = 15_000  # of claims, and of concurrent submissions
INDEX_MS = 60_000  # long enough for a client to find another router
QUOTA_MS = 120_000  # two windows
PREFIXES = 100_000
EVENTS = 10_000


class Keys:
    def __init__(self, cluster: str) -> None:
        self._root = f"{{tw:{cluster}}}:"
        self.routers = f"{self._root}routers"
        self.router_prefix = f"{self._root}router:"
        self.prefixes = f"{self._root}aff"
        self.events = f"{self._root}ev"

    def claim(self, label: Label) -> str:
        """The key of a label; hashed, because a label may be long and contain any characters."""
        name = blake2b(label.tenant.encode(), digest_size=16)
        name.update(b"\0" + label.request_id.encode())
        return f"{self._root}claim:{name.hexdigest()}"

    def index(self, submission_id: str) -> str:
        return f"{self._root}r:{submission_id}"

    def quotas(self, tenant: str) -> str:
        return f"{self._root}q:{tenant}"

    def live(self, tenant: str) -> str:
        return f"{self._root}live:{tenant}"
