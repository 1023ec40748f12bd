"""Reads the FP8 options of a config.json strictly: any other scheme would give wrong weights.

Two formats are known, each with FP8 matrices and a `weight_scale`, one per matrix or one per row:

    {"quant_method": "fp8", "activation_scheme": "dynamic", "ignored_layers": ["lm_head"]}
    {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
     "config_groups": {"group_0": {"targets": ["Linear"], "weights": {...}, ...}}}

Activation scales are computed at run time per row, which is what `dynamic` means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from twolane.engine.errors import UnsupportedModelError

_KEPT = {"lm_head", "re:.*lm_head", "re:.*lm_head.*", "model.embed_tokens"}  # unquantised


def stores_fp8(raw: Mapping[str, Any]) -> bool:
    """Whether the checkpoint of this config.json has FP8 weights. Raises UnsupportedModelError for
    any other quantisation, naming what is not supported."""
    found = raw.get("quantization_config")
    if not found:
        return False
    if not isinstance(found, dict):
        raise UnsupportedModelError("quantization_config is not an object")
    method = found.get("quant_method")
    if method is None and any(name.startswith("load_in_") for name in found):
        method = "bitsandbytes"  # from before it wrote quant_method
    if method is None:
        raise UnsupportedModelError(f"quantization_config names no quant_method: {found}")
    if method == "fp8":
        _check_fp8(found)
    elif method == "compressed-tensors":
        _check_compressed(found)
    else:
        raise UnsupportedModelError(
            f"checkpoints quantised by {method!r} are not supported; FP8 ones by 'fp8' or "
            "'compressed-tensors', and bf16 and f32 ones, are"
        )
    return True


def _check_fp8(found: Mapping[str, Any]) -> None:
    if found.get("weight_block_size") is not None:
        _refuse("weight_block_size", found["weight_block_size"], "one scale per matrix or row")
    if found.get("activation_scheme", "dynamic") != "dynamic":
        _refuse("activation_scheme", found["activation_scheme"], "dynamic")
    if found.get("fmt", "e4m3") != "e4m3":
        _refuse("fmt", found["fmt"], "e4m3")
    ignored = found.get("ignored_layers") or found.get("modules_to_not_convert")
    _check_kept(ignored or [])


def _check_compressed(found: Mapping[str, Any]) -> None:
    if found.get("format") != "float-quantized":
        _refuse("format", found.get("format"), "float-quantized")
    if found.get("kv_cache_scheme") is not None:
        _refuse("kv_cache_scheme", found["kv_cache_scheme"], "none")
    if found.get("sparsity_config"):
        _refuse("sparsity_config", found["sparsity_config"], "none")
    groups = found.get("config_groups")
    if not isinstance(groups, dict) or len(groups) != 1:
        _refuse("config_groups", groups, "one group")
    (group,) = groups.values()
    if not isinstance(group, dict):
        _refuse("config_groups", group, "an object")
    if group.get("targets") != ["Linear"]:
        _refuse("targets", group.get("targets"), "['Linear']")
    weights, activations = group.get("weights") or {}, group.get("input_activations") or {}
    for name, part, strategies in (
        ("weights", weights, ("tensor", "channel")),
        ("input_activations", activations, ("token", "tensor")),
    ):
        if not isinstance(part, dict):
            _refuse(name, part, "an object")
        if (part.get("num_bits"), part.get("type")) != (8, "float"):
            _refuse(name, part, "8-bit float")
        if part.get("strategy") not in strategies:
            _refuse(f"{name}.strategy", part.get("strategy"), " or ".join(strategies))
        if part.get("symmetric", True) is not True:
            _refuse(f"{name}.symmetric", part.get("symmetric"), "true")
    if activations.get("dynamic") is not True:
        _refuse("input_activations.dynamic", activations.get("dynamic"), "true")
    _check_kept(found.get("ignore") or [])


def _check_kept(names: list[str]) -> None:
    """All layers must be FP8: matrices that are multiplied together share a dtype."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        _refuse("unquantised layers", names, "a list of names")
    others = sorted(set(names) - _KEPT)
    if others:
        _refuse("unquantised layers", others[:4], "lm_head only")


def _refuse(what: str, found: object, supported: str) -> NoReturn:
    raise UnsupportedModelError(
        f"quantization_config: {what} {found!r} is not supported; {supported} is"
    )
