"""The errors of an engine, as a tree.

    EngineError
    ├── EngineConfigError          an option that is invalid, or does not fit the model
    ├── ModelLoadError             the model directory cannot be served
    │   ├── UnsupportedModelError  a valid model of a kind that this engine does not implement
    │   └── CheckpointError        missing, extra, misshapen or damaged files and tensors
    └── RankLostError              a rank of a group died, failed or went silent: the group is lost

An error of one row of a step is none of these: it is that row's `RowResult.error`.
"""

from __future__ import annotations


class EngineError(Exception):
    """Root of the tree: the message names the problem and what would be accepted."""


class EngineConfigError(EngineError):
    """An option of `EngineConfig` is out of its bound, or does not fit the model."""


class ModelLoadError(EngineError):
    """The model cannot be loaded; nothing was allocated that needs closing."""


class UnsupportedModelError(ModelLoadError):
    """A kind of model that this engine does not implement; the message lists those it does."""


class CheckpointError(ModelLoadError):
    """The model's files are missing, damaged, or disagree with its config.json."""


class RankLostError(EngineError):
    """A rank of a group died, failed, stopped answering or disagreed with the others. The other
    ranks have been killed: results in flight are lost, and no step can follow.

    `rank` is the first that failed.
    """

    def __init__(self, rank: int, what: str) -> None:
        super().__init__(f"rank {rank} {what}; its group is lost: start the engine again")
        self.rank = rank
