"""Parts of all ranks, laid side by side, are the whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from twolane.engine.errors import CheckpointError, EngineConfigError
from twolane.engine.model_files.architecture import Architecture, read_architecture
from twolane.engine.model_files.checkpoint import Checkpoint
from twolane.engine.model_files.fp8 import Fp8Rows, Matrix
from twolane.engine.model_files.shard import Shard
from twolane.engine.model_files.weights import LayerWeights, Weights, load_weights, random_weights
from twolane.engine.testing import write_random_model

SHAPE: dict[str, Any] = {"attention_bias": True, "mlp_bias": True, "vocab_size": 323, "heads": 8}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    return write_random_model(directory, "llama", seed=5, layers=1, head_dim=16, **SHAPE)


def parts(model: Path, ranks: int) -> tuple[Architecture, Weights, list[Weights]]:
    arch = read_architecture(model)
    with Checkpoint(model) as checkpoint:
        whole = load_weights(arch, checkpoint, torch.float32)
        cut = [
            load_weights(arch, checkpoint, torch.float32, shard=Shard(rank, ranks))
            for rank in range(ranks)
        ]
    return arch, whole, cut


def wide(matrix: Matrix) -> torch.Tensor:
    return matrix.dequantise() if isinstance(matrix, Fp8Rows) else matrix


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_parts_make_up_the_whole(ranks: int, model: Path) -> None:
    arch, whole, cut = parts(model, ranks)
    layer, layers = whole.layers[0], [weights.layers[0] for weights in cut]
    q_size, kv_size = arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
    copies = max(1, ranks // arch.kv_heads)  # of each key-value head

    def joined(name: str, index: int, sizes: list[int]) -> torch.Tensor:
        held = [torch.split(getattr(part, name), sizes)[index] for part in layers]
        return torch.cat(held if index == 0 or copies == 1 else held[::copies])

    local = Shard(0, ranks).local(arch)
    sizes = [local.heads * arch.head_dim] + [local.kv_heads * arch.head_dim] * 2
    for name in ("qkv", "qkv_bias"):
        expected = torch.split(getattr(layer, name), [q_size, kv_size, kv_size])
        for i in range(3):
            assert torch.equal(joined(name, i, sizes), expected[i]), (name, i)
    for name in ("gate_up", "gate_up_bias"):
        for i in range(2):
            found = joined(name, i, [local.intermediate_size] * 2) if copies == 1 else torch.cat(
                [getattr(part, name).chunk(2)[i] for part in layers]
            )  # fmt: skip
            assert torch.equal(found, getattr(layer, name).chunk(2)[i]), (name, i)
    for name in ("out", "down"):
        assert torch.equal(torch.cat([getattr(p, name) for p in layers], 1), getattr(layer, name))
    assert torch.equal(torch.cat([w.head for w in cut])[:323], whole.head)
    assert torch.equal(cut[-1].embedding, whole.embedding)


def test_ranks_that_share_a_key_value_head_hold_the_same(model: Path) -> None:
    arch, _, cut = parts(model, 4)
    assert (arch.kv_heads, Shard(0, 4).local(arch).kv_heads) == (2, 1)
    keys = [wide(weights.layers[0].qkv)[2 * 16 : 3 * 16] for weights in cut]
    assert torch.equal(keys[0], keys[1])
    assert torch.equal(keys[2], keys[3])
    assert not torch.equal(keys[1], keys[2])


def test_biases_of_sums_are_added_once(model: Path) -> None:
    _, whole, cut = parts(model, 2)
    held: list[LayerWeights] = [weights.layers[0] for weights in cut]
    assert held[0].out_bias is not None
    assert torch.equal(held[0].out_bias, whole.layers[0].out_bias)  # type: ignore[arg-type]
    assert held[0].down_bias is not None
    assert held[1].out_bias is held[1].down_bias is None


@pytest.mark.parametrize("tied", [True, False])
def test_random_weights_of_ranks_are_parts_of_the_same(tied: bool, model: Path) -> None:
    arch = replace(read_architecture(model), tied_embeddings=tied)
    whole = random_weights(arch, torch.bfloat16, 3)
    cut = [random_weights(arch, torch.bfloat16, 3, shard=Shard(i, 2)) for i in range(2)]
    assert torch.equal(torch.cat([w.head for w in cut])[:323], whole.head)
    assert torch.equal(cut[1].embedding, whole.embedding)
    down = [wide(weights.layers[0].down) for weights in (whole, *cut)]  # drawn after others
    assert torch.equal(torch.cat(down[1:], 1), down[0])
    assert torch.equal(cut[1].norm, whole.norm)


def test_a_tied_head_is_a_view_where_the_vocabulary_divides(model: Path) -> None:
    arch = replace(read_architecture(model), tied_embeddings=True, vocab_size=320)
    weights = random_weights(arch, torch.float32, 0, shard=Shard(1, 2))
    assert weights.head.data_ptr() == weights.embedding[160:].data_ptr()


@pytest.mark.parametrize(
    ("changes", "ranks", "complaint"),
    [
        ({}, 3, "8 attention heads do not divide over 3 ranks"),
        ({"heads": 12, "kv_heads": 3}, 4, "3 key-value heads do not divide over 4 ranks"),
        ({"heads": 12, "kv_heads": 12, "intermediate_size": 34}, 4, "34 of width"),
    ],
)
def test_models_that_do_not_divide_are_refused(
    changes: dict[str, Any], ranks: int, complaint: str, model: Path
) -> None:
    arch = replace(read_architecture(model), **changes)
    with pytest.raises(EngineConfigError, match=complaint):
        Shard(0, ranks).local(arch)


def test_a_misshapen_tensor_is_named_with_its_whole_shape(model: Path) -> None:
    arch = replace(read_architecture(model), vocab_size=400, tied_embeddings=False)
    with (
        Checkpoint(model) as checkpoint,
        pytest.raises(CheckpointError, match=r"has shape \[323, 64\]; .* requires \[400, 64\]"),
    ):
        load_weights(arch, checkpoint, torch.float32, shard=Shard(1, 2))
