"""A process on this host that is watched by its pidfd: a child of ours, or one that we found."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

from twolane.deploy.launch.process_end import how_it_ended, in_words
from twolane.deploy.process.parent_death import end_group


class HostProcess:
    """It leads a process group, and is not dead before all of that are: ranks write to pages and
    hold GPUs as it does. Made on the event loop that watches it."""

    def __init__(self, pid: int, fd: int, *, is_child: bool) -> None:
        """`fd` is its pidfd, which is closed here when it has ended."""
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
        """Until it has ended, and its group with it: how, in words."""
        return await asyncio.shield(self._ended)

    def terminate(self) -> None:
        """Ask it to end."""
        self._send(signal.SIGTERM)

    async def kill(self) -> str:
        """Kill its group, and wait for all of it. May be called of a dead one."""
        self._send(signal.SIGKILL)
        return await self.wait()

    def let_go(self) -> None:
        """Watch it no longer. It goes on."""
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
        """The group first: its number is free for others when its leader is reaped."""
        await end_group(self.pid)
        if self._is_child:
            _, status = os.waitpid(self.pid, os.WNOHANG)  # noqa: ASYNC222 - it has ended
            how = in_words(os.waitstatus_to_exitcode(status))
        else:
            how = await how_it_ended(self._fd)
        os.close(self._fd)
        self._ended.set_result(how)
