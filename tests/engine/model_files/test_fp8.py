"""FP8 weights and pages off the card: rounding, checkpoints of two dialects, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from twolane.engine.config import EngineConfig
from twolane.engine.cpu.engine import load_engine
from twolane.engine.cpu.pool import PoolShape
from twolane.engine.errors import CheckpointError, EngineConfigError, UnsupportedModelError
from twolane.engine.model_files.architecture import read_architecture
from twolane.engine.model_files.checkpoint import Checkpoint
from twolane.engine.model_files.fingerprint import model_fingerprint
from twolane.engine.model_files.fp8 import FP8, Fp8Rows
from twolane.engine.model_files.shard import Shard
from twolane.engine.model_files.weights import load_weights
from twolane.engine.testing import write_random_model
from twolane.layout import parse_layout

PLAIN = {"quant_method": "fp8", "activation_scheme": "dynamic", "ignored_layers": ["lm_head"]}
EIGHT_BITS = {"num_bits": 8, "type": "float", "symmetric": True}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {**EIGHT_BITS, "strategy": "channel", "dynamic": False},
            "input_activations": {**EIGHT_BITS, "strategy": "token", "dynamic": True},
        }
    },
}


def quantise(model_dir: Path, scheme: dict[str, Any], *, by_row: bool) -> dict[str, torch.Tensor]:
    """Make the model's files an FP8 checkpoint; what its matrices now stand for, by name."""
    path = model_dir / "model.safetensors"
    tensors, wide = load_file(path), {}
    for name, held in list(tensors.items()):
        if not name.endswith("_proj.weight"):
            continue
        largest = held.abs().amax(-1, keepdim=True) if by_row else held.abs().amax()
        scale = (largest / 448).float()
        tensors[name] = (held / scale).to(FP8)
        tensors[f"{name}_scale"] = scale
        wide[name] = tensors[name].float() * scale
    save_file(tensors, path)
    facts = json.loads((model_dir / "config.json").read_text())
    (model_dir / "config.json").write_text(json.dumps(facts | {"quantization_config": scheme}))
    return wide


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return write_random_model(tmp_path, "llama", seed=2, layers=1)


def test_rows_are_rounded_relative_to_their_own_largest() -> None:
    wide = torch.randn(5, 32) * torch.tensor([1e-6, 1.0, 1e6, 3.0, 0.0])[:, None]
    rows = Fp8Rows.empty(5, 32)
    rows.copy_(wide)
    assert rows.scales[:4].mul(448).allclose(wide[:4].abs().amax(-1))
    error = (rows.dequantise() - wide).norm(dim=-1) / wide.norm(dim=-1).clamp(min=1e-30)
    assert error[:4].max() < 0.04
    assert torch.equal(rows.dequantise()[4], wide[4])


@pytest.mark.parametrize(("scheme", "by_row"), [(PLAIN, False), (PLAIN, True), (COMPRESSED, True)])
def test_fp8_checkpoints_are_read_with_their_scales(
    scheme: dict[str, Any], by_row: bool, llama: Path
) -> None:
    wide = quantise(llama, scheme, by_row=by_row)
    arch = read_architecture(llama)
    assert arch.stores_fp8
    attn = "model.layers.0.self_attn"
    expected = torch.cat([wide[f"{attn}.{x}_proj.weight"] for x in "qkv"])
    for fp8 in (True, False):
        with Checkpoint(llama) as checkpoint:
            qkv = load_weights(arch, checkpoint, torch.float32, fp8=fp8).layers[0].qkv
        assert isinstance(qkv, Fp8Rows) == fp8
        assert torch.equal(qkv.dequantise() if isinstance(qkv, Fp8Rows) else qkv, expected)


@pytest.mark.parametrize("by_row", [False, True])
def test_ranks_read_their_parts_of_an_fp8_checkpoint(by_row: bool, llama: Path) -> None:
    wide = quantise(llama, PLAIN, by_row=by_row)
    attention, mlp = "model.layers.0.self_attn", "model.layers.0.mlp"
    arch = read_architecture(llama)
    with Checkpoint(llama) as checkpoint:
        held = [
            load_weights(arch, checkpoint, torch.float32, shard=Shard(i, 2), fp8=True).layers[0]
            for i in range(2)
        ]
    queries = arch.heads // 2 * arch.head_dim
    found = {
        f"{attention}.q_proj.weight": ([part.qkv for part in held], 0, slice(queries)),
        f"{mlp}.up_proj.weight": (
            [part.gate_up for part in held], 0, slice(arch.intermediate_size // 2, None)
        ),
        f"{attention}.o_proj.weight": ([part.out for part in held], 1, slice(None)),
        f"{mlp}.down_proj.weight": ([part.down for part in held], 1, slice(None)),
    }  # fmt: skip
    for name, (matrices, dim, rows) in found.items():
        parts = [m.dequantise()[rows] for m in matrices if isinstance(m, Fp8Rows)]
        assert torch.equal(torch.cat(parts, dim), wide[name]), name


def test_a_cpu_serves_an_fp8_checkpoint_in_its_own_dtype(llama: Path) -> None:
    quantise(llama, COMPRESSED, by_row=True)
    load_engine(EngineConfig(model_dir=llama, n_pages=4)).close()


def test_a_wide_checkpoint_is_rounded_as_it_is_loaded(llama: Path) -> None:
    arch = read_architecture(llama)
    with Checkpoint(llama) as checkpoint:
        wide = load_weights(arch, checkpoint, torch.float32).layers[0]
        small = load_weights(arch, checkpoint, torch.float32, fp8=True).layers[0]
    for name in ("qkv", "out", "gate_up", "down"):
        matrix, rows = getattr(wide, name), getattr(small, name)
        assert rows.shape == matrix.shape
        assert (rows.dequantise() - matrix).norm() / matrix.norm() < 0.04
    assert torch.equal(small.input_norm, wide.input_norm)


GROUP = COMPRESSED["config_groups"]["group_0"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("scheme", "complaint"),
    [
        ({"quant_method": "gptq", "bits": 4}, "quantised by 'gptq' are not supported"),
        (PLAIN | {"weight_block_size": [128, 128]}, "weight_block_size .128, 128. is not"),
        (PLAIN | {"activation_scheme": "static"}, "activation_scheme 'static' is not"),
        (PLAIN | {"ignored_layers": ["model.layers.0.mlp.down_proj"]}, "unquantised layers"),
        (COMPRESSED | {"format": "pack-quantized"}, "format 'pack-quantized' is not"),
        (COMPRESSED | {"kv_cache_scheme": EIGHT_BITS}, "kv_cache_scheme .* is not"),
        (COMPRESSED | {"config_groups": {}}, "config_groups {} is not"),
        (
            COMPRESSED | {"config_groups": {"g": GROUP | {"weights": {"num_bits": 4}}}},
            "weights .* is not supported; 8-bit float is",
        ),
        (
            COMPRESSED
            | {
                "config_groups": {
                    "g": GROUP | {"input_activations": {**EIGHT_BITS, "strategy": "tensor"}}
                }
            },
            "input_activations.dynamic None is not",
        ),
    ],
)
def test_other_schemes_are_refused_by_name(
    scheme: dict[str, Any], complaint: str, llama: Path
) -> None:
    facts = json.loads((llama / "config.json").read_text())
    (llama / "config.json").write_text(json.dumps(facts | {"quantization_config": scheme}))
    with pytest.raises(UnsupportedModelError, match=complaint):
        read_architecture(llama)


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        (lambda t, name: t.pop(f"{name}_scale"), "is FP8; its .*weight_scale is missing"),
        (
            lambda t, name: t.update({f"{name}_scale": torch.ones(7)}),
            r"has shape \[7\]; .* needs 1 or 64 scales",
        ),
        (lambda t, name: t.update({"model.other_scale": torch.ones(1)}), "model.other_scale"),
    ],
)
def test_scales_that_do_not_fit_are_named(
    edit: Callable[[dict[str, torch.Tensor], str], object], complaint: str, llama: Path
) -> None:
    quantise(llama, PLAIN, by_row=False)
    tensors = load_file(llama / "model.safetensors")
    edit(tensors, "model.layers.0.self_attn.q_proj.weight")
    save_file(tensors, llama / "model.safetensors")
    with pytest.raises(CheckpointError, match=complaint):
        load_engine(EngineConfig(model_dir=llama, n_pages=4)).close()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"weights": "int4"}, "weights is 'int4'"),
        ({"kv_dtype": "int8"}, "kv_dtype is 'int8'"),
        ({"weights": "fp8", "exact": True}, "exact mode needs weights of another dtype"),
        ({"kv_dtype": "fp8", "page_tokens": 16}, "page_tokens is 16; .* it must be 64"),
        ({"kv_dtype": "fp8", "page_tokens": 128}, "page_tokens is 128; .* it must be 64"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(EngineConfigError, match=complaint):
        EngineConfig(model_dir=Path("/nowhere"), **options)


@pytest.mark.parametrize("options", [{"weights": "fp8", "exact": False}, {"kv_dtype": "fp8"}])
def test_a_cpu_refuses_fp8_of_its_own(options: dict[str, Any], llama: Path) -> None:
    with pytest.raises(EngineConfigError, match="need a GPU"):
        load_engine(EngineConfig(model_dir=llama, n_pages=4, **options))


def test_workers_that_differ_in_fp8_weights_are_never_paired_nor_exact_ones_in_kv(
    llama: Path,
) -> None:
    arch = read_architecture(llama)

    def fingerprint(exact: bool, fp8: bool, kv_dtype: str) -> str:
        return model_fingerprint(
            arch, revision="1", dtype="bfloat16", exact=exact, threads=1, attention="",
            fp8_weights=fp8, kv_dtype=kv_dtype,
        )  # fmt: skip

    sides = [(fp8, kv_dtype) for fp8 in (True, False) for kv_dtype in ("auto", "fp8")]
    assert len({fingerprint(True, *side) for side in sides}) == 4
    assert len({fingerprint(False, *side) for side in sides}) == 2
    assert fingerprint(False, False, "auto") == fingerprint(False, False, "fp8")


def test_an_fp8_page_has_room_for_its_scales_on_both_sides() -> None:
    shape = PoolShape(layers=3, kv_heads=2, head_dim=80, page_tokens=64, dtype=FP8)
    assert shape.page_bytes == 3 * 2 * 2 * 64 * (80 + 4)
    assert parse_layout(shape.layout).page_bytes == shape.page_bytes
