"""A scripted worker: follows the contract of worker.proto, with hashes for tokens and timers for
transfers. Its attributes make it slow, full, wrong, frozen or dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from twolane.refusals import Refusal
from twolane.router.testing.rows import VOCAB, ScriptedRow, columns_of, next_token
from twolane.rpc.link import Link, LinkBrokenError
from twolane.testing.heard import HeardToken
from twolane.v1 import cluster_pb2, drain_pb2, worker_pb2

K = worker_pb2.RowEvent
PREFILL, DECODE = worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE
PAGE_TOKENS = 16
ServerLink = Link[worker_pb2.SessionResponse, worker_pb2.SessionRequest]


class Peers(Protocol):
    """See `twolane.router.testing.cluster`."""

    def announce(self, worker: ScriptedWorker) -> None: ...

    def peer(self, address: worker_pb2.WorkerAddress) -> ScriptedWorker | None: ...

    def drop_assign(self, row: ScriptedRow) -> None: ...


class ScriptedWorker:
    """One incarnation. It finds its peers through `cluster`."""

    def __init__(
        self,
        cluster: Peers,
        worker_id: str,
        epoch: int,
        roles: tuple[worker_pb2.Role, ...],
        *,
        n_pages: int = 256,
        decode_rows: int = 64,
        model: str = "fake",
        fingerprint: str = "f0",
        endpoint: str = "",
        **knobs: Any,
    ) -> None:
        self.cluster = cluster
        self.address = worker_pb2.WorkerAddress(
            worker_id=worker_id, epoch=epoch, endpoint=endpoint or worker_id
        )
        self.roles, self.model, self.fingerprint = roles, model, fingerprint
        self.n_pages, self.decode_rows = n_pages, decode_rows
        self.prefill_s, self.transfer_s, self.step_s = 0.02, 0.01, 0.01
        self.is_full = False  # as a decode worker, it grants no pages
        self.refuses = ""  # if set, the reason for which it refuses every Assign
        self.fails = ""  # if set, the reason for which every row fails
        self.wrong_at = -1  # as a decode worker, it sends a wrong token at this index
        # request id -> index of the token before which it is preempted, once
        self.preempt_at: dict[str, int] = {}
        self.echoes = False  # its answers repeat the prompt
        self.repeats = 1  # how often it sends each token
        self.loses: Callable[[worker_pb2.SessionResponse], bool] = lambda message: False
        self.judges = True
        self.is_dead = self.is_frozen = self.is_draining = False
        for name, value in knobs.items():
            assert hasattr(self, name), name
            setattr(self, name, value)
        self.rows: dict[tuple[str, int], ScriptedRow] = {}
        self.ended: dict[tuple[str, int], ScriptedRow] = {}
        self.commands: list[worker_pb2.SessionRequest] = []  # every command received
        self._tombstones: set[tuple[str, int]] = set()
        self._link: ServerLink | None = None
        self._postponed: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    @property
    def epoch(self) -> int:
        return self.address.epoch

    def announce(self) -> cluster_pb2.AnnounceRequest:
        return cluster_pb2.AnnounceRequest(
            worker=self.address,
            roles=self.roles,
            model=self.model,
            fingerprint=self.fingerprint,
            n_pages=self.n_pages,
            page_tokens=PAGE_TOKENS,
            max_context_tokens=2048,
            vocab_size=VOCAB,
            decode_rows=self.decode_rows,
        )

    # The session

    async def serve(self, link: ServerLink) -> None:
        """Serve one session until it breaks or the worker dies."""
        try:
            first = await link.receive()
            if first.open.worker_epoch != self.epoch or self.is_dead:
                return
            self._link = link
            link.send(
                worker_pb2.SessionResponse(
                    opened=worker_pb2.Opened(worker=self.address), load=self.load()
                )
            )
            while not self.is_dead:
                self._do(self._command, await link.receive())
        except LinkBrokenError:
            pass  # the router dials again
        finally:
            if self._link is link:
                self._link = None
            link.close()

    def cut(self) -> None:
        """Break the session; both sides stay alive."""
        if self._link is not None:
            self._link.close()

    def kill(self) -> None:
        """End as a killed process does."""
        self.is_dead = True
        self.cut()

    def freeze(self) -> None:
        """Stop as with SIGSTOP: do nothing any more, but keep the connection open."""
        self.is_frozen = True

    def thaw(self) -> None:
        self.is_frozen = False
        postponed, self._postponed = self._postponed, []
        for work, args in postponed:
            self._do(work, *args)

    def later(self, delay_s: float, work: Callable[..., None], *args: Any) -> None:
        """Call `work` after the delay if the worker is alive then; if frozen, once thawed."""
        asyncio.get_running_loop().call_later(delay_s, self._do, work, *args)

    def _do(self, work: Callable[..., None], *args: Any) -> None:
        if self.is_frozen:
            self._postponed.append((work, args))
        elif not self.is_dead:
            work(*args)

    def say(
        self,
        tokens: Sequence[HeardToken] = (),
        rows: list[worker_pb2.RowEvent] | None = None,
        load: worker_pb2.LoadReport | None = None,
    ) -> None:
        message = worker_pb2.SessionResponse(
            tokens=columns_of(tokens) * self.repeats, rows=rows or [], load=load
        )
        if self._link is None or self.loses(message):
            return
        try:
            self._link.send(message)
        except LinkBrokenError:
            self._link = None

    def load(self) -> worker_pb2.LoadReport:
        used = sum(
            -(-len(row.tokens) // PAGE_TOKENS)
            for row in self.rows.values()
            if row.phase in ("holding", "decode")
        )
        return worker_pb2.LoadReport(
            pages=worker_pb2.PageCounts(used=used, free=self.n_pages - used),
            rows=sum(row.phase == "decode" for row in self.rows.values()),
            draining=self.is_draining,
        )

    def heartbeat(self) -> None:
        """Announce itself and report its load. The cluster calls this once a second."""
        self.cluster.announce(self)
        self.later(0, lambda: self.say(load=self.load()))

    # Commands

    def _command(self, command: worker_pb2.SessionRequest) -> None:
        self.commands.append(command)
        name = command.WhichOneof("command")
        handler = getattr(self, f"_on_{name}", None)
        if handler is not None:
            handler(getattr(command, name))

    def _on_drain(self, drain: drain_pb2.Drain) -> None:
        self.is_draining = drain.enabled

    def _on_assign(self, assign: worker_pb2.Assign) -> None:
        row = ScriptedRow(assign, list(assign.token_ids))
        role = assign.roles[0]
        if self.refuses or self.fails or row.key in self._tombstones:
            kind = K.KIND_FAILED if self.fails else K.KIND_REFUSED
            self.say(
                rows=[row.row_event(kind, role, self.fails or self.refuses or Refusal.TOMBSTONE)]
            )
            return
        self.rows[row.key] = row
        if row.is_role(PREFILL):
            row.phase = "prefill"
            self.later(self.prefill_s, self._prefilled, row)

    def _on_cancel(self, cancel: worker_pb2.Cancel) -> None:
        for key in cancel.keys:
            self._cancel((key.submission_id, key.attempt))

    def _cancel(self, key: tuple[str, int]) -> None:
        self._tombstones.add(key)
        row = self.rows.get(key)
        if row is not None:
            role = PREFILL if row.phase in ("prefill", "holding") else DECODE
            self._end(row, K.KIND_FINISHED, role)

    def _on_retarget(self, retarget: worker_pb2.Retarget) -> None:
        key = retarget.key.submission_id, retarget.key.attempt
        row = self.rows.pop(key, None)
        if row is None or row.phase not in ("prefill", "holding"):
            self._say_gone(retarget.key, PREFILL)
            return
        row.assign.key.attempt = retarget.next_attempt
        row.assign.row = retarget.next_row
        row.assign.decode.CopyFrom(retarget.decode)
        self.rows[row.key] = row
        self.say(rows=[row.row_event(K.KIND_RETARGETED, PREFILL, attempt=key[1])])
        stays = retarget.decode.epoch == self.epoch
        if stays:
            row.assign.roles.append(DECODE)
        if row.phase == "holding" and stays:
            self.join(row, row.tokens[-1])
        elif row.phase == "holding":
            self.later(self.transfer_s, self._transferred, row, row.key)

    def _on_attach(self, attach: worker_pb2.Attach) -> None:
        key = attach.key.submission_id, attach.key.attempt
        row = self.rows.get(key) or self.ended.get(key)
        if row is None:
            self._say_gone(attach.key, DECODE if DECODE in self.roles else PREFILL)
            return
        row.assign.row = attach.row or row.assign.row
        row.log = [replace(event, row=row.assign.row) for event in row.log]
        tokens = [event for event in row.log if event.index >= attach.from_index]
        self.say(tokens=tokens, rows=[row.news] if row.news is not None else [])

    def _on_find(self, find: worker_pb2.Find) -> None:
        found = worker_pb2.Found(find=find)
        name = find.submission_id
        if find.request_id:
            label = find.tenant, find.request_id
            rows = [*self.ended.values(), *self.rows.values()]
            names = [r.key[0] for r in rows if (r.assign.tenant, r.assign.request_id) == label]
            name = names[-1] if names else ""
        for row in self._of_submission(name):
            found.submission_id = row.key[0]
            found.attempts.add(key=row.assign.key, has_ended=row.phase == "ended")
        self._answer(worker_pb2.SessionResponse(found=[found]))

    def _on_adopt(self, adopt: worker_pb2.Adopt) -> None:
        """Let any router adopt; unlike a real worker, ignore fences."""
        adopted = worker_pb2.Adopted(submission_id=adopt.submission_id, fence=adopt.fence)
        found = self._of_submission(adopt.submission_id)
        shown = adopt.tenant, adopt.resume_hash
        rows = [r for r in found if (r.assign.tenant, r.assign.resume_hash) == shown]
        adopted.result = adopted.RESULT_ADOPTED if rows else adopted.RESULT_GONE
        for row in rows:
            adopted.attempts.add(
                key=row.assign.key,
                assign=row.assign,
                decode=row.assign.decode,
                tokens=columns_of(row.log),
                events=[row.news] if row.news is not None else [],
                has_ended=row.phase == "ended",
                is_cancelled=row.key in self._tombstones,
            )
        self._answer(worker_pb2.SessionResponse(adopted=[adopted]))

    def _of_submission(self, submission_id: str) -> list[ScriptedRow]:
        rows = [*self.rows.values(), *self.ended.values()]
        return [row for row in rows if row.key[0] == submission_id]

    def _answer(self, response: worker_pb2.SessionResponse) -> None:
        if self._link is not None:
            self._link.send(response)

    def _on_judge_peer(self, judge: worker_pb2.JudgePeer) -> None:
        for row in list(self.rows.values()) if self.judges else []:
            if row.assign.prefill.epoch == judge.epoch and row.is_role(DECODE):
                if row.phase == "decode":
                    self.say(rows=[row.row_event(K.KIND_LANDED, DECODE)])
                else:
                    self._end(row, K.KIND_DEAD, DECODE)

    # Rows

    def _next_token(self, row: ScriptedRow) -> int:
        if not self.echoes:
            return next_token(row.tokens)
        return row.assign.token_ids[row.index % row.assign.n_prompt]

    def _prefilled(self, row: ScriptedRow) -> None:
        if row.phase != "prefill":
            return
        event = row.append(self._next_token(row), PREFILL)
        row.phase = "holding"
        if event.finish_reason:
            self.say(tokens=[event])
            self._end(row, K.KIND_FINISHED, PREFILL)
            self.cluster.drop_assign(row)
            return
        self.say(tokens=[event])
        if row.is_role(DECODE):
            self.join(row, row.tokens[-1])
        else:
            self.later(self.transfer_s, self._transferred, row, row.key)

    def _transferred(self, row: ScriptedRow, key: tuple[str, int]) -> None:
        """The pages are sent. Hand the row to the decode worker, or try again later."""
        if row.phase != "holding" or row.key != key:
            return
        peer = self.cluster.peer(row.assign.decode)
        if peer is self:  # retargeted to itself
            self.join(row, row.tokens[-1])
            return
        if peer is None or peer.is_frozen:
            self.later(0.05, self._transferred, row, key)  # until the router retargets it
            return
        if peer.is_full:
            self.say(rows=[row.row_event(K.KIND_UNPLACED, PREFILL)])
            self.later(0.1, self._transferred, row, key)
            return
        mine = peer.rows.get(row.key)
        if mine is None or mine.phase != "waiting":
            self.later(0.05, self._transferred, row, key)  # its Assign is late, or was never sent
            return
        peer.join(mine, row.tokens[-1])
        self._end(row, K.KIND_HANDED_OVER, PREFILL)

    def join(self, row: ScriptedRow, first_token: int) -> None:
        """As the decode worker, take the row over with its first token."""
        if row.phase == "waiting":
            index = row.index
            row.tokens.append(first_token)
            event = row.token_at(index, first_token + (self.wrong_at == index), DECODE)
            row.log.append(event)
            self.say(tokens=[event], rows=[row.row_event(K.KIND_JOINED, DECODE)])
        row.phase = "decode"
        self.later(self.step_s, self._step, row)

    def _step(self, row: ScriptedRow) -> None:
        if row.phase != "decode":
            return
        if self.preempt_at.get(row.assign.request_id) == row.index:
            del self.preempt_at[row.assign.request_id]
            self._end(row, K.KIND_PREEMPTED, DECODE)
            return
        event = row.append(self._next_token(row), DECODE)
        if self.wrong_at == event.index:
            event = row.log[-1] = replace(event, token_id=event.token_id + 1)
        self.say(tokens=[event])
        if event.finish_reason:
            self._end(row, K.KIND_FINISHED, DECODE)
        else:
            self.later(self.step_s, self._step, row)

    def _end(self, row: ScriptedRow, kind: worker_pb2.RowEvent.Kind, role: worker_pb2.Role) -> None:
        row.phase = "ended"
        if self.rows.pop(row.key, None) is not None:
            self.ended[row.key] = row
        self.say(rows=[row.row_event(kind, role)])

    def _say_gone(self, key: worker_pb2.AttemptKey, role: worker_pb2.Role) -> None:
        event = worker_pb2.RowEvent(key=key, kind=K.KIND_GONE)
        event.role = role
        self.say(rows=[event])
