"""docs/supported-models.md, made by asking the code: each case is given to the reader that serving
uses, and what that accepts or raises is the table's cell.

Nothing is loaded but files of a few bytes in a temporary folder.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.docs.tables import table
from twolane.deploy.spec.declared_options import declared
from twolane.deploy.spec.settings import BUNDLED
from twolane.engine import config
from twolane.engine.cuda.startup.load import FP8_WIDTH, HEAD_DIM_STEP, MOST_HEAD_DIM
from twolane.engine.errors import EngineError
from twolane.engine.model_files.architecture import FAMILIES, Architecture, read_architecture
from twolane.engine.model_files.checkpoint import Checkpoint
from twolane.engine.model_files.quantisation import stores_fp8
from twolane.engine.model_files.rope import read_rope
from twolane.engine.model_files.weight_files import shard_files
from twolane.router.text.codec import TextCodec
from twolane.router.text.model_defaults import read_defaults
from twolane.router.text.model_files import ModelFilesError, chat_template

YES = "yes"
SMALL: Mapping[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
OTHERS = (
    "Gemma2ForCausalLM", "MixtralForCausalLM", "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM",
    "Phi3ForCausalLM", "GPT2LMHeadModel",
)  # fmt: skip
ROPES: Mapping[str, Mapping[str, Any]] = {
    "default": {"rope_type": "default"},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    **{
        kind: {"rope_type": kind, "factor": 2.0}
        for kind in ("linear", "dynamic", "yarn", "longrope")
    },
    "default, `partial_rotary_factor` 0.5": {"rope_type": "default", "partial_rotary_factor": 0.5},
}
_FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True}


def _compressed(weights: str, activations: str, **more: Any) -> dict[str, Any]:
    group = {
        "targets": ["Linear"],
        "weights": {**_FLOAT8, "strategy": weights},
        "input_activations": {**_FLOAT8, "strategy": activations, "dynamic": True},
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        **more,
    }


QUANTISATIONS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "`fp8`, one scale a matrix or a row, dynamic activations": {"quant_method": "fp8"},
    "`fp8`, static activations": {"quant_method": "fp8", "activation_scheme": "static"},
    "`fp8`, blocks of 128 x 128": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "`fp8`, a layer beside lm_head kept unquantised": {
        "quant_method": "fp8",
        "ignored_layers": ["lm_head", "model.layers.0.mlp.down_proj"],
    },
    "`compressed-tensors`, float8 a row (channel), activations a token": _compressed(
        "channel", "token"
    ),
    "`compressed-tensors`, float8 a matrix (tensor)": _compressed("tensor", "tensor"),
    "`compressed-tensors`, pack-quantized (int4)": _compressed(
        "channel", "token", format="pack-quantized"
    ),
    "`compressed-tensors`, with a kv_cache_scheme": _compressed(
        "channel", "token", kv_cache_scheme={"num_bits": 8}
    ),
    **{f"`{name}`": {"quant_method": name} for name in ("gptq", "awq", "bitsandbytes", "mxfp4")},
}


def page() -> str:
    """The whole page."""
    with tempfile.TemporaryDirectory() as folder:
        return "\n\n".join(_parts(Path(folder))) + "\n"


def _parts(folder: Path) -> Iterable[str]:
    yield "# Supported models"
    yield (
        "Made by `make docs` (`tests/docs/supported_models.py`), which asks the code that reads a "
        "model. Each row is a case that was tried; what is refused is refused at the start, with "
        "the message shown. A test compares this page with what the program makes.\n\n"
        "A model is a directory in Hugging Face's format, an id of the Hugging Face Hub, or "
        f"`{BUNDLED}` (a small model that comes with twolane)."
    )
    yield "## Architectures\n\nThe first name of `architectures` in config.json decides."
    yield table(
        ("architecture", "read", "grouped heads", "biases", "q/k norm", "sliding window"),
        [_family_row(name, folder) for name in (*FAMILIES, *OTHERS)],
    )
    yield (
        "Any number of layers, heads and key-value heads that divides; `head_dim` is even, and on "
        f"a GPU a multiple of {HEAD_DIM_STEP} up to {MOST_HEAD_DIM}. Embeddings may be tied. "
        + _activations(folder)
    )
    yield "## Rotary embedding"
    yield table(
        ("kind", "served"),
        [(name, _try(read_rope, {"rope_parameters": raw}, 64)) for name, raw in ROPES.items()],
    )
    yield "Both spellings are read: `rope_parameters`, and `rope_theta` with `rope_scaling`."
    yield "## Weights"
    yield table(("files", "read"), _file_rows(folder / "files"))
    yield table(("dtype of a tensor", "read"), _tensor_rows(folder / "tensors"))
    yield table(
        ("`quantization_config` of config.json", "served"),
        [
            (name, _try(stores_fp8, {"quantization_config": raw}))
            for name, raw in QUANTISATIONS.items()
        ],
    )
    yield (
        "FP8 is e4m3 with a float32 scale a row or a matrix. On a GPU FP8 matrices stay FP8; a CPU "
        "reads them into `--dtype`. `--weights fp8` rounds the layers' other matrices to FP8 as "
        "they are loaded, and leaves embeddings, norms and the head. FP8 products need a GPU, "
        f"`--dtype bfloat16` and widths that are multiples of {FP8_WIDTH}, and are not "
        "available with `--exact`."
    )
    yield "## What a worker computes in"
    yield table(
        ("option", "values"),
        [
            *(
                (f"`{each.flag}`", ", ".join(each.option.choices))
                for each in declared(config.EngineConfig)
                if each.option.choices
            ),
            ("`--tensor-parallel`", f"1 to {config.MAX_RANKS}"),
            (
                "`--page-tokens`",
                f"CPU: a multiple of 16, {config.CPU_PAGE_TOKENS} by default; GPU: "
                f"{config.GPU_PAGE_TOKENS}",
            ),
        ],
    )
    yield "## Tokenizer, chat template, sampling defaults"
    yield table(("file", "what it is for"), _text_rows(folder / "text"))
    yield (
        "Without tokenizer.json the model is served by token ids alone: text prompts, chat and "
        "stop strings are refused. Templates run in jinja2's immutable sandbox with the filters "
        "and globals that transformers offers; a model whose template is missing or broken serves "
        "plain prompts."
    )


def _try(read: Callable[..., object], *arguments: object) -> str:
    """`yes`, or no and why."""
    try:
        read(*arguments)
    except (EngineError, ModelFilesError) as error:
        return f"no: {error}"
    return YES


def _model_dir(folder: Path, **fields: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**SMALL, **fields}))
    return folder


def _family_row(name: str, folder: Path) -> Sequence[str]:
    def read(**fields: Any) -> Architecture:
        return read_architecture(_model_dir(folder / name, architectures=[name], **fields))

    if (why := _try(read)) != YES:
        return (name, why.partition(";")[0], "", "", "", "")
    plain = read()
    asked = read(
        attention_bias=True, mlp_bias=True, use_sliding_window=True, sliding_window=8,
        max_window_layers=0,
    )  # fmt: skip
    return (
        name,
        YES,
        YES if plain.group > 1 else "no",
        _biases(plain, asked),
        YES if plain.qk_norm else "no",
        YES if any(asked.windows) else "no",
    )


def _biases(plain: Architecture, asked: Architecture) -> str:
    fixed = [name for name, held in _bias_facts(plain) if held]
    optional = [name for name, held in _bias_facts(asked) if held and name not in fixed]
    parts = [f"always {', '.join(fixed)}"] if fixed else []
    parts += [f"by config.json {', '.join(optional)}"] if optional else []
    return "; ".join(parts) or "none"


def _bias_facts(arch: Architecture) -> Sequence[tuple[str, bool]]:
    return (("q/k/v", arch.qkv_bias), ("attention output", arch.out_bias), ("MLP", arch.mlp_bias))


def _activations(folder: Path) -> str:
    name = next(iter(FAMILIES))
    served = [
        act
        for act in ("silu", "gelu", "gelu_pytorch_tanh", "relu")
        if _try(read_architecture, _model_dir(folder, architectures=[name], hidden_act=act)) == YES
    ]
    return f"`hidden_act` is {' or '.join(served)}."


def _file_rows(folder: Path) -> Iterable[Sequence[str]]:
    folder.mkdir()
    (folder / "pytorch_model.bin").touch()
    refusal = _try(shard_files, folder).replace(f"{folder} has", "the directory has")
    yield ("`pytorch_model.bin` alone", refusal)
    (folder / "model-1.safetensors").touch()
    index = {"weight_map": {"model.norm.weight": "model-1.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    yield ("`model.safetensors.index.json` and its shards", _try(shard_files, folder))
    (folder / "model.safetensors").touch()
    yield ("`model.safetensors`", _try(shard_files, folder))


def _tensor_rows(folder: Path) -> Iterable[Sequence[str]]:
    folder.mkdir()
    path = folder / "model.safetensors"
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int8)
    for dtype in dtypes:
        stored = torch.ones(2, 4, dtype=torch.float32).to(dtype)
        for scales in ((), ("w_scale",)) if dtype is torch.float8_e4m3fn else ((),):
            save_file({"w": stored, **{name: torch.ones(2) for name in scales}}, path)
            name = str(dtype).removeprefix("torch.") + (", with `weight_scale`" if scales else "")
            yield (name, _read_tensor(folder))


def _read_tensor(folder: Path) -> str:
    with Checkpoint(folder) as checkpoint:
        answer = _try(checkpoint.copy_into, "w", torch.empty(2, 4))
    return answer.replace("tensor w ", "tensor NAME ").replace("w_scale", "NAME_scale")


def _text_rows(folder: Path) -> Iterable[Sequence[str]]:
    folder.mkdir()
    (folder / "tokenizer.model").touch()
    assert TextCodec.load(folder) is None
    yield ("`tokenizer.json`", "required for text, whatever kind of tokenizer it describes")
    yield ("`tokenizer.model`", "not read: such a model is served by token ids alone")
    template = "{{ messages[0].content }}"
    for name, text in (
        ("tokenizer_config.json", json.dumps({"chat_template": template})),
        ("chat_template.json", json.dumps({"chat_template": template})),
        ("chat_template.jinja", template),
    ):
        place = folder / name
        place.write_text(text)
        held = json.loads(text) if name == "tokenizer_config.json" else {}
        assert _try(chat_template, folder, held) == YES, name
        place.unlink()
    yield (
        "`chat_template.jinja`, `chat_template.json`, `tokenizer_config.json`",
        "the chat template, from the first of them that has one",
    )
    several = {"chat_template": [{"name": "default", "template": template}]}
    assert _try(chat_template, folder, several) == YES
    yield ("several templates in a list", "the one called `default`; without it chat is refused")
    fields = {"temperature": 0.5, "top_k": 5, "top_p": 0.5, "min_p": 0.1, "repetition_penalty": 1.1}
    other = {"typical_p": 0.5, "max_new_tokens": 7}
    (folder / "generation_config.json").write_text(json.dumps({**fields, **other}))
    found = read_defaults(folder)
    names = [*found.sampling, *(["max_new_tokens"] if found.max_tokens == 7 else [])]
    yield (
        "`generation_config.json`",
        f"defaults of a request: {', '.join(names)}; also the tokens that end an answer",
    )
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>"}))
    model = _model_dir(folder, architectures=[next(iter(FAMILIES))], eos_token_id=5)
    assert read_architecture(model).eos_token_ids == (5,)
    yield (
        "`eos_token` of `tokenizer_config.json`",
        "ends no answer: only `eos_token_id` of generation_config.json, or else of config.json, "
        "does",
    )
