"""Runs the command that switches a host off."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

from twolane.deploy.errors import NotProvenError
from twolane.deploy.spec.cluster_spec import HostSpec


async def run_fence_command(host: HostSpec, within_s: float) -> int:
    """Its exit code. Raises `NotProvenError` if it cannot be started now, or has not ended in time;
    then it is killed."""
    try:
        process = await asyncio.create_subprocess_shell(
            host.fence_command,
            env={**os.environ, "TWOLANE_HOST": host.name},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:  # no memory, process or descriptor is free
        raise NotProvenError(f"{host.name} silent; its fence command: {error}") from error
    try:
        async with asyncio.timeout(within_s):
            return await process.wait()
    except TimeoutError:
        raise NotProvenError(
            f"{host.name} silent; its fence command has not ended within {within_s:g} s"
        ) from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
