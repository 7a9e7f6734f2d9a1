"""Every family and head, with the configurations in which its numbers are compared with the reference.

A case is (reference class, settings for its config class). Sizes are small and odd on purpose. Each list
says what is particular to a head; `every_head` then puts each head under its family's other configurations:
a second one here, four in `make test-slow`.
"""

from __future__ import annotations

from typing import Any

from tests.faults.scale import WHOLE

Case = tuple[str, dict[str, Any]]
# configurations of each head and of each family, at least
ENOUGH, ENOUGH_PER_FAMILY = 4 if WHOLE else 2, 6
# settings that belong to a head, not to the stack below it; and ids that it may need where the stack has none
OF_THE_HEAD = ("num_labels", "num_targets", "output_range", "pooling_type", "loss")
IDS = ("pad_token_id", "eos_token_id")


def every_head(cases: list[Case]) -> list[Case]:
    """The cases, and each head above as many stacks of the family's other heads as make it enough."""
    more: list[Case] = []
    for head in dict.fromkeys(name for name, _ in cases):
        own = [settings for name, settings in cases if name == head]
        needed = {key: own[0][key] for key in IDS if key in own[0]}
        head_options = {key: own[0][key] for key in OF_THE_HEAD if key in own[0]}
        for name, settings in cases:
            stack = {key: value for key, value in settings.items() if key not in OF_THE_HEAD}
            borrowed = needed | stack | head_options
            if len(own) < ENOUGH and name != head and borrowed not in own:
                own.append(borrowed)
                more.append((head, borrowed))
    return cases + more


_GPT2 = {"vocab_size": 61, "n_embd": 24, "n_head": 4, "n_layer": 2, "n_positions": 40}

GPT2: list[Case] = [
    ("GPT2LMHeadModel", {**_GPT2}),
    ("GPT2LMHeadModel", {**_GPT2, "tie_word_embeddings": False, "n_head": 3, "n_inner": 37}),
    ("GPT2LMHeadModel", {**_GPT2, "activation_function": "relu", "scale_attn_weights": False, "n_layer": 1}),
    ("GPT2Model", {**_GPT2, "n_embd": 35, "n_head": 5, "layer_norm_epsilon": 1e-3}),
    ("GPT2ForSequenceClassification", {**_GPT2, "num_labels": 3, "pad_token_id": 60}),
    ("GPT2ForTokenClassification", {**_GPT2, "num_labels": 5, "activation_function": "gelu"}),
    ("GPT2ForQuestionAnswering", {**_GPT2, "n_layer": 3}),
]

_SIZES = {"hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 37}
_BERT = {"vocab_size": 61, **_SIZES, "max_position_embeddings": 40}

BERT: list[Case] = [
    ("BertForMaskedLM", {**_BERT}),
    ("BertForMaskedLM", {**_BERT, "hidden_act": "relu", "num_attention_heads": 3, "pad_token_id": None}),
    ("BertModel", {**_BERT, "hidden_size": 35, "num_attention_heads": 5, "layer_norm_eps": 1e-3}),
    ("BertModel", {**_BERT, "type_vocab_size": 1, "hidden_act": "gelu_new", "pad_token_id": 60}),
    ("BertForSequenceClassification", {**_BERT, "num_labels": 3, "classifier_dropout": 0.3}),
    ("BertForTokenClassification", {**_BERT, "num_labels": 5, "hidden_act": "silu", "type_vocab_size": 3}),
    ("BertForQuestionAnswering", {**_BERT, "num_hidden_layers": 3, "hidden_dropout_prob": 0.0}),
]

ROBERTA: list[Case] = [
    ("RobertaForMaskedLM", {**_BERT, "type_vocab_size": 1}),
    ("RobertaForMaskedLM", {**_BERT, "hidden_act": "relu", "num_attention_heads": 6, "pad_token_id": 0}),
    ("RobertaModel", {**_BERT, "hidden_size": 35, "num_attention_heads": 5, "pad_token_id": 3}),
    ("RobertaForSequenceClassification", {**_BERT, "num_labels": 3, "layer_norm_eps": 1e-3}),
    ("RobertaForTokenClassification", {**_BERT, "num_labels": 5, "classifier_dropout": 0.0}),
    ("RobertaForQuestionAnswering", {**_BERT, "num_hidden_layers": 3, "hidden_act": "gelu_new"}),
]

# the same architecture under two other names: one stack for each head
ROBERTA_TOO: list[Case] = [
    (f"{prefix}{task}", {**_BERT, **changed})
    for prefix, changed in (
        ("XLMRoberta", {"max_position_embeddings": 11, "type_vocab_size": 1, "num_labels": 4}),
        ("Camembert", {"hidden_size": 35, "num_attention_heads": 5, "hidden_act": "relu", "num_labels": 1}),
    )
    for task in ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
] + [("XLMRobertaForQuestionAnswering", _BERT), ("CamembertForQuestionAnswering", _BERT)]

_DISTILBERT = {"dim": 24, "n_heads": 4, "n_layers": 2, "hidden_dim": 37}
_DISTILBERT |= {"vocab_size": 61, "max_position_embeddings": 40}

DISTILBERT: list[Case] = [
    ("DistilBertForMaskedLM", {**_DISTILBERT}),
    ("DistilBertForMaskedLM", {**_DISTILBERT, "tie_word_embeddings": False, "activation": "relu"}),
    ("DistilBertModel", {**_DISTILBERT, "dim": 35, "n_heads": 5, "pad_token_id": 7}),
    ("DistilBertModel", {**_DISTILBERT, "sinusoidal_pos_embds": True, "n_layers": 1}),
    ("DistilBertForSequenceClassification", {**_DISTILBERT, "num_labels": 3, "seq_classif_dropout": 0.4}),
    ("DistilBertForTokenClassification", {**_DISTILBERT, "num_labels": 5, "n_layers": 3}),
    ("DistilBertForQuestionAnswering", {**_DISTILBERT, "qa_dropout": 0.0, "n_heads": 3}),
]

_ELECTRA = {**_BERT, "embedding_size": 14}

ELECTRA: list[Case] = [
    ("ElectraForMaskedLM", {**_ELECTRA}),
    ("ElectraForMaskedLM", {**_ELECTRA, "hidden_act": "relu", "tie_word_embeddings": False}),
    ("ElectraForPreTraining", {**_ELECTRA, "hidden_act": "gelu_new", "num_attention_heads": 3}),
    ("ElectraForPreTraining", {**_BERT, "embedding_size": 24, "pad_token_id": 60}),
    ("ElectraModel", {**_ELECTRA, "hidden_size": 35, "num_attention_heads": 5, "embedding_size": 41}),
    ("ElectraForSequenceClassification", {**_ELECTRA, "num_labels": 3, "layer_norm_eps": 1e-3}),
    ("ElectraForTokenClassification", {**_ELECTRA, "num_labels": 5, "type_vocab_size": 3}),
    ("ElectraForQuestionAnswering", {**_ELECTRA, "num_hidden_layers": 3, "pad_token_id": None}),
]

_ALBERT = {**_ELECTRA, "num_hidden_layers": 4}

ALBERT: list[Case] = [
    ("AlbertForMaskedLM", {**_ALBERT}),
    ("AlbertForMaskedLM", {**_ALBERT, "hidden_act": "relu", "num_attention_heads": 3}),
    ("AlbertForMaskedLM", {**_ALBERT, "num_hidden_layers": 5, "num_hidden_groups": 2}),
    ("AlbertModel", {**_ALBERT, "hidden_size": 35, "num_attention_heads": 5, "num_hidden_groups": 4}),
    ("AlbertModel", {**_ALBERT, "embedding_size": 24, "pad_token_id": 60, "hidden_act": "gelu"}),
    ("AlbertForSequenceClassification", {**_ALBERT, "num_labels": 3, "layer_norm_eps": 1e-3}),
    ("AlbertForTokenClassification", {**_ALBERT, "num_labels": 5, "classifier_dropout_prob": 0.3}),
    ("AlbertForQuestionAnswering", {**_ALBERT, "num_hidden_layers": 1, "type_vocab_size": 3}),
]

_MODERNBERT = {"vocab_size": 61, **_SIZES, "num_hidden_layers": 4, "max_position_embeddings": 40}
_MODERNBERT |= {"local_attention": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_MODERNBERT |= {"cls_token_id": 1, "sep_token_id": 2}
_BIASES = {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True}
_THETAS = {
    "full_attention": {"rope_type": "default", "rope_theta": 500.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
}

MODERNBERT: list[Case] = [
    ("ModernBertForMaskedLM", {**_MODERNBERT}),
    ("ModernBertForMaskedLM", {**_MODERNBERT, **_BIASES, "rope_parameters": _THETAS}),
    ("ModernBertForMaskedLM", {**_MODERNBERT, "decoder_bias": False, "tie_word_embeddings": False}),
    ("ModernBertModel", {**_MODERNBERT, "hidden_size": 30, "num_attention_heads": 5, "local_attention": 6}),
    ("ModernBertModel", {**_MODERNBERT, "global_attn_every_n_layers": 2, "norm_eps": 1e-3}),
    ("ModernBertModel", {**_MODERNBERT, "global_attn_every_n_layers": 1, "hidden_activation": "silu"}),
    (
        "ModernBertForSequenceClassification",
        {**_MODERNBERT, "num_labels": 3, "classifier_pooling": "mean", "classifier_activation": "relu"},
    ),
    ("ModernBertForSequenceClassification", {**_MODERNBERT, "num_labels": 3, "local_attention": 12}),
    ("ModernBertForTokenClassification", {**_MODERNBERT, "num_labels": 5, **_BIASES}),
    ("ModernBertForQuestionAnswering", {**_MODERNBERT, "num_hidden_layers": 1, "classifier_dropout": 0.2}),
]

_DEBERTA = {**_BERT, "type_vocab_size": 0, "relative_attention": True, "share_att_key": True}
_DEBERTA |= {"position_buckets": 4, "norm_rel_ebd": "layer_norm", "position_biased_input": False}
_DEBERTA |= {"pos_att_type": ["p2c", "c2p"], "max_relative_positions": -1}

DEBERTA: list[Case] = [
    ("DebertaV2ForMaskedLM", {**_DEBERTA}),
    ("DebertaV2ForMaskedLM", {**_DEBERTA, "position_buckets": 6, "hidden_act": "relu"}),
    ("DebertaV2ForMaskedLM", {**_DEBERTA, "max_relative_positions": 5, "position_buckets": -1}),
    ("DebertaV2Model", {**_DEBERTA, "hidden_size": 35, "num_attention_heads": 5, "pos_att_type": "c2p"}),
    ("DebertaV2Model", {**_DEBERTA, "pos_att_type": "p2c", "norm_rel_ebd": "none", "pad_token_id": 60}),
    ("DebertaV2Model", {**_DEBERTA, "position_biased_input": True, "type_vocab_size": 2}),
    (
        "DebertaV2ForSequenceClassification",
        {**_DEBERTA, "num_labels": 3, "pooler_hidden_act": "tanh", "cls_dropout": 0.2},
    ),
    ("DebertaV2ForTokenClassification", {**_DEBERTA, "num_labels": 5, "layer_norm_eps": 1e-3}),
    ("DebertaV2ForQuestionAnswering", {**_DEBERTA, "num_hidden_layers": 1, "max_relative_positions": 8}),
]

_T5 = {"vocab_size": 61, "d_model": 24, "d_kv": 5, "num_heads": 4, "d_ff": 37, "num_layers": 2}

T5: list[Case] = [
    ("T5ForConditionalGeneration", {**_T5, "decoder_start_token_id": 0}),
    ("T5ForConditionalGeneration", {**_T5, "tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"}),
    (
        "T5ForConditionalGeneration",
        {
            **_T5,
            "feed_forward_proj": "gated-silu",
            "num_decoder_layers": 3,
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 6,
            "layer_norm_epsilon": 1e-3,
        },
    ),
    (
        "T5ForConditionalGeneration",
        {**_T5, "num_heads": 3, "feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu", "num_layers": 1},
    ),
    ("T5Model", {**_T5, "feed_forward_proj": "gelu", "num_decoder_layers": 1, "pad_token_id": 7}),
    ("T5EncoderModel", {**_T5, "d_kv": 9, "relative_attention_num_buckets": 12}),
    ("T5EncoderModel", {**_T5, "feed_forward_proj": "gated-gelu", "num_layers": 3}),
    ("T5ForSequenceClassification", {**_T5, "num_labels": 3, "eos_token_id": 11}),
    ("T5ForTokenClassification", {**_T5, "num_labels": 5, "d_model": 21}),
    ("T5ForQuestionAnswering", {**_T5, "feed_forward_proj": "gated-relu"}),
]

_TWO_STACKS = {
    "vocab_size": 61,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 37,
    "max_position_embeddings": 19,
}
_UNEVEN = {
    "encoder_layers": 1,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 6,
    "decoder_ffn_dim": 41,
}

BART: list[Case] = [
    ("BartForConditionalGeneration", {**_TWO_STACKS}),
    ("BartForConditionalGeneration", {**_TWO_STACKS, **_UNEVEN, "scale_embedding": True}),
    ("BartForConditionalGeneration", {**_TWO_STACKS, "activation_function": "relu", "pad_token_id": 5}),
    ("BartModel", {**_TWO_STACKS, "activation_function": "gelu_new", "max_position_embeddings": 9}),
    ("BartModel", {**_TWO_STACKS, **_UNEVEN, "d_model": 30}),
    ("BartForSequenceClassification", {**_TWO_STACKS, "num_labels": 4, "eos_token_id": 17}),
    ("BartForSequenceClassification", {**_TWO_STACKS, **_UNEVEN, "num_labels": 1}),
    ("BartForQuestionAnswering", {**_TWO_STACKS, "activation_function": "silu"}),
]

_MARIAN = {**_TWO_STACKS, "pad_token_id": 60, "decoder_start_token_id": 60, "activation_function": "swish"}
_APART = {
    "share_encoder_decoder_embeddings": False,
    "decoder_vocab_size": 53,
    "pad_token_id": 52,
    "decoder_start_token_id": 52,
}

MARIAN: list[Case] = [
    ("MarianMTModel", {**_MARIAN, "scale_embedding": True}),
    ("MarianMTModel", {**_MARIAN, **_UNEVEN, "activation_function": "relu"}),
    ("MarianMTModel", {**_MARIAN, **_APART, "scale_embedding": True}),
    ("MarianMTModel", {**_MARIAN, **_APART, "tie_word_embeddings": False, "activation_function": "gelu"}),
    ("MarianModel", {**_MARIAN, "max_position_embeddings": 9}),
    ("MarianModel", {**_MARIAN, **_UNEVEN, **_APART, "d_model": 30, "scale_embedding": True}),
]

_LLAMA = {"vocab_size": 61, **_SIZES, "num_attention_heads": 6}
_LINEAR = {"rope_type": "linear", "factor": 2.5, "rope_theta": 500.0}
_BANDS = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 24,
}

LLAMA: list[Case] = [
    ("LlamaForCausalLM", {**_LLAMA}),
    ("LlamaForCausalLM", {**_LLAMA, "num_key_value_heads": 2, "tie_word_embeddings": True}),
    ("LlamaForCausalLM", {**_LLAMA, "rope_parameters": _BANDS, "attention_bias": True, "mlp_bias": True}),
    ("LlamaForCausalLM", {**_LLAMA, "rope_parameters": _LINEAR, "head_dim": 10, "hidden_act": "gelu_new"}),
    ("LlamaForCausalLM", {**_LLAMA, "rope_theta": 77.0, "num_key_value_heads": 1}),
    ("LlamaModel", {**_LLAMA, "hidden_size": 30, "num_attention_heads": 5, "rms_norm_eps": 1e-3}),
    ("LlamaForSequenceClassification", {**_LLAMA, "num_labels": 3, "pad_token_id": 60}),
    ("LlamaForTokenClassification", {**_LLAMA, "num_labels": 5, "hidden_act": "relu"}),
    (
        "LlamaForTokenClassification",
        {**_LLAMA, "token_classification_bias": False, "classifier_dropout": 0.3},
    ),
    ("LlamaForQuestionAnswering", {**_LLAMA, "num_key_value_heads": 3, "num_hidden_layers": 3}),
]

MISTRAL: list[Case] = [
    ("MistralForCausalLM", {**_LLAMA, "num_key_value_heads": 2, "sliding_window": 4}),
    ("MistralForCausalLM", {**_LLAMA, "num_key_value_heads": 6, "sliding_window": 1, "head_dim": 6}),
    ("MistralForCausalLM", {**_LLAMA, "num_key_value_heads": 3, "sliding_window": None}),
    ("MistralForCausalLM", {**_LLAMA, "num_key_value_heads": 2, "tie_word_embeddings": True}),
    ("MistralModel", {**_LLAMA, "num_key_value_heads": 1, "sliding_window": 3, "rope_parameters": _BANDS}),
    (
        "MistralForSequenceClassification",
        {**_LLAMA, "num_key_value_heads": 2, "sliding_window": 5, "num_labels": 4, "pad_token_id": 0},
    ),
    ("MistralForTokenClassification", {**_LLAMA, "num_key_value_heads": 2, "hidden_act": "gelu"}),
    (
        "MistralForQuestionAnswering",
        {**_LLAMA, "num_key_value_heads": 2, "sliding_window": 8, "rope_parameters": _LINEAR},
    ),
]

# a window on the upper layers, on some named ones, and on all
_UPPER = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
_NAMED = {
    "use_sliding_window": True,
    "sliding_window": 2,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
_GROUPS = {**_LLAMA, "num_key_value_heads": 2}

QWEN2: list[Case] = [
    ("Qwen2ForCausalLM", {**_GROUPS}),
    ("Qwen2ForCausalLM", {**_LLAMA, "num_key_value_heads": 3, "tie_word_embeddings": True}),
    ("Qwen2ForCausalLM", {**_GROUPS, **_UPPER}),
    ("Qwen2ForCausalLM", {**_GROUPS, **_NAMED, "num_hidden_layers": 3}),
    ("Qwen2Model", {**_GROUPS, **_UPPER, "max_window_layers": 0, "rms_norm_eps": 1e-3}),
    ("Qwen2ForSequenceClassification", {**_GROUPS, "num_labels": 3, "pad_token_id": 60}),
    ("Qwen2ForTokenClassification", {**_GROUPS, "num_labels": 5, "rope_theta": 77.0}),
    ("Qwen2ForQuestionAnswering", {**_GROUPS, "hidden_act": "gelu"}),
]

_QWEN3 = {**_GROUPS, "head_dim": 6}

QWEN3: list[Case] = [
    ("Qwen3ForCausalLM", {**_QWEN3}),
    ("Qwen3ForCausalLM", {**_QWEN3, "num_key_value_heads": 6, "tie_word_embeddings": True}),
    ("Qwen3ForCausalLM", {**_QWEN3, "attention_bias": True, "rms_norm_eps": 1e-2}),
    ("Qwen3ForCausalLM", {**_QWEN3, **_UPPER, "head_dim": 4}),
    ("Qwen3ForCausalLM", {**_QWEN3, **_NAMED, "num_hidden_layers": 3}),
    ("Qwen3Model", {**_QWEN3, "num_key_value_heads": 1, "rope_parameters": _LINEAR}),
    ("Qwen3ForSequenceClassification", {**_QWEN3, "num_labels": 3, "pad_token_id": 60}),
    ("Qwen3ForTokenClassification", {**_QWEN3, "num_labels": 5}),
    ("Qwen3ForQuestionAnswering", {**_QWEN3, "rope_theta": 77.0}),
]

_GEMMA = {**_GROUPS, "head_dim": 6, "sliding_window": 3, "pad_token_id": 0, "query_pre_attn_scalar": 6}
_CAPS = {"attn_logit_softcapping": 0.7, "final_logit_softcapping": 1.3}  # low enough to bend most values
_UNCAPPED = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
_SLIDING, _FULL = "sliding_attention", "full_attention"

GEMMA2: list[Case] = [
    ("Gemma2ForCausalLM", {**_GEMMA}),
    ("Gemma2ForCausalLM", {**_GEMMA, **_CAPS, "query_pre_attn_scalar": 17, "num_hidden_layers": 3}),
    ("Gemma2ForCausalLM", {**_GEMMA, **_UNCAPPED, "num_key_value_heads": 6, "attention_bias": True}),
    ("Gemma2ForCausalLM", {**_GEMMA, **_CAPS, "sliding_window": 1, "head_dim": 10, "rms_norm_eps": 1e-2}),
    ("Gemma2ForCausalLM", {**_GEMMA, **_CAPS, "layer_types": [_FULL, _FULL], "tie_word_embeddings": False}),
    ("Gemma2ForCausalLM", {**_GEMMA, **_CAPS, "layer_types": [_SLIDING, _SLIDING], "pad_token_id": None}),
    ("Gemma2ForCausalLM", {**_GEMMA, "rope_parameters": _LINEAR, "attn_logit_softcapping": None}),
    ("Gemma2Model", {**_GEMMA, **_CAPS, "rope_theta": 77.0, "hidden_activation": "silu"}),
    ("Gemma2ForSequenceClassification", {**_GEMMA, **_CAPS, "num_labels": 3, "pad_token_id": 60}),
    ("Gemma2ForTokenClassification", {**_GEMMA, "num_labels": 5, "rope_parameters": _BANDS}),
]

_KINDS = {"layer_types": [_SLIDING, _SLIDING, _FULL], "num_hidden_layers": 3}
_ROPES = {"rope_parameters": {_FULL: _LINEAR, _SLIDING: {"rope_type": "default", "rope_theta": 33.0}}}

GEMMA3: list[Case] = [
    ("Gemma3ForCausalLM", {**_GEMMA, **_KINDS}),
    ("Gemma3ForCausalLM", {**_GEMMA, **_KINDS, "rope_theta": 500.0, "rope_local_base_freq": 20.0}),
    ("Gemma3ForCausalLM", {**_GEMMA, **_ROPES, "sliding_window_pattern": 2, "query_pre_attn_scalar": 17}),
    ("Gemma3ForCausalLM", {**_GEMMA, "final_logit_softcapping": 1.3, "sliding_window": 1, "head_dim": 10}),
    ("Gemma3ForCausalLM", {**_GEMMA, **_KINDS, "rope_scaling": {"rope_type": "linear", "factor": 3.0}}),
    ("Gemma3ForCausalLM", {**_GEMMA, "layer_types": [_FULL, _FULL], "tie_word_embeddings": False}),
    ("Gemma3TextModel", {**_GEMMA, **_KINDS, **_ROPES, "attention_bias": True, "num_key_value_heads": 1}),
    ("Gemma3TextForSequenceClassification", {**_GEMMA, **_KINDS, "num_labels": 3, "pad_token_id": 60}),
]

_FALCON = {"vocab_size": 61, "hidden_size": 24, "num_attention_heads": 6, "num_hidden_layers": 2}
_GROUPED = {"new_decoder_architecture": True, "num_kv_heads": 3}
_PLAIN = {"multi_query": False, "parallel_attn": False, "bias": True}

FALCON: list[Case] = [
    ("FalconForCausalLM", {**_FALCON}),
    ("FalconForCausalLM", {**_FALCON, **_GROUPED, "tie_word_embeddings": False, "activation": "relu"}),
    ("FalconForCausalLM", {**_FALCON, **_GROUPED, "num_ln_in_parallel_attn": 1, "ffn_hidden_size": 29}),
    ("FalconForCausalLM", {**_FALCON, **_PLAIN, "alibi": True}),
    ("FalconForCausalLM", {**_FALCON, "alibi": True, "hidden_size": 42, "num_attention_heads": 7}),
    ("FalconForCausalLM", {**_FALCON, **_GROUPED, "num_kv_heads": 6, "bias": True, "alibi": True}),
    ("FalconForCausalLM", {**_FALCON, "multi_query": False, "rope_parameters": _LINEAR}),
    ("FalconForCausalLM", {**_FALCON, "parallel_attn": False, "rope_parameters": _BANDS}),
    ("FalconModel", {**_FALCON, **_GROUPED, "num_kv_heads": 1, "layer_norm_epsilon": 1e-3}),
    ("FalconForSequenceClassification", {**_FALCON, "alibi": True, "num_labels": 3, "pad_token_id": 60}),
    ("FalconForTokenClassification", {**_FALCON, **_GROUPED, "num_labels": 5, "hidden_dropout": 0.2}),
    ("FalconForQuestionAnswering", {**_FALCON, **_PLAIN, "num_hidden_layers": 3}),
]

PALM: list[Case] = [
    ("CohereForCausalLM", {**_LLAMA, "num_key_value_heads": 1}),
    ("CohereForCausalLM", {**_LLAMA, "num_key_value_heads": 2, "logit_scale": 1.5, "hidden_act": "gelu"}),
    ("CohereForCausalLM", {**_LLAMA, "attention_bias": True, "tie_word_embeddings": False}),
    ("CohereForCausalLM", {**_LLAMA, "rope_parameters": _BANDS, "head_dim": 10, "num_key_value_heads": 3}),
    ("CohereForCausalLM", {**_LLAMA, "rope_parameters": _LINEAR, "pad_token_id": 7, "num_hidden_layers": 1}),
    ("CohereModel", {**_LLAMA, "hidden_size": 30, "num_attention_heads": 5, "layer_norm_eps": 1e-3}),
]

_NEOX = {"vocab_size": 61, **_SIZES, "hidden_size": 32}
_SEQUENTIAL = {"use_parallel_residual": False}

GPT_NEOX: list[Case] = [
    ("GPTNeoXForCausalLM", {**_NEOX}),
    ("GPTNeoXForCausalLM", {**_NEOX, **_SEQUENTIAL, "rotary_pct": 1.0, "tie_word_embeddings": True}),
    ("GPTNeoXForCausalLM", {**_NEOX, "rotary_pct": 0.8, "attention_bias": False, "rotary_emb_base": 77}),
    ("GPTNeoXForCausalLM", {**_NEOX, **_SEQUENTIAL, "rope_scaling": {**_LINEAR}, "hidden_act": "gelu_new"}),
    ("GPTNeoXForCausalLM", {**_NEOX, "rope_parameters": {**_BANDS, "partial_rotary_factor": 0.5}}),
    ("GPTNeoXForCausalLM", {**_NEOX, "hidden_size": 42, "num_attention_heads": 3, "rotary_pct": 0.44}),
    ("GPTNeoXModel", {**_NEOX, "hidden_dropout": 0.2, "layer_norm_eps": 1e-3, "num_hidden_layers": 3}),
    ("GPTNeoXForSequenceClassification", {**_NEOX, "num_labels": 3, "pad_token_id": 60}),
    ("GPTNeoXForTokenClassification", {**_NEOX, "num_labels": 5, "classifier_dropout": 0.0}),
    ("GPTNeoXForQuestionAnswering", {**_NEOX, **_SEQUENTIAL, "hidden_act": "relu"}),
]

_IMAGES = {"image_size": 12, "patch_size": 4, **_SIZES}
_WIDE = {"image_size": [8, 13], "patch_size": [4, 3], "num_channels": 1}

VIT: list[Case] = [
    ("ViTForImageClassification", {**_IMAGES, "num_labels": 5}),
    ("ViTForImageClassification", {**_IMAGES, **_WIDE, "qkv_bias": False, "layer_norm_eps": 1e-3}),
    ("ViTForImageClassification", {**_IMAGES, "hidden_act": "relu", "head_dim": 5, "num_hidden_layers": 1}),
    ("ViTModel", {**_IMAGES, "pooler_output_size": 11, "pooler_act": "relu"}),
    ("ViTModel", {**_IMAGES, "hidden_act": "gelu_new", "num_attention_heads": 3, "num_channels": 2}),
    (
        "ViTModel",
        {**_IMAGES, **_WIDE, "hidden_act": "quick_gelu", "hidden_size": 35, "num_attention_heads": 5},
    ),
]

DEIT: list[Case] = [
    ("DeiTForImageClassificationWithTeacher", {**_IMAGES, "num_labels": 5}),
    ("DeiTForImageClassificationWithTeacher", {**_IMAGES, **_WIDE, "qkv_bias": False, "num_labels": 3}),
    ("DeiTForImageClassification", {**_IMAGES, "hidden_act": "silu", "num_labels": 4}),
    ("DeiTForImageClassification", {**_IMAGES, "layer_norm_eps": 1e-3, "num_channels": 2, "head_dim": 5}),
    ("DeiTModel", {**_IMAGES, "num_hidden_layers": 3}),
    ("DeiTModel", {**_IMAGES, **_WIDE, "pooler_output_size": 9, "pooler_act": "gelu"}),
]

# two towers: settings of the text tower and of the image tower, by turns
_TEXTS: list[dict[str, Any]] = [
    {"vocab_size": 61, **_SIZES, "max_position_embeddings": 19, "eos_token_id": 60},
    {"vocab_size": 53, **_SIZES, "max_position_embeddings": 9, "eos_token_id": 2, "hidden_act": "gelu"},
    {"vocab_size": 61, **_SIZES, "hidden_size": 35, "num_attention_heads": 5, "layer_norm_eps": 1e-3},
    {"vocab_size": 61, **_SIZES, "num_hidden_layers": 1, "hidden_act": "relu", "eos_token_id": 7},
    {"vocab_size": 71, **_SIZES, "num_attention_heads": 3, "num_hidden_layers": 3, "eos_token_id": 2},
    {"vocab_size": 61, **_SIZES, "hidden_act": "gelu_new", "attention_dropout": 0.2, "eos_token_id": 11},
]
_TEXTS[2] |= {"eos_token_id": 5, "max_position_embeddings": 21}
_PICTURES: list[dict[str, Any]] = [
    {"image_size": 12, "patch_size": 4, **_SIZES},
    {"image_size": 13, "patch_size": 4, **_SIZES, "num_channels": 1, "hidden_act": "gelu"},
    {"image_size": 10, "patch_size": 5, **_SIZES, "layer_norm_eps": 1e-3, "num_attention_heads": 2},
    {"image_size": 8, "patch_size": 2, **_SIZES, "hidden_size": 30, "num_attention_heads": 5},
    {"image_size": 9, "patch_size": 3, **_SIZES, "hidden_act": "relu", "num_hidden_layers": 1},
    {"image_size": 16, "patch_size": 7, **_SIZES, "num_hidden_layers": 3, "attention_dropout": 0.1},
]
_TEXT_TOWERS, _IMAGE_TOWERS = (
    [{**settings, "projection_dim": 11 + 2 * n} for n, settings in enumerate(towers)]
    for towers in (_TEXTS, _PICTURES)
)

CLIP: list[Case] = [
    *(
        ("CLIPModel", {"text_config": text, "vision_config": image, "projection_dim": 9 + n})
        for n, (text, image) in enumerate(zip(_TEXTS, _PICTURES, strict=True))
    ),
    *(("CLIPTextModel", text) for text in _TEXTS[:ENOUGH]),
    *(("CLIPTextModelWithProjection", text) for text in _TEXT_TOWERS[:ENOUGH]),
    *(("CLIPVisionModel", image) for image in _PICTURES[:ENOUGH]),
    *(("CLIPVisionModelWithProjection", image) for image in _IMAGE_TOWERS[:ENOUGH]),
]

SIGLIP: list[Case] = [
    *(
        (
            "SiglipModel",
            {"text_config": {**text, "projection_size": image["hidden_size"]}, "vision_config": image},
        )
        for text, image in zip(_TEXTS, _PICTURES, strict=True)
    ),
    *(("SiglipTextModel", {**text, "projection_size": 7 + n}) for n, text in enumerate(_TEXTS[:ENOUGH])),
    *(("SiglipVisionModel", image) for image in _PICTURES[:ENOUGH]),
    ("SiglipVisionModel", {**_PICTURES[0], "vision_use_head": False}),
]

_YOLOS = {**_SIZES, "image_size": [16, 24], "patch_size": 8, "num_detection_tokens": 5, "num_labels": 3}

YOLOS: list[Case] = [
    ("YolosForObjectDetection", {**_YOLOS}),
    ("YolosForObjectDetection", {**_YOLOS, "use_mid_position_embeddings": False, "num_labels": 1}),
    ("YolosForObjectDetection", {**_YOLOS, "num_hidden_layers": 3, "qkv_bias": False, "hidden_act": "relu"}),
    ("YolosForObjectDetection", {**_YOLOS, "image_size": [12, 12], "patch_size": 4, "num_channels": 1}),
    ("YolosForObjectDetection", {**_YOLOS, "hidden_size": 35, "num_attention_heads": 5}),
    ("YolosForObjectDetection", {**_YOLOS, "num_detection_tokens": 1, "layer_norm_eps": 1e-3}),
]

_RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 12], "depths": [1, 2]}
_RESNET |= {"layer_type": "basic"}
_DETR = {"d_model": 24, "encoder_layers": 2, "encoder_ffn_dim": 37, "encoder_attention_heads": 3}
_DETR |= {"decoder_layers": 2, "decoder_ffn_dim": 37, "decoder_attention_heads": 3, "num_queries": 5}
_DETR |= {"backbone_config": _RESNET, "num_labels": 3}
_BOTTLENECK = {**_RESNET, "layer_type": "bottleneck", "hidden_sizes": [8, 16, 24], "depths": [1, 1, 1]}

DETR: list[Case] = [
    ("DetrForObjectDetection", {**_DETR}),
    ("DetrForObjectDetection", {**_DETR, "backbone_config": _BOTTLENECK, "activation_function": "gelu"}),
    ("DetrForObjectDetection", {**_DETR, "position_embedding_type": "learned", "num_labels": 1}),
    (
        "DetrForObjectDetection",
        {**_DETR, "backbone_config": {**_BOTTLENECK, "downsample_in_bottleneck": True}, "num_queries": 1},
    ),
    (
        "DetrForObjectDetection",
        {**_DETR, "backbone_config": {**_RESNET, "downsample_in_first_stage": True}, "decoder_layers": 3},
    ),
    ("DetrForObjectDetection", {**_DETR, "decoder_attention_heads": 6, "decoder_ffn_dim": 19}),
    (
        "DetrModel",
        {**_DETR, "num_channels": 1, "backbone_config": {**_RESNET, "num_channels": 1}, "encoder_layers": 1},
    ),
]

_SERIES = {
    "context_length": 21,
    "patch_length": 6,
    "patch_stride": 4,
    "num_input_channels": 3,
    "prediction_length": 5,
    "d_model": 24,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "ffn_dim": 37,
}
_LAYER = {"norm_type": "layernorm", "positional_encoding_type": "random"}

_DINOV2 = {"hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 2, "mlp_ratio": 2}
_DINOV2 |= {"image_size": 12, "patch_size": 4}
_REGISTERS = {**_DINOV2, "num_register_tokens": 3}

DINOV2: list[Case] = [
    ("Dinov2ForImageClassification", {**_DINOV2, "num_labels": 5}),
    ("Dinov2ForImageClassification", {**_DINOV2, "qkv_bias": False, "hidden_act": "relu", "num_channels": 1}),
    ("Dinov2ForImageClassification", {**_DINOV2, "use_swiglu_ffn": True, "image_size": [14, 13]}),
    ("Dinov2Model", {**_DINOV2, "layer_norm_eps": 1e-3, "hidden_size": 35, "num_attention_heads": 5}),
    ("Dinov2Model", {**_DINOV2, "use_swiglu_ffn": True, "mlp_ratio": 3, "use_mask_token": False}),
    ("Dinov2Model", {**_DINOV2, "hidden_act": "gelu_new", "num_hidden_layers": 1, "drop_path_rate": 0.2}),
    ("Dinov2Backbone", {**_DINOV2, "num_hidden_layers": 4, "out_indices": [0, 2, 4]}),
    ("Dinov2Backbone", {**_DINOV2, "apply_layernorm": False, "out_features": ["stage1"]}),
    ("Dinov2WithRegistersForImageClassification", {**_REGISTERS, "num_labels": 5}),
    ("Dinov2WithRegistersForImageClassification", {**_REGISTERS, "use_swiglu_ffn": True, "num_labels": 3}),
    ("Dinov2WithRegistersModel", {**_REGISTERS, "num_register_tokens": 1, "qkv_bias": False}),
    ("Dinov2WithRegistersModel", {**_REGISTERS, "num_channels": 1, "layerscale_value": 0.1}),
    ("Dinov2WithRegistersBackbone", {**_REGISTERS, "out_features": ["stem", "stage2"]}),
    ("Dinov2WithRegistersBackbone", {**_REGISTERS, "apply_layernorm": False, "num_hidden_layers": 3}),
]

# grids: 6 x 6 (whole windows), 7 x 7 and 9 x 9 (padded), 8 x 5; with stages where one window covers the grid
_SWIN = {"embed_dim": 12, "depths": [2, 3], "num_heads": [2, 3], "image_size": 24, "patch_size": 4}
_SWIN |= {"window_size": 3, "mlp_ratio": 2.0}
_STAGES = {"depths": [2, 2, 1], "num_heads": [2, 2, 4], "image_size": 27, "patch_size": 3, "window_size": 2}

SWIN: list[Case] = [
    ("SwinForImageClassification", {**_SWIN, "num_labels": 5}),
    ("SwinForImageClassification", {**_SWIN, "image_size": 28, "qkv_bias": False, "hidden_act": "relu"}),
    ("SwinForImageClassification", {**_SWIN, **_STAGES, "layer_norm_eps": 1e-3, "num_channels": 1}),
    ("SwinModel", {**_SWIN, "image_size": [30, 18], "patch_size": [4, 4], "num_channels": 2}),
    ("SwinModel", {**_SWIN, "use_absolute_embeddings": True, "mlp_ratio": 3.0, "drop_path_rate": 0.0}),
    ("SwinModel", {**_SWIN, **_STAGES, "embed_dim": 8, "hidden_act": "gelu_new"}),
    ("SwinBackbone", {**_SWIN, "out_indices": [0, 1, 2]}),
    ("SwinBackbone", {**_SWIN, **_STAGES, "window_size": 4, "out_features": ["stage1", "stage3"]}),
    ("SwinBackbone", {**_SWIN, "image_size": 20, "window_size": 5, "out_features": ["stage2"]}),
]
SWINV2: list[Case] = [
    ("Swinv2ForImageClassification", {**_SWIN, "num_labels": 5}),
    ("Swinv2ForImageClassification", {**_SWIN, "image_size": 28, "qkv_bias": False, "hidden_act": "relu"}),
    ("Swinv2ForImageClassification", {**_SWIN, **_STAGES, "pretrained_window_sizes": [4, 4, 2]}),
    ("Swinv2Model", {**_SWIN, "image_size": [30, 18], "patch_size": [4, 4], "num_channels": 2}),
    ("Swinv2Model", {**_SWIN, "window_size": 5, "pretrained_window_sizes": [0, 6], "mlp_ratio": 3.0}),
    ("Swinv2Model", {**_SWIN, **_STAGES, "embed_dim": 8, "layer_norm_eps": 1e-3, "num_channels": 1}),
    ("Swinv2Backbone", {**_SWIN, "out_indices": [0, 1, 2]}),
    ("Swinv2Backbone", {**_SWIN, **_STAGES, "window_size": 7, "out_features": ["stage1", "stage3"]}),
]

PATCHTST: list[Case] = [
    ("PatchTSTForPrediction", {**_SERIES}),
    ("PatchTSTForPrediction", {**_SERIES, **_LAYER, "pooling_type": None, "pre_norm": False, "bias": False}),
    (
        "PatchTSTForPrediction",
        {**_SERIES, "pooling_type": "max", "scaling": "mean", "share_embedding": False},
    ),
    ("PatchTSTForPrediction", {**_SERIES, "use_cls_token": True, "scaling": None, "num_input_channels": 1}),
    ("PatchTSTForPrediction", {**_SERIES, "loss": "nll", "pooling_type": None}),
    ("PatchTSTForPrediction", {**_SERIES, "loss": "nll", "distribution_output": "normal", "scaling": True}),
    (
        "PatchTSTForPrediction",
        {**_SERIES, "loss": "nll", "distribution_output": "negative_binomial", "use_cls_token": True},
    ),
    ("PatchTSTModel", {**_SERIES, "pre_norm": False, "norm_eps": 1e-3}),
    ("PatchTSTModel", {**_SERIES, **_LAYER, "use_cls_token": True, "share_embedding": False}),
    ("PatchTSTForClassification", {**_SERIES, "num_targets": 4, "do_mask_input": True}),
    ("PatchTSTForClassification", {**_SERIES, **_LAYER, "num_targets": 3, "use_cls_token": True}),
    (
        "PatchTSTForRegression",
        {**_SERIES, "num_targets": 2, "output_range": [-1, 2.5], "pooling_type": "max"},
    ),
    ("PatchTSTForRegression", {**_SERIES, "num_targets": 3, "loss": "nll", "activation_function": "relu"}),
    (
        "PatchTSTForRegression",
        {**_SERIES, "num_targets": 2, "loss": "nll", "distribution_output": "negative_binomial"},
    ),
    ("PatchTSTForPretraining", {**_SERIES}),
    (
        "PatchTSTForPretraining",
        {**_SERIES, **_LAYER, "use_cls_token": True, "patch_stride": 3},
    ),
]


def _sam(
    vision: dict[str, Any] | None = None, size: int = 40, patch: int = 4, width: int = 16, **parts: Any
) -> Case:
    """A prompted segmenter whose three parts agree in the sizes of image, patches and vectors."""
    sizes = {"image_size": size, "patch_size": patch}
    return "SamModel", {
        "vision_config": {
            **{"hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 3, "mlp_dim": 37},
            **{"window_size": 3, "global_attn_indexes": [1], "output_channels": width},
            **{**sizes, "num_pos_feats": width // 2, **(vision or {})},
        },
        "prompt_encoder_config": {**sizes, "hidden_size": width, **parts.get("prompt", {})},
        "mask_decoder_config": {
            **{"hidden_size": width, "num_attention_heads": 2, "mlp_dim": 41, "iou_head_hidden_dim": 24},
            **parts.get("decoder", {}),
        },
    }


SAM: list[Case] = [
    _sam(),  # windows of 3 in a grid of 10: padded windows
    _sam({"window_size": 5, "global_attn_indexes": [0, 2]}, prompt={"mask_input_channels": 8}),
    _sam({"num_channels": 1, "qkv_bias": False, "hidden_act": "relu"}, size=21, patch=3),
    _sam({"use_rel_pos": False, "window_size": 4, "layer_norm_eps": 1e-3}, width=24),
    _sam(
        {"use_abs_pos": False, "global_attn_indexes": [], "num_hidden_layers": 2, "mlp_dim": None},
        decoder={"num_hidden_layers": 1, "num_multimask_outputs": 2, "iou_head_depth": 2},
    ),
    _sam(
        {"window_size": 0, "hidden_size": 32},
        decoder={"num_hidden_layers": 3, "hidden_act": "gelu", "layer_norm_eps": 1e-2, "iou_head_depth": 4},
        prompt={"hidden_act": "silu", "layer_norm_eps": 1e-2},
    ),
    _sam(size=23, patch=3),  # incomplete patches are cut off
]

_FOUR = {**_RESNET, "hidden_sizes": [8, 12, 16, 24], "depths": [1, 2, 1, 1]}
_FOUR |= {"out_features": ["stage1", "stage2", "stage3", "stage4"]}
_DEEP = {**_FOUR, "layer_type": "bottleneck", "downsample_in_bottleneck": True, "num_channels": 1}
# in images of 77 x 61 pixels: grids of 20 x 16 (padded to windows) down to 3 x 2 (smaller than a window)
_SWIN4 = {"model_type": "swin", "embed_dim": 8, "depths": [2, 1, 2, 1], "num_heads": [1, 2, 2, 4]}
_SWIN4 |= {"window_size": 3, "image_size": 64, "out_features": _FOUR["out_features"]}
_QUERIES = {"model_type": "detr", "d_model": 24, "decoder_layers": 2, "decoder_ffn_dim": 37}
_QUERIES |= {"decoder_attention_heads": 3, "encoder_attention_heads": 3, "num_queries": 5}


def _maskformer(backbone: dict[str, Any], decoder: dict[str, Any] | None = None, **more: Any) -> Case:
    sizes = {"fpn_feature_size": 32, "mask_feature_size": 11, "num_labels": 4, **more}
    parts = {"backbone_config": backbone, "decoder_config": {**_QUERIES, **(decoder or {})}}
    return "MaskFormerForInstanceSegmentation", {**parts, **sizes}


MASKFORMER: list[Case] = [
    _maskformer(_FOUR),  # as wide as the decoder: no projection
    _maskformer(_DEEP, {"d_model": 36, "activation_function": "gelu"}),
    _maskformer(_SWIN4, {"num_queries": 1, "decoder_layers": 3}),
    _maskformer({**_SWIN4, "window_size": 4, "model_type": "maskformer-swin"}, fpn_feature_size=64),
    _maskformer({**_SWIN4, "qkv_bias": False, "embed_dim": 6, "num_heads": [2, 2, 3, 3]}, num_labels=1),
    _maskformer({**_FOUR, "downsample_in_first_stage": True}, {"dropout": 0.3, "decoder_layers": 1}),
]

_MASK2FORMER = {"feature_size": 32, "mask_feature_size": 13, "hidden_dim": 32, "num_attention_heads": 4}
_MASK2FORMER |= {"encoder_feedforward_dim": 29, "dim_feedforward": 37, "encoder_layers": 2, "num_labels": 4}
_MASK2FORMER |= {"decoder_layers": 5, "num_queries": 6, "backbone_config": _FOUR}

MASK2FORMER: list[Case] = [
    ("Mask2FormerForUniversalSegmentation", {**_MASK2FORMER, **more})
    for more in (
        {},
        {"pre_norm": True, "backbone_config": _SWIN4},
        {"hidden_dim": 24, "encoder_layers": 1},  # a projection between pixel decoder and decoder
        {"enforce_input_projection": True, "common_stride": 8, "activation_function": "gelu"},
        {"backbone_config": {**_SWIN4, "window_size": 4}, "num_attention_heads": 2, "num_queries": 1},
        {"backbone_config": _DEEP, "feature_size": 64, "decoder_layers": 2, "dropout": 0.1},
    )
]

# every second case has masked attention: see `harness.reference`
_EOMT = {**_SIZES, "num_hidden_layers": 3, "mlp_ratio": 2, "image_size": 24, "patch_size": 4}
_EOMT = {key: value for key, value in _EOMT.items() if key != "intermediate_size"}
_EOMT |= {
    "num_blocks": 2,
    "num_queries": 5,
    "num_upscale_blocks": 1,
    "num_register_tokens": 2,
    "num_labels": 4,
}

EOMT: list[Case] = [
    ("EomtForUniversalSegmentation", {**_EOMT, **more})
    for more in (
        {},
        {},
        {"num_blocks": 3, "num_upscale_blocks": 2, "hidden_act": "gelu_new"},
        {"use_swiglu_ffn": True, "num_queries": 1, "layer_norm_eps": 1e-3},
        {"num_register_tokens": 0, "num_channels": 1, "hidden_size": 35, "num_attention_heads": 5},
        {
            "image_size": 27,
            "patch_size": 5,
            "num_blocks": 1,
            "num_upscale_blocks": 0,
            "layerscale_value": 0.1,
        },
    )
]

_VILT = {**_BERT, "image_size": 12, "patch_size": 4, "num_labels": 5}
VILT: list[Case] = [
    ("ViltForQuestionAnswering", {**_VILT}),
    ("ViltForQuestionAnswering", {**_VILT, "qkv_bias": False, "type_vocab_size": 1, "num_labels": 1}),
    ("ViltForQuestionAnswering", {**_VILT, "modality_type_vocab_size": 3, "hidden_act": "gelu_new"}),
    ("ViltForQuestionAnswering", {**_VILT, "image_size": 27, "patch_size": 5, "num_channels": 1}),
    ("ViltForQuestionAnswering", {**_VILT, "hidden_size": 35, "num_attention_heads": 5, "pad_token_id": 0}),
    ("ViltForQuestionAnswering", {**_VILT, "num_hidden_layers": 3, "layer_norm_eps": 1e-3}),
]

_OWN = {
    **{"maskformer": MASKFORMER, "mask2former": MASK2FORMER, "eomt": EOMT},
    **{"t5": T5, "bart": BART, "marian": MARIAN, "vit": VIT, "deit": DEIT, "patchtst": PATCHTST},
    **{"vilt": VILT, "sam": SAM, "yolos": YOLOS, "detr": DETR},
    **{"dinov2": DINOV2, "swin": SWIN, "swinv2": SWINV2},
    **{"gpt2": GPT2, "llama": LLAMA, "mistral": MISTRAL, "qwen2": QWEN2, "qwen3": QWEN3},
    **{"falcon": FALCON, "palm": PALM, "gpt_neox": GPT_NEOX, "gemma2": GEMMA2, "gemma3": GEMMA3},
    **{
        "bert": BERT,
        "roberta": ROBERTA,
        "distilbert": DISTILBERT,
        "electra": ELECTRA,
        "albert": ALBERT,
        "modernbert": MODERNBERT,
        "deberta": DEBERTA,
    },
}
FAMILIES = {family: every_head(cases) for family, cases in _OWN.items()}
FAMILIES["roberta"] += ROBERTA_TOO
FAMILIES |= {"clip": CLIP, "siglip": SIGLIP}

CASES = [
    (family, number, reference, settings)
    for family, cases in FAMILIES.items()
    for number, (reference, settings) in enumerate(cases)
]
