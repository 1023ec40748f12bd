"""A process on this host, watched by its pidfd: our child, or one that we found running."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

from twolane.deploy.launch.process_end import how_it_ended, in_words
from twolane.deploy.process.parent_death import end_group


class HostProcess:
    """The leader of a process group. It counts as dead only when its whole group is: its ranks
    write to pages and hold GPUs too. Construct it on the event loop that watches it."""

    def __init__(self, pid: int, fd: int, *, is_child: bool) -> None:
        """`fd` is its pidfd; this object owns it and closes it when the process has ended."""
        self.pid = pid
        self._fd = fd
        self._is_child = is_child
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._reaping: asyncio.Task[None] | None = None
        asyncio.get_running_loop().add_reader(fd, self._on_end)

    @property
    def has_ended(self) -> bool:
        return self._ended.done()

    async def wait(self) -> str:
        """Wait until the process and its group have ended. Returns how, for display."""
        return await asyncio.shield(self._ended)

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self._send(signal.SIGTERM)

    async def kill(self) -> str:
        """Kill its group and wait until all of it has ended. May be called for a dead process."""
        self._send(signal.SIGKILL)
        return await self.wait()

    def let_go(self) -> None:
        """Stop watching it. It keeps running."""
        if self._reaping is None and not self._ended.done():
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._ended.cancel()

    def _send(self, number: signal.Signals) -> None:
        if self._reaping is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, number)

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        self._reaping = asyncio.create_task(self._reap())

    async def _reap(self) -> None:
        """Wait for the group first: when its leader is reaped, the group's number may be reused."""
        await end_group(self.pid)
        if self._is_child:
            _, status = os.waitpid(self.pid, os.WNOHANG)  # noqa: ASYNC222 - it has ended
            how = in_words(os.waitstatus_to_exitcode(status))
        else:
            how = await how_it_ended(self._fd)
        os.close(self._fd)
        self._ended.set_result(how)
