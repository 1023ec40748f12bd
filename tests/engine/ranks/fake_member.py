"""A rank that computes nothing: the process of `twolane.engine.ranks.member` around a fake engine.

What it does wrong, and as which rank, is the model's name: `dies in step:1`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from twolane.engine.config import EngineConfig
from twolane.engine.errors import CheckpointError
from twolane.engine.fake import FakeEngine, FakeEngineConfig
from twolane.engine.progress import Loaded, Progress
from twolane.engine.ranks.member import main
from twolane.engine.ranks.place import Place
from twolane.engine.step import DevicePool, Engine, RowResult, RowWork


class FaultyEngine(FakeEngine):
    fault = ""

    def run(self, work: Sequence[RowWork]) -> list[RowResult]:
        if self.fault == "dies in step":
            os._exit(3)
        if self.fault == "hangs in step":
            time.sleep(600)
        if self.fault == "raises in step":
            raise RuntimeError("out of luck")
        results = super().run(work)
        if self.fault == "samples otherwise":
            results = [replace(r, tokens=(replace(r.tokens[0], token=1),)) for r in results]
        return results


def load(config: EngineConfig, place: Place, progress: Progress) -> Engine:
    fault, _, rank = config.model_name.partition(":")
    is_faulty = rank == str(place.rank)
    if is_faulty and fault == "cannot load":
        raise CheckpointError("tensor x is missing")
    if is_faulty and fault == "dies at load":
        os._exit(4)
    if fault == "cannot load":
        time.sleep(600)  # waits for the rank that will not come
    progress(Loaded(1, 1, 4, 4))
    n_pages = 8 + (is_faulty and fault == "makes another")
    engine = FaultyEngine(FakeEngineConfig(n_pages=n_pages))
    engine.fault = fault if is_faulty else ""
    if fault == "has a card":
        exported = b"%d" % place.rank
        engine.device_pool = DevicePool(0, (1 << 20,), engine.pool.nbytes, (exported,))
    return engine


if __name__ == "__main__":
    main(int(sys.argv[1]), load)
