"""Small networks of the families of Hugging Face's transformers, which need ``pip install transformers``."""

from __future__ import annotations

from typing import Any

import torch

from tools.collected.subject import Builder, Subject, imported

PACKAGE = "transformers"
WORDS, TOKENS, SIDE, WIDTH = 100, 8, 32, 32

_SMALL = {
    "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "vocab_size": WORDS, "max_position_embeddings": 64,
}  # fmt: skip
_GROUPED = _SMALL | {"num_key_value_heads": 2}
_IMAGE = _SMALL | {"image_size": SIDE, "patch_size": 8}
_TRANSLATING = {
    "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": WORDS,
    "max_position_embeddings": 64,
}  # fmt: skip
_SOUND = _SMALL | {
    "conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "mask_time_prob": 0.0, "layerdrop": 0.0,
}  # fmt: skip
_GPT = {"n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": WORDS}
_STAGES = {"hidden_sizes": [16, 32], "depths": [1, 1]}
_TOWERS = {
    "text_config": _SMALL | {"projection_dim": 16},
    "vision_config": _IMAGE | {"projection_dim": 16},
    "projection_dim": 16,
}

# Family: configuration, network, settings, kind of input.
FAMILIES: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "albert": ("AlbertConfig", "AlbertForSequenceClassification", _SMALL | {"embedding_size": 16}, "text"),
    "bart": ("BartConfig", "BartForSequenceClassification", _TRANSLATING, "text"),
    "beit": ("BeitConfig", "BeitForImageClassification", _IMAGE, "image"),
    "bert": ("BertConfig", "BertForSequenceClassification", _SMALL, "text"),
    "bloom": ("BloomConfig", "BloomForCausalLM", _SMALL | {"n_layer": 2, "n_head": 4}, "text"),
    "clip": ("CLIPConfig", "CLIPModel", _TOWERS, "both"),
    "convnext": ("ConvNextConfig", "ConvNextForImageClassification", _STAGES | {"num_stages": 2}, "image"),
    "deberta-v2": ("DebertaV2Config", "DebertaV2ForSequenceClassification", _SMALL, "text"),
    "deit": ("DeiTConfig", "DeiTForImageClassification", _IMAGE, "image"),
    "dinov2": ("Dinov2Config", "Dinov2ForImageClassification", _IMAGE, "image"),
    "distilbert": (
        "DistilBertConfig", "DistilBertForSequenceClassification",
        {"dim": WIDTH, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "vocab_size": WORDS}, "text",
    ),
    "electra": ("ElectraConfig", "ElectraForSequenceClassification", _SMALL | {"embedding_size": 16}, "text"),
    "falcon": ("FalconConfig", "FalconForCausalLM", _SMALL, "text"),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", _GROUPED | {"head_dim": 8}, "text"),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", _GPT, "text"),
    "gpt-j": ("GPTJConfig", "GPTJForCausalLM", _GPT | {"rotary_dim": 4}, "text"),
    "gpt-neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", _SMALL, "text"),
    "hubert": ("HubertConfig", "HubertForSequenceClassification", _SOUND, "sound"),
    "llama": ("LlamaConfig", "LlamaForCausalLM", _GROUPED, "text"),
    "mistral": ("MistralConfig", "MistralForCausalLM", _GROUPED, "text"),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", _GROUPED | {"num_local_experts": 2}, "text"),
    "mpnet": ("MPNetConfig", "MPNetForSequenceClassification", _SMALL, "text"),
    "opt": (
        "OPTConfig", "OPTForCausalLM",
        _SMALL | {"ffn_dim": 64, "word_embed_proj_dim": WIDTH}, "text",
    ),
    "phi": ("PhiConfig", "PhiForCausalLM", _SMALL, "text"),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", _GROUPED | dict(pad_token_id=0), "text"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", _GROUPED, "text"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", _GROUPED | {"head_dim": 8}, "text"),
    "resnet": ("ResNetConfig", "ResNetForImageClassification", _STAGES | {"embedding_size": 16}, "image"),
    "roberta": ("RobertaConfig", "RobertaForSequenceClassification", _SMALL, "text"),
    "segformer": (
        "SegformerConfig", "SegformerForImageClassification",
        {
            "hidden_sizes": [16, 32], "depths": [1, 1], "num_encoder_blocks": 2, "num_attention_heads": [2, 4],
            "sr_ratios": [2, 1], "patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 2],
        }, "image",
    ),
    "siglip": ("SiglipConfig", "SiglipModel", {key: _TOWERS[key] for key in ("text_config", "vision_config")}, "both"),
    "swin": (
        "SwinConfig", "SwinForImageClassification",
        {"image_size": SIDE, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
        "image",
    ),
    "t5": (
        "T5Config", "T5ForConditionalGeneration",
        {"d_model": WIDTH, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": WORDS}, "translation",
    ),
    "vit": ("ViTConfig", "ViTForImageClassification", _IMAGE, "image"),
    "wav2vec2": ("Wav2Vec2Config", "Wav2Vec2ForSequenceClassification", _SOUND, "sound"),
    "whisper": (
        "WhisperConfig", "WhisperForConditionalGeneration",
        _TRANSLATING | dict(
            num_mel_bins=16, max_source_positions=20, max_target_positions=20, pad_token_id=0, bos_token_id=1,
            eos_token_id=2, decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None,
        ), "spectrogram",
    ),
    "xlm-roberta": ("XLMRobertaConfig", "XLMRobertaForSequenceClassification", _SMALL, "text"),
}  # fmt: skip


def builder(family: str) -> Builder:
    return lambda: _build(family)


def _build(family: str) -> Subject:
    transformers = imported(PACKAGE)
    transformers.logging.set_verbosity_error()  # default special tokens lie outside a small vocabulary; see below
    config, network, settings, kind = FAMILIES[family]
    made = getattr(transformers, config)(**settings)
    if hasattr(made, "use_cache"):
        made.use_cache = False
    _place_special_tokens(made)
    return Subject(getattr(transformers, network)(made), *_inputs(kind))


def _place_special_tokens(config: Any) -> None:
    """Padding, begin and end become words 0, 1 and 2; the inputs below end with the last of these."""
    for part in (config, getattr(config, "text_config", None)):
        for number, name in enumerate(("pad_token_id", "bos_token_id", "eos_token_id")):
            if hasattr(part, name):
                setattr(part, name, number)


def _inputs(kind: str) -> tuple[dict[str, Any], str]:
    words = torch.randint(3, WORDS, (2, TOKENS))
    words[:, -1] = 2
    image = torch.randn(2, 3, SIDE, SIDE)
    text, picture = f"{TOKENS} tokens", f"{SIDE} × {SIDE}"
    if kind == "text":
        return {"input_ids": words, "attention_mask": torch.ones_like(words)}, text
    if kind == "image":
        return {"pixel_values": image}, picture
    if kind == "both":
        return {"input_ids": words, "pixel_values": image}, f"{text}, {picture}"
    if kind == "translation":
        return {"input_ids": words, "decoder_input_ids": words}, f"{text} twice"
    if kind == "sound":
        return {"input_values": torch.randn(2, 400)}, "400 samples"
    return {"input_features": torch.randn(2, 16, 40), "decoder_input_ids": words}, f"16 × 40, {text}"
