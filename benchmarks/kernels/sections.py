"""A command that measures kernels section by section and saves one table."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

import torch

from benchmarks.kernels.card import Table, measure_ceilings
from benchmarks.result_options import add_result_options
from benchmarks.results import save


def measure_sections(
    name: str, sections: Mapping[str, Callable[[Table], None]], about: str | None
) -> int:
    """Parse the command line, measure all sections or those of `--only`, save result `name`.
    Returns the exit status. `about`: what the command's help says."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--only", default=",".join(sections))
    add_result_options(parser)
    args = parser.parse_args()
    chosen = args.only.split(",")
    if unknown := [each for each in chosen if each not in sections]:
        parser.error(f"--only {','.join(unknown)}: there are {', '.join(sections)}")
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to measure")
        return 1
    torch.manual_seed(0)
    table = measure_ceilings()
    for each in chosen:
        sections[each](table)
        torch.cuda.empty_cache()
    print("saved", save(name, {"rows": table.rows}, folder=args.folder, commit=args.commit))
    return 0
