"""What viewers may not have, though they may call the method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.deploy.walked import cluster
from tests.pki import FAR, Pki, far_is_far
from twolane.security.credentials import Credentials
from twolane.security.identity import Role
from twolane.v1 import worker_pb2
from twolane.worker.doors.services import WORKER


async def test_a_viewer_inspects_a_worker_without_its_log_and_opens_no_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far_is_far(monkeypatch)
    pki = Pki(tmp_path / "pki")
    asked = {
        "look": worker_pb2.InspectRequest(facts=True),
        "reach": worker_pb2.InspectRequest(facts=True, reach=[f"{FAR}:1"]),
        "log": worker_pb2.InspectRequest(log_lines=1),
    }
    async with cluster(tmp_path, FAR, pki) as served:
        for role, allowed in (("viewer", {"look"}), ("operator", {*asked}), ("router", {*asked})):
            files = pki.files(f"{role}/some-{role}")
            async with Credentials(tls=files).channel(served.worker.endpoint, Role.WORKER) as to:
                call: Any = to.unary_unary(f"/{WORKER}/Inspect")
                for name, request in asked.items():
                    code = await call(request.SerializeToString(), timeout=20.0).code()
                    assert (code is grpc.StatusCode.OK) == (name in allowed), (role, name)
