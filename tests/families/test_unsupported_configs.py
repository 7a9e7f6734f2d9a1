"""Published configs with unsupported settings are rejected, naming the key."""

from __future__ import annotations

from typing import Any

import pytest
import transformers

from glassformer.errors import GlassformerError
from glassformer.families.family import Config
from glassformer.families.registry import family_of_config
from tests.families.cases import (
    ALBERT,
    BART,
    BERT,
    DEBERTA,
    ELECTRA,
    FALCON,
    GPT_NEOX,
    LLAMA,
    MARIAN,
    MISTRAL,
    MODERNBERT,
    PALM,
    PATCHTST,
    T5,
    VIT,
)

NEW = {"new_decoder_architecture": True}


def read(case: tuple[str, dict[str, Any]], change: dict[str, Any]) -> None:
    name, settings = case
    values = getattr(transformers, name).config_class(**settings).to_dict()
    config = Config({**values, "architectures": [name], **change})
    family_of_config(config).from_config(config)


@pytest.mark.parametrize(
    ("case", "change", "fact"),
    [
        (LLAMA[0], {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        (LLAMA[0], {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
        (LLAMA[0], {"rope_scaling": {"rope_type": "linear"}}, "factor"),
        (LLAMA[0], {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters"),
        (LLAMA[0], {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        (LLAMA[0], {"pretraining_tp": 2}, "pretraining_tp"),
        (LLAMA[0], {"num_key_value_heads": 5}, ""),
        (LLAMA[0], {"hidden_act": ["silu"]}, "hidden_act"),
        (LLAMA[0], {"quantization_config": {"bits": 4}}, "quantization_config"),
        (MISTRAL[0], {"layer_types": ["sliding_attention", "full_attention"]}, "layer_types"),
        (FALCON[0], {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn"),
        (FALCON[0], {**NEW, "parallel_attn": False}, "parallel_attn"),
        (FALCON[0], {"multi_query": False, "num_kv_heads": 2}, "num_kv_heads"),
        (PALM[0], {"use_qk_norm": True}, "use_qk_norm"),
        (GPT_NEOX[0], {"rope_parameters": {"partial_rotary_factor": 0.4}}, "rotary_pct"),
        (BERT[2], {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        (BERT[2], {"is_decoder": True}, "is_decoder"),
        (BERT[2], {"hidden_act": "mish"}, "hidden_act"),
        (BERT[2], {"hidden_size": "wide"}, "hidden_size"),
        (BERT[2], {"architectures": ["BertForMultipleChoice"]}, "BertForMultipleChoice"),
        (BERT[2], {"model_type": "mixtral"}, "mixtral"),
        (ALBERT[0], {"inner_group_num": 2}, "inner_group_num"),
        (ALBERT[0], {"num_hidden_groups": 9}, "num_groups"),
        (MODERNBERT[0], {"layer_types": ["sliding_attention"] * 4}, "layer_types"),
        (MODERNBERT[0], {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "yarn"),
        (MODERNBERT[0], {"classifier_pooling": "max"}, "classifier_pooling"),
        (DEBERTA[0], {"conv_kernel_size": 3}, "conv_kernel_size"),
        (DEBERTA[0], {"share_att_key": False}, "share_att_key"),
        (DEBERTA[0], {"relative_attention": False}, "relative_attention"),
        (DEBERTA[0], {"pos_att_type": ["p2p"]}, "pos_att_type"),
        (DEBERTA[0], {"embedding_size": 12}, "embedding_size"),
        (DEBERTA[6], {"pooler_dropout": 0.1}, "pooler_dropout"),
        (ELECTRA[0], {"is_decoder": True}, "is_decoder"),
        (T5[0], {"is_decoder": True}, "is_decoder"),
        (T5[0], {"feed_forward_proj": "glu-relu"}, "glu-relu"),
        (BART[0], {"normalize_before": True}, "normalize_before"),
        (BART[0], {"normalize_embedding": False}, "normalize_embedding"),
        (BART[0], {"static_position_embeddings": True}, "static_position_embeddings"),
        (BART[0], {"extra_pos_embeddings": 3}, "extra_pos_embeddings"),
        (BART[0], {"tie_word_embeddings": False}, "tie_word_embeddings"),
        (MARIAN[0], {"normalize_embedding": True}, "normalize_embedding"),
        (MARIAN[0], {"tie_word_embeddings": False}, "tie_word_embeddings"),
        (MARIAN[0], {"decoder_vocab_size": 53}, "53"),
        (MARIAN[0], {"add_bias_logits": True}, "add_bias_logits"),
        (PATCHTST[0], {"channel_attention": True}, "channel_attention"),
        (PATCHTST[7], {"do_mask_input": True}, "do_mask_input"),
        (PATCHTST[14], {"mask_value": 3}, "mask_value"),
        (PATCHTST[0], {"minimum_scale": 1e-3}, "minimum_scale"),
        (PATCHTST[0], {"scaling": "median"}, "scaling"),
        (PATCHTST[9], {"pooling_type": None}, "pooling_type"),
        (PATCHTST[11], {"output_range": [1]}, "output_range"),
        (PATCHTST[0], {"patch_length": 50}, ""),
        (VIT[0], {"image_size": "big"}, "image_size"),
        (VIT[0], {"patch_size": 50}, ""),
        (VIT[0], {"architectures": ["ViTForMaskedImageModeling"]}, "ViTForMaskedImageModeling"),
    ],
)
def test_unsupported_config_is_rejected(case: Any, change: dict[str, Any], fact: str) -> None:
    read(case, {})
    with pytest.raises(GlassformerError) as caught:
        read(case, change)
    assert fact in str(caught.value.fields)
