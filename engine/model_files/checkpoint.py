"""Reads a directory of safetensors shards tensor by tensor; anything unexpected is an error."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from twolane.engine.errors import CheckpointError, UnsupportedModelError
from twolane.engine.model_files.fp8 import FP8, Fp8Rows, Matrix
from twolane.engine.model_files.shard import Cut
from twolane.engine.model_files.weight_files import shard_files
from twolane.lfs import is_lfs_pointer, lfs_complaint

# Written to some checkpoints by older tools; not needed.
IGNORED_SUFFIX = ".rotary_emb.inv_freq"
COMPARED_ROWS = 4096  # rows of two matrices compared at a time
# Suffixes that GPTQ, AWQ, MLX and bitsandbytes use for weights. FP8 uses `weight_scale`.
QUANTISED = (
    ".qweight", ".qzeros", ".scales", ".g_idx", ".absmax", ".quant_map", ".quant_state", ".SCB"
)  # fmt: skip


class Checkpoint:
    """The tensors of a model directory: one `model.safetensors`, or the shards of an index.

    Raises CheckpointError for missing or damaged files. Use as a context manager: files stay mapped
    until it exits.
    """

    def __init__(self, model_dir: Path) -> None:
        self.files = shard_files(model_dir)
        self._open: dict[str, Any] = {}  # tensor name -> the handle of its shard
        self._scales_read: set[str] = set()
        for path in self.files:
            try:
                handle = safe_open(str(path), framework="pt")
                names: list[str] = handle.keys()  # type: ignore[no-untyped-call]  # no stub
            except (SafetensorError, OSError) as error:
                if is_lfs_pointer(path):
                    raise CheckpointError(lfs_complaint(path)) from error
                raise CheckpointError(f"{path} is not a valid safetensors file: {error}") from error
            for name in names:
                if name in self._open:
                    raise CheckpointError(f"tensor {name} is in more than one shard")
                self._open[name] = handle

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.clear()

    def __contains__(self, name: str) -> bool:
        return name in self._open

    def copy_into(self, name: str, target: Matrix, cut: Cut | None = None) -> None:
        """Copy one tensor, cast to the target's dtype; its shape must be the target's. With `cut`,
        reads only that part. An FP8 matrix is copied with its scales, or dequantised if the target
        is not FP8."""
        handle = self._open.get(name)
        if handle is None:
            raise CheckpointError(f"tensor {name} is missing from {self._where()}")
        held = handle.get_slice(name)
        shape, wanted = list(held.get_shape()), list(target.shape)
        if cut is not None:
            wanted = list(cut.whole_shape(tuple(wanted)))
        if shape != wanted:
            raise CheckpointError(f"tensor {name} has shape {shape}; config.json requires {wanted}")
        if cut is None:
            source = handle.get_tensor(name)
        else:
            span = slice(cut.start, cut.start + cut.size)
            source = held[span] if cut.dim == 0 else held[:, span]
        if source.dtype == FP8:
            scales = self._scales(name, shape[0])
            rows = Fp8Rows(source, cut.of(scales) if cut is not None and cut.dim == 0 else scales)
            if isinstance(target, Fp8Rows):
                target.copy_(rows)
            else:
                target.copy_(rows.dequantise())
            return
        if not source.is_floating_point() or source.dtype.itemsize < 2:
            raise CheckpointError(f"tensor {name} is {source.dtype}; float weights are supported")
        target.copy_(source)

    def _scales(self, name: str, rows: int) -> torch.Tensor:
        """`[rows]` float32: the scales of an FP8 matrix; the checkpoint has one per row, or one for
        all."""
        scale = f"{name}_scale"
        handle = self._open.get(scale)
        if handle is None:
            raise CheckpointError(f"tensor {name} is FP8; its {scale} is missing")
        held: torch.Tensor = handle.get_tensor(scale)
        if held.numel() not in (1, rows) or not held.is_floating_point():
            raise CheckpointError(
                f"tensor {scale} has shape {list(held.shape)}; {name} needs 1 or {rows} scales"
            )
        self._scales_read.add(scale)
        return held.float().reshape(-1).expand(rows)

    def refuse_quantised(self) -> None:
        """Raise if tensors use a quantisation that config.json does not mention."""
        for name in self._open:
            if name.endswith(QUANTISED):
                raise UnsupportedModelError(
                    f"the weights are quantised ({name}), though config.json has no "
                    "quantization_config; FP8, bf16 and f32 checkpoints are supported"
                )

    def refuse_unequal(self, name: str, other: str, cut: Cut) -> None:
        """Raise unless rows `cut` of two matrices are equal, or the checkpoint lacks `name`."""
        if name not in self._open:
            return
        pair = [self._open[each].get_slice(each) for each in (name, other)]
        for start in range(cut.start, cut.start + cut.size, COMPARED_ROWS):
            rows = slice(start, min(start + COMPARED_ROWS, cut.start + cut.size))
            if not torch.equal(*(held[rows].float() for held in pair)):
                raise CheckpointError(
                    f"tie_word_embeddings is true, but {name} differs from {other}: set it false "
                    "in config.json to use the tensor, or remove the tensor from the checkpoint"
                )

    def refuse_extras(self, used: Iterable[str]) -> None:
        """Raise for tensors that were not read: the model has parts that would be ignored."""
        extra = sorted(set(self._open) - set(used) - self._scales_read)
        extra = [name for name in extra if not name.endswith(IGNORED_SUFFIX)]
        if extra:
            shown = ", ".join(extra[:4])
            raise CheckpointError(f"{len(extra)} tensors are not part of this model: {shown}")

    def _where(self) -> str:
        return ", ".join(str(path) for path in self.files[:2]) + (", …" * (len(self.files) > 2))
