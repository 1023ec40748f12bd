"""Imports what a worker needs, before it knows its spec: its routers may not even have started."""

from __future__ import annotations

import gc


def import_worker(device: str) -> None:
    """Import what a worker with an engine on `cpu` or `cuda` needs. Returns after seconds."""
    if device == "cuda":
        from twolane.engine.cuda.startup.imports import import_engine

        import_engine()
    gc.disable()  # modules are not garbage
    import twolane.deploy.process.compose_worker
    import twolane.engine.load
    import twolane.worker.doors.server

    if device == "cpu":
        import twolane.engine.cpu.engine  # noqa: F401
    gc.enable()
