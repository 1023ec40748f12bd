"""What an engine refuses, as a tree.

    EngineError
    ├── EngineConfigError          an option that makes no sense, or does not fit the model
    ├── ModelLoadError             the model directory cannot be served
    │   ├── UnsupportedModelError  a sound model of a kind that this engine does not implement
    │   └── CheckpointError        missing, extra, misshapen or damaged files and tensors
    └── RankLostError              a rank of a group died, broke or went silent: so has the group

A fault of one row of a step is none of these: it is that row's `RowResult.error`.
"""

from __future__ import annotations


class EngineError(Exception):
    """Root of the tree: the message says what is wrong and what would be accepted."""


class EngineConfigError(EngineError):
    """An option of `EngineConfig` is out of its bound, or does not fit the model."""


class ModelLoadError(EngineError):
    """The model cannot be loaded; nothing was allocated that needs closing."""


class UnsupportedModelError(ModelLoadError):
    """A kind of model that this engine does not implement; the message lists those it does."""


class CheckpointError(ModelLoadError):
    """The model's files are missing, damaged, or disagree with its config.json."""


class RankLostError(EngineError):
    """A rank of a group died, failed, stopped answering or disagreed with the others. The others
    have been killed: nothing that the group was computing will come, nor anything new.

    `rank` is the first that was seen to be wrong.
    """

    def __init__(self, rank: int, what: str) -> None:
        super().__init__(f"rank {rank} {what}; its group is gone: start the engine again")
        self.rank = rank
