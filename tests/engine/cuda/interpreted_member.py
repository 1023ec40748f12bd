"""A rank whose GPU engine runs on the CPU, in Triton's interpreter; the ranks meet over gloo."""

from __future__ import annotations

import sys

import torch

from tests.engine.interpreter import sound_fp8_casts
from twolane.engine.config import EngineConfig
from twolane.engine.cuda.startup.load import load_cuda_engine
from twolane.engine.parallel.collective import HostCollective
from twolane.engine.progress import Progress
from twolane.engine.ranks.joining import join
from twolane.engine.ranks.member import main
from twolane.engine.ranks.place import Place
from twolane.engine.step import Engine


def load(config: EngineConfig, place: Place, progress: Progress) -> Engine:
    ranks = join("gloo", place, in_order=True)
    if config.share_gpus:
        ranks = HostCollective()
    return load_cuda_engine(config, device=torch.device("cpu"), ranks=ranks, progress=progress)


if __name__ == "__main__":
    with sound_fp8_casts():
        main(int(sys.argv[1]), load)
