"""A rank whose GPU engine runs on the CPU, in Triton's interpreter; the ranks meet over gloo."""

from __future__ import annotations

import sys

import torch

from engine.config import EngineConfig
from engine.cuda.load import load_cuda_engine
from engine.progress import Progress
from engine.ranks.collective import HostCollective
from engine.ranks.joining import join
from engine.ranks.member import main
from engine.ranks.place import Place
from engine.step import Engine
from tests.engine.interpreter import sound_fp8_casts


def load(config: EngineConfig, place: Place, progress: Progress) -> Engine:
    ranks = join("gloo", place, in_order=True)
    if config.share_gpus:
        ranks = HostCollective()
    return load_cuda_engine(config, device=torch.device("cpu"), ranks=ranks, progress=progress)


if __name__ == "__main__":
    with sound_fp8_casts():
        main(int(sys.argv[1]), load)
