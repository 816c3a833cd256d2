"""Tiny models of every type that transformers registers: the defaults of its config with small sizes.

`CHANGES` has what a type needs besides, so that one forward pass of its random weights works.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench import torch_stack
from tests.support.small_inputs import edit_json
from tests.support.thorough import THOROUGH

VOCABULARY, LAYERS = 264, 2
SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim", "lru_width"), 64),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "d_ff", "mlp_intermediate_size"), 128),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"), 64),
    **dict.fromkeys(("intermediate_size_mlp", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_hidden_size"), 128),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), LAYERS),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_encoder_layers", "num_decoder_layers"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "num_global_key_value_heads"), 2),
    **dict.fromkeys(("head_dim", "global_head_dim", "attention_head_dim", "d_kv", "v_head_dim"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "rotary_dim"), 16),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 32),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCABULARY),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 512),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "top_k_experts"), 2),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group", "decoder_sparse_step", "first_k_dense_replace"), 1),
    **dict.fromkeys(("mamba_d_ssm", "conv_dim"), 64),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "linear_num_value_heads", "time_step_rank"), 4),
    **dict.fromkeys(("mamba_d_head", "mamba_d_state", "mamba_head_dim", "mamba_headdim", "ssm_state_size"), 16),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "mamba_chunk_size", "chunk_size"), 16),
    **dict.fromkeys(("mamba_n_groups", "mamba_ngroups", "n_groups", "mamba_expand", "expand"), 1),
    **dict.fromkeys(("n_mamba_heads", "linear_num_key_heads", "index_n_heads", "mamba_dt_rank"), 2),
    **dict.fromkeys(("attn_layer_period", "expert_layer_period"), 2),
    **dict.fromkeys(("attn_layer_offset", "expert_layer_offset"), 1),
    **dict.fromkeys(("state_size", "hidden_size_per_layer_input", "index_head_dim", "block_size"), 16),
    **dict.fromkeys(("sliding_window", "attention_window_size", "attention_chunk_size", "window_size"), 16),
    **dict.fromkeys(("laurel_rank", "index_topk"), 8),
    **dict.fromkeys(("num_kv_shared_layers", "num_nextn_predict_layers", "pad_token_id"), 0),
    "bos_token_id": 1,
    "eos_token_id": 2,
    "is_decoder": True,
}
UNSET_TOO = {"head_dim", "num_key_value_heads", "num_experts_per_tok", "topk_group", "n_group", "pad_token_id"}
MAX_PARAMETERS = 20_000_000
CHANGES: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {"num_expert_group": 1},
    "bamba": {"attn_layer_indices": [1]},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "zamba2": {"n_mamba_heads": 4},
    "xmod": {"default_language": "en_XX"},
    "zaya": {"num_experts_per_tok": 1},
}


# Types unlike each other in their files, in what is in memory or in how samples share a row, and some that once failed.
UNLIKE = (
    *("apertus", "bamba", "bert", "bloom", "codegen", "cohere2", "cpmant", "deepseek_v3", "deepseek_v32"),
    *("deepseek_v4", "doge", "ernie4_5_moe", "falcon", "falcon_h1", "gemma3n_text", "gpt2", "gpt_neo", "gpt_neox"),
    *("gpt_oss", "granitemoe", "hrm_text", "hy_v4", "inkling_text", "jetmoe", "lfm2_moe", "llama4_text", "minicpm3"),
    *("minimax", "mixtral", "modernbert-decoder", "mpt", "nemotron_h", "olmo_hybrid", "opt", "prophetnet"),
    *("qwen3_next", "xlnet", "zamba2", "zaya"),
)


class NoTinyModel(ValueError):
    """Type of which no tiny model of random weights can be made."""


def types(modules: torch_stack.Stack) -> tuple[str, ...]:
    """List the model types that transformers has a causal language model for."""
    names = modules.transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return tuple(sorted(names))


def text_types(modules: torch_stack.Stack) -> list[str]:
    """List the types without those whose text model is another type."""
    listed, names = types(modules), list[str]()
    for name in listed:
        with contextlib.suppress(Exception):  # each type has its own; it has no tiny model
            text = default_config(modules, name).model_type
            if text == name or text not in listed:
                names.append(name)
    return names


def tested_types(modules: torch_stack.Stack) -> Sequence[str]:
    """List `text_types` in a thorough run, else the UNLIKE ones."""
    return text_types(modules) if THOROUGH else UNLIKE


def default_config(modules: torch_stack.Stack, model_type: str) -> Any:
    """Return the default config of the type's text model."""
    return modules.transformers.AutoConfig.for_model(model_type).get_text_config()


def tiny_config(modules: torch_stack.Stack, model_type: str, **changes: Any) -> Any:
    """Make a small config of the type's text model."""
    default = default_config(modules, model_type)
    sizes = dict(_sizes(default))
    return type(default)(**{**sizes, **CHANGES.get(model_type, {}), **changes})


def _sizes(default: Any) -> Iterator[tuple[str, Any]]:
    known = default.to_dict()
    depth = known.get("num_hidden_layers") or LAYERS
    for name, value in known.items():
        if name in SIZES and (value is not None or name in UNSET_TOO) and not isinstance(value, (list, dict)):
            is_latent = name == "num_key_value_heads" and "kv_lora_rank" in known
            yield name, SIZES["num_attention_heads"] if is_latent else SIZES[name]
        elif isinstance(value, list) and len(value) == depth:
            kinds = list(dict.fromkeys(value)) if all(isinstance(item, (str, int)) for item in value) else value
            yield name, (kinds + kinds[-1:] * LAYERS)[:LAYERS]


def write_shapes(modules: torch_stack.Stack, folder: Path, model_type: str, **sizes: Any) -> None:
    """Write the folder of a model of any size: its config, and weights files of its shapes without data."""
    config = modules.transformers.AutoConfig.for_model(model_type, **sizes)
    with modules.torch.device("meta"):
        model = modules.transformers.AutoModelForCausalLM.from_config(config)
    config.save_pretrained(folder)
    header, end = {}, 0
    for name, tensor in model.state_dict().items():
        begin, end = end, end + 2 * tensor.numel()
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def tiny_model(modules: torch_stack.Stack, model_type: str, **changes: Any) -> Any:
    """Make a small model of random weights in bf16. Raises NoTinyModel."""
    torch = modules.torch
    try:
        config = tiny_config(modules, model_type, **changes)
        make = partial(modules.transformers.AutoModelForCausalLM.from_config, config, dtype=torch.bfloat16)
        with torch.device("meta"):
            parameters = sum(parameter.numel() for parameter in make().parameters())
        if parameters > MAX_PARAMETERS:
            raise NoTinyModel(f"{model_type}: {parameters:,} parameters")
        torch.manual_seed(1)
        return make()
    except Exception as error:  # each type has its own
        raise NoTinyModel(f"{model_type}: {error}") from error


def as_mxfp4(folder: Path) -> None:
    """Give the folder of a tiny gpt-oss its experts as they are published, of random values."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        count, columns, rows = tensors.pop(name).shape
        tensors[f"{name}_blocks"] = torch.randint(0, 256, (count, rows, columns // 32, 16), dtype=torch.uint8)
        tensors[f"{name}_scales"] = torch.randint(120, 126, (count, rows, columns // 32), dtype=torch.uint8)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    edit_json(folder / "config.json", quantization_config={"quant_method": "mxfp4"})
