"""Published configs with unsupported settings are rejected, naming the key."""

from __future__ import annotations

from typing import Any

import pytest
import transformers

from glassformer.errors import GlassformerError
from glassformer.families.config import Config
from glassformer.families.registry import family_of_config
from tests.families.cases import (
    ALBERT,
    BART,
    BERT,
    CLIP,
    DEBERTA,
    DETR,
    DINOV2,
    ELECTRA,
    EOMT,
    FALCON,
    GPT_NEOX,
    LLAMA,
    MARIAN,
    MASK2FORMER,
    MASKFORMER,
    MISTRAL,
    MODERNBERT,
    PALM,
    PATCHTST,
    SAM,
    SIGLIP,
    SWIN,
    SWINV2,
    T5,
    VIT,
    YOLOS,
)

NEW = {"new_decoder_architecture": True}


def part(case: tuple[str, dict[str, Any]], key: str, **changes: Any) -> dict[str, Any]:
    """Return a change of settings in the config of a part of a model."""
    return {key: {**case[1][key], **changes}}


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
        (SWIN[0], {"depths": [2, 3, 1]}, "depths"),
        (SWIN[0], {"window_size": [3, 3]}, "window_size"),
        (SWIN[6], {"out_features": ["stage9"]}, "stage9"),
        (SWINV2[0], {"use_absolute_embeddings": True}, "use_absolute_embeddings"),
        (SWINV2[0], {"pretrained_window_sizes": [6]}, "pretrained_window_sizes"),
        (DINOV2[6], {"reshape_hidden_states": False}, "reshape_hidden_states"),
        (DINOV2[0], {"mlp_ratio": 2.5}, "mlp_ratio"),
        (CLIP[0], {"text_config": "small"}, "text_config"),
        (CLIP[0], part(CLIP[0], "vision_config", image_size=[12, 16]), "image_size"),
        (CLIP[0], part(CLIP[0], "text_config", hidden_act="mish"), "hidden_act"),
        (SIGLIP[0], part(SIGLIP[0], "text_config", projection_size=7), "embeddings"),
        (YOLOS[0], {"image_size": "big"}, "image_size"),
        (DETR[0], {"auxiliary_loss": True}, "auxiliary_loss"),
        (DETR[0], {"position_embedding_type": "random"}, "position_embedding_type"),
        (DETR[0], {"backbone_config": {"model_type": "convnext"}}, "convnext"),
        (DETR[0], {"backbone_config": None, "backbone": "convnext_tiny"}, "convnext_tiny"),
        (DETR[0], part(DETR[0], "backbone_config", out_features=["stage1"]), "out_features"),
        (DETR[0], part(DETR[0], "backbone_config", hidden_act="gelu"), "hidden_act"),
        (SAM[0], part(SAM[0], "prompt_encoder_config", image_size=48), "image_size"),
        (SAM[0], part(SAM[0], "prompt_encoder_config", num_point_embeddings=5), "num_point_embeddings"),
        (SAM[0], part(SAM[0], "mask_decoder_config", hidden_size=32), "hidden_size"),
        (
            SAM[0],
            part(SAM[0], "mask_decoder_config", attention_downsample_rate=4),
            "attention_downsample_rate",
        ),
        (SAM[0], part(SAM[0], "mask_decoder_config", num_attention_heads=0), "num_heads"),
        (SAM[0], part(SAM[0], "vision_config", num_pos_feats=9), "num_pos_feats"),
        (SAM[0], part(SAM[0], "vision_config", image_size=[40, 48]), "image_size"),
        (MASKFORMER[0], part(MASKFORMER[0], "decoder_config", auxiliary_loss=True), "auxiliary_loss"),
        (MASKFORMER[0], part(MASKFORMER[0], "decoder_config", model_type="maskformer"), "model_type"),
        (MASKFORMER[0], {"backbone_config": {"model_type": "convnext"}}, "convnext"),
        (MASKFORMER[0], {"fpn_feature_size": 40}, "width"),
        (MASKFORMER[2], part(MASKFORMER[2], "backbone_config", use_absolute_embeddings=True), "embeddings"),
        (MASK2FORMER[0], part(MASK2FORMER[0], "backbone_config", out_features=["stage4"]), "out_features"),
        (MASK2FORMER[0], {"common_stride": 16}, "common_stride"),
        (MASK2FORMER[0], {"feature_strides": [2, 4, 8, 16]}, "feature_strides"),
        (EOMT[0], {"image_size": [24, 32]}, "image_size"),
        (EOMT[0], {"num_blocks": 9}, "query_layers"),
    ],
)
def test_unsupported_config_is_rejected(case: Any, change: dict[str, Any], fact: str) -> None:
    read(case, {})
    with pytest.raises(GlassformerError) as caught:
        read(case, change)
    assert fact in str(caught.value.fields)
