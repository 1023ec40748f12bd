"""Documents packed into rows of tokens, made by worker processes while the model trains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from tokenizers import Tokenizer
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from twolane.deploy.bundled.corpus import documents


class PackedRows(IterableDataset[torch.Tensor]):
    """An endless stream of batches `[rows, row_tokens]` int16.

    Every document of a row starts in that row. A document that is cut off at the row's end is
    repeated from its beginning in the next row, so that long notes keep their questions; one that
    is longer than a row stays cut. Each worker process reads its own stream, so the sequence of
    batches depends on the seed and the number of workers.
    """

    def __init__(self, tokenizer_json: str, seed: str, rows: int, row_tokens: int) -> None:
        self.tokenizer_json = tokenizer_json
        self.seed = seed
        self.rows = rows
        self.row_tokens = row_tokens

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        tokenizer = Tokenizer.from_str(self.tokenizer_json)
        stream = documents(f"{self.seed}:{worker.id if worker else 0}")
        carried: list[int] = []
        while True:
            batch = torch.empty(self.rows, self.row_tokens, dtype=torch.int16)
            for row in range(self.rows):
                ids, carried = carried, []
                while len(ids) < self.row_tokens:
                    document = tokenizer.encode(next(stream)).ids
                    ids = ids + document
                    if len(ids) > self.row_tokens:
                        carried = document
                batch[row] = torch.tensor(ids[: self.row_tokens], dtype=torch.int16)
            yield batch


def training_batches(
    tokenizer: Tokenizer, seed: str, rows: int, row_tokens: int, workers: int
) -> DataLoader[Any]:
    """A loader over `PackedRows`, `workers` processes ahead of the reader (0: in this process)."""
    return DataLoader(
        PackedRows(tokenizer.to_str(), seed, rows, row_tokens),
        batch_size=None,
        num_workers=workers,
        prefetch_factor=8 if workers else None,
        multiprocessing_context="spawn" if workers else None,
        pin_memory=torch.cuda.is_available(),
    )
