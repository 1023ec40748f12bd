"""Which submission runs under which label: what several routers of one cluster would have to share.

Nothing here is needed for safety: workers refuse a second row under a label that a live one holds.
A store that is shared and cannot be reached may therefore say yes.
"""

from __future__ import annotations

from twolane.router.requests.request import Label


class Store:
    """For the routers of one process."""

    def __init__(self) -> None:
        self._holders: dict[Label, str] = {}

    async def claim(self, label: Label, submission_id: str) -> bool:
        """Make the label this submission's. False: it is another's."""
        return self._holders.setdefault(label, submission_id) == submission_id

    def release(self, label: Label, submission_id: str) -> None:
        """The submission is over. Changes nothing if the label is not its."""
        if self._holders.get(label) == submission_id:
            del self._holders[label]
