"""Networks with small random weights, for `benches/architectures.py`: architectures of transformers, torchvision and timm.

Each architecture is a `Network`: how to build it, and its inputs by name. All weights and inputs are derived from a seed, so that two
processes that build the same network get the same bits. Embedding and head do not share weights unless the name says so, because exporters
may write shared weights twice.
"""
import dataclasses
from typing import Callable

import torch
import torchvision
import transformers
from torch import nn

# Sizes that nearly all configurations in transformers have under these names.
COMMON = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
TEXT = {**COMMON, "vocab_size": 256, "tie_word_embeddings": False, "pad_token_id": 0}
GROUPED = {**TEXT, "num_key_value_heads": 2, "head_dim": 16}
IMAGE = {**COMMON, "image_size": 32, "patch_size": 8, "num_labels": 5}
BATCH, LENGTH = 2, 16


@dataclasses.dataclass
class Network:
    """An architecture: its kind, the network, its inputs, additional arguments for the forward pass, and the class axis."""
    kind: str
    build: Callable
    inputs: Callable
    extra: dict = dataclasses.field(default_factory=dict)
    class_axis: int = -1


class Logits(nn.Module):
    """The network with positional inputs and the logits as its only output."""

    def __init__(self, network, names, extra):
        super().__init__()
        self.network, self.names, self.extra = network, names, extra

    def forward(self, *inputs):
        found = self.network(**dict(zip(self.names, inputs)), **self.extra)
        for name in ("logits", "pred_masks"):
            if hasattr(found, name):
                return getattr(found, name)
        if hasattr(found, "image_embeds"):  # a similarity's factors; a matrix of similarities would have a class per example of the batch
            return self.network.logit_scale.exp() * found.image_embeds * found.text_embeds
        return found["out"] if isinstance(found, dict) else found


def build(name, seed=0):
    """The network with this name, ready for evaluation, and its inputs by name."""
    network = NETWORKS[name]
    torch.manual_seed(seed)
    inputs = network.inputs()
    module = network.build()
    for part in module.modules():
        if isinstance(part, (nn.Dropout, torchvision.ops.StochasticDepth)):
            part.p = 0.0
    # Exporters would write identical weights, such as the ones of all normalizations, as one tensor, which would be trained as one.
    with torch.no_grad():
        for weights in module.parameters():
            weights += 0.01 * torch.randn_like(weights)
    return Logits(module, list(inputs), network.extra).eval(), inputs


def normalizes_batches(module):
    """Whether training computes something that evaluation does not: batch statistics."""
    return any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())


def tokens(length=LENGTH):
    return torch.randint(3, 256, (BATCH, length))


def text():
    return {"input_ids": tokens(), "attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.int64)}


def two_texts():
    return {"input_ids": tokens(), "attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.int64),
            "decoder_input_ids": tokens(LENGTH // 2)}


def pixels(size=32):
    return lambda: {"pixel_values": torch.randn(BATCH, 3, size, size)}


def images(size=64, batch=8, name="x"):
    return lambda: {name: torch.randn(batch, 3, size, size)}


def from_config(model, config, **fields):
    """How to build a network from transformers. Classes are looked up when it is built, because not every version has all of them."""
    return lambda: getattr(transformers, model)(getattr(transformers, config)(**fields))


def decoder(name, **fields):
    return Network("decoder", from_config(f"{name}ForCausalLM", f"{name}Config", **fields), text, {"use_cache": False})


def mixture(name, **fields):
    """Experts in the only form that both exporters can write."""
    def network():
        whole = from_config(f"{name}ForCausalLM", f"{name}Config", **fields)()
        whole.set_experts_implementation("batched_mm")
        return whole
    return Network("mixture of experts", network, text, {"use_cache": False})


def encoder(name, **fields):
    build = from_config(f"{name}ForSequenceClassification", f"{name}Config", num_labels=3, **fields)
    return Network("encoder", build, text)


def translator(name, **fields):
    build = from_config(f"{name}ForConditionalGeneration", f"{name}Config", **fields)
    return Network("encoder-decoder", build, two_texts, {"use_cache": False})


def vision(name, size=32, **fields):
    return Network("vision", from_config(f"{name}ForImageClassification", f"{name}Config", **fields), pixels(size))


def audio(name, **fields):
    sizes = {"vocab_size": 32, "conv_dim": (32, 32), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_conv_pos_embeddings": 16,
             "num_conv_pos_embedding_groups": 4}
    build = from_config(f"{name}ForCTC", f"{name}Config", **COMMON, **sizes, **fields)
    return Network("audio", build, lambda: {"input_values": torch.randn(BATCH, 2000)})


def convolutional(name, size=64, batch=8, **fields):
    def network():
        return getattr(torchvision.models, name)(weights=None, num_classes=10, **fields)
    return Network("torchvision", network, images(size, batch))


def segmenting(name, input_name="x", batch=2):
    def network():
        return getattr(torchvision.models.segmentation, name)(weights=None, weights_backbone=None, num_classes=5)
    return Network("torchvision, segmentation", network, images(64, batch, input_name), class_axis=1)


def with_small_head(name, features):
    """A network from torchvision with a single layer in place of its classifier, which has millions of weights. There is no pooling to a
    fixed size: it would enlarge the small results of small images, and the TorchScript exporter does not support it."""
    def network():
        whole = getattr(torchvision.models, name)(weights=None)
        whole.avgpool, whole.classifier = nn.Identity(), nn.Linear(features, 10)
        return whole
    return Network("torchvision", network, images(64))


def vision_transformer():
    return torchvision.models.VisionTransformer(image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=128,
                                                num_classes=10)


def whisper():
    fields = {"vocab_size": 256, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
              "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "max_source_positions": 32,
              "num_mel_bins": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
              "suppress_tokens": None, "begin_suppress_tokens": None, "tie_word_embeddings": False}
    build = from_config("WhisperForConditionalGeneration", "WhisperConfig", **fields)
    inputs = lambda: {"input_features": torch.randn(BATCH, 16, 64), "decoder_input_ids": tokens(8)}
    return Network("audio", build, inputs, {"use_cache": False})


def clip():
    config = {"text_config": {**COMMON, "vocab_size": 256, "max_position_embeddings": 32, "eos_token_id": 2},
              "vision_config": {**COMMON, "image_size": 32, "patch_size": 8}, "projection_dim": 32}
    inputs = lambda: {"input_ids": tokens(), "pixel_values": torch.randn(BATCH, 3, 32, 32)}
    return Network("vision and text", from_config("CLIPModel", "CLIPConfig", **config), inputs)


def layouts():
    return {**text(), "bbox": torch.tensor([8, 16, 100, 40]).expand(BATCH, LENGTH, 4).contiguous()}


def speech_to_text():
    fields = {**BART, "max_source_positions": 64, "max_target_positions": 64, "num_conv_layers": 2, "conv_kernel_sizes": (3, 3),
              "conv_channels": 32, "input_feat_per_channel": 16, "input_channels": 1}
    build = from_config("Speech2TextForConditionalGeneration", "Speech2TextConfig", **fields)
    inputs = lambda: {"input_features": torch.randn(BATCH, 64, 16), "decoder_input_ids": tokens(8)}
    return Network("audio", build, inputs, {"use_cache": False})


def detr():
    """The classes of its queries; like the original, it has frozen normalizations."""
    def network():
        backbone = transformers.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic",
                                             out_features=["stage2"])
        config = transformers.DetrConfig(use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone,
                                         num_queries=6, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                                         decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, num_labels=4)
        return transformers.DetrForObjectDetection(config)
    return Network("vision", network, pixels(64))


def segment_anything():
    """The masks for a point."""
    def network():
        vision = {**COMMON, "output_channels": 32, "image_size": 64, "patch_size": 8, "window_size": 4, "global_attn_indexes": [1],
                  "num_pos_feats": 16, "mlp_dim": 128}
        prompts = {"hidden_size": 32, "image_size": 64, "patch_size": 8, "mask_input_channels": 4}
        masks = {"hidden_size": 32, "mlp_dim": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "iou_head_hidden_dim": 32,
                 "attention_downsample_rate": 1}
        return transformers.SamModel(transformers.SamConfig(vision_config=vision, prompt_encoder_config=prompts,
                                                            mask_decoder_config=masks))
    inputs = lambda: {"pixel_values": torch.randn(BATCH, 3, 64, 64), "input_points": 64 * torch.rand(BATCH, 1, 1, 2)}
    return Network("vision", network, inputs, {"multimask_output": True}, class_axis=2)


def timm_network(name, size=64, batch=4, **fields):
    """A network from timm."""
    def network():
        import timm  # only these networks need it
        return timm.create_model(name, pretrained=False, num_classes=10, **fields)
    return Network("timm", network, images(size, batch))


BART = {"vocab_size": 256, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "max_position_embeddings": 64, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "tie_word_embeddings": False}
T5 = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 256, "decoder_start_token_id": 0,
      "tie_word_embeddings": False}
EXPERTS = {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2}
GPT = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 256, "n_positions": 128, "tie_word_embeddings": False}

NETWORKS = {
    "gpt2": Network("decoder", from_config("GPT2LMHeadModel", "GPT2Config", **GPT), text, {"use_cache": False}),
    "gpt2_tied": Network("decoder", from_config("GPT2LMHeadModel", "GPT2Config", **{**GPT, "tie_word_embeddings": True}), text,
                         {"use_cache": False}),
    "t5_tied": translator("T5", **{**T5, "tie_word_embeddings": True}),
    "gpt_neo": decoder("GPTNeo", hidden_size=64, num_layers=2, num_heads=4, vocab_size=256, attention_types=[[["global", "local"], 1]],
                       window_size=8, max_position_embeddings=128, tie_word_embeddings=False),
    "gpt_neox": decoder("GPTNeoX", **TEXT),
    "opt": decoder("OPT", hidden_size=64, ffn_dim=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=256, word_embed_proj_dim=64,
                   pad_token_id=0, tie_word_embeddings=False),
    "bloom": decoder("Bloom", hidden_size=64, n_layer=2, n_head=4, vocab_size=256, tie_word_embeddings=False),
    "llama": decoder("Llama", **GROUPED),
    "mistral": decoder("Mistral", **GROUPED, sliding_window=8),
    "qwen2": decoder("Qwen2", **{key: value for key, value in GROUPED.items() if key != "head_dim"}),
    "qwen3": decoder("Qwen3", **GROUPED),
    "gemma": decoder("Gemma", **GROUPED),
    "gemma2": decoder("Gemma2", **GROUPED),
    "phi": decoder("Phi", **TEXT),
    "phi3": decoder("Phi3", **TEXT, num_key_value_heads=2),
    "falcon": decoder("Falcon", hidden_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=256, tie_word_embeddings=False),
    "olmo2": decoder("Olmo2", **TEXT, num_key_value_heads=2),
    "stablelm": decoder("StableLm", **TEXT, num_key_value_heads=2),
    "mamba": dataclasses.replace(
        decoder("Mamba", hidden_size=64, state_size=8, num_hidden_layers=2, vocab_size=256, tie_word_embeddings=False), kind="state space"),
    "mixtral": mixture("Mixtral", **GROUPED, num_local_experts=4),
    "qwen2_moe": mixture("Qwen2Moe", **TEXT, num_key_value_heads=2, **EXPERTS),
    "olmoe": mixture("Olmoe", **TEXT, num_key_value_heads=2, num_experts=4, num_experts_per_tok=2),
    "bert": encoder("Bert", **TEXT),
    "roberta": encoder("Roberta", **TEXT),
    "distilbert": encoder("DistilBert", dim=64, n_layers=2, n_heads=4, hidden_dim=128, vocab_size=256),
    "albert": encoder("Albert", **TEXT, embedding_size=32),
    "electra": encoder("Electra", **TEXT, embedding_size=32),
    "mpnet": encoder("MPNet", **TEXT),
    "deberta_v2": encoder("DebertaV2", **TEXT, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8,
                          norm_rel_ebd="layer_norm", share_att_key=True),
    "modernbert": encoder("ModernBert", **TEXT, local_attention=8, global_attn_every_n_layers=2, cls_token_id=1, sep_token_id=2,
                          bos_token_id=1, eos_token_id=2),
    "t5": translator("T5", **T5),
    "bart": translator("Bart", **BART),
    "pegasus": translator("Pegasus", **BART),
    "marian": Network("encoder-decoder", from_config("MarianMTModel", "MarianConfig", **BART), two_texts, {"use_cache": False}),
    "vit": vision("ViT", **IMAGE),
    "deit": vision("DeiT", **IMAGE),
    "beit": vision("Beit", **IMAGE),
    "dinov2": vision("Dinov2", **{key: value for key, value in IMAGE.items() if key != "intermediate_size"}, mlp_ratio=2),
    "swin": vision("Swin", image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=5),
    "convnextv2": vision("ConvNextV2", image_size=32, num_stages=2, hidden_sizes=[16, 32], depths=[2, 2], num_labels=5),
    "mobilevit": vision("MobileViT", size=64, image_size=64, hidden_sizes=[32, 48, 64], neck_hidden_sizes=[8, 16, 24, 32, 40, 48, 64],
                        num_labels=5),
    "segformer": dataclasses.replace(
        vision("Segformer", size=64, depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 32, 64], num_attention_heads=[1, 2, 2, 4],
               decoder_hidden_size=32, num_labels=5),
        build=from_config("SegformerForSemanticSegmentation", "SegformerConfig", depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 32, 64],
                          num_attention_heads=[1, 2, 2, 4], decoder_hidden_size=32, num_labels=5),
        class_axis=1),
    "clip": clip(),
    "wav2vec2": audio("Wav2Vec2"),
    "hubert": audio("Hubert"),
    "whisper": whisper(),
    "ast": Network("audio", from_config("ASTForAudioClassification", "ASTConfig", **COMMON, max_length=64, num_mel_bins=32, num_labels=5),
                   lambda: {"input_values": torch.randn(BATCH, 64, 32)}),
    "tv_alexnet": with_small_head("alexnet", 256),
    "tv_vgg11_bn": with_small_head("vgg11_bn", 512 * 2 * 2),
    "tv_squeezenet1_1": convolutional("squeezenet1_1"),
    "tv_resnet18": convolutional("resnet18"),
    "tv_resnext50_32x4d": convolutional("resnext50_32x4d"),
    "tv_densenet121": convolutional("densenet121"),
    "tv_googlenet": convolutional("googlenet", aux_logits=False, init_weights=False),
    "tv_inception_v3": convolutional("inception_v3", 96, aux_logits=False, init_weights=False),
    "tv_mobilenet_v2": convolutional("mobilenet_v2"),
    "tv_mobilenet_v3_small": convolutional("mobilenet_v3_small"),
    "tv_shufflenet_v2": convolutional("shufflenet_v2_x0_5"),
    "tv_mnasnet": convolutional("mnasnet0_5"),
    "tv_efficientnet_b0": convolutional("efficientnet_b0"),
    "tv_regnet_y_400mf": convolutional("regnet_y_400mf"),
    "tv_convnext_tiny": convolutional("convnext_tiny", batch=2),
    "tv_swin_t": convolutional("swin_t", batch=2),
    "tv_vit": Network("torchvision", vision_transformer, images(32, 2)),
    "tv_fcn_resnet50": segmenting("fcn_resnet50"),
    # It normalizes one value per example, which takes two examples, also in the smaller batch.
    "tv_deeplabv3_mobilenet": segmenting("deeplabv3_mobilenet_v3_large", batch=4),
    "tv_lraspp_mobilenet": segmenting("lraspp_mobilenet_v3_large", "input"),
    "tv_maxvit": Network("torchvision", lambda: torchvision.models.MaxVit(
        input_size=(64, 64), stem_channels=16, partition_size=2, block_channels=[16, 32], block_layers=[1, 1], head_dim=16,
        stochastic_depth_prob=0.0, num_classes=10), images(64, 4)),
    "gptj": decoder("GPTJ", **GPT, rotary_dim=8),
    "codegen": decoder("CodeGen", **GPT, rotary_dim=8),
    "gemma3": Network("decoder", from_config("Gemma3ForCausalLM", "Gemma3TextConfig", **GROUPED, sliding_window=8,
                                             layer_types=["sliding_attention", "full_attention"]), text, {"use_cache": False}),
    "cohere": decoder("Cohere", **TEXT, num_key_value_heads=2),
    "granite": decoder("Granite", **TEXT, num_key_value_heads=2),
    "xglm": decoder("XGLM", vocab_size=256, d_model=64, ffn_dim=128, num_layers=2, attention_heads=4, max_position_embeddings=64,
                    pad_token_id=0, tie_word_embeddings=False),
    "qwen3_moe": mixture("Qwen3Moe", **GROUPED, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64),
    "xlm_roberta": encoder("XLMRoberta", **TEXT),
    "xlnet": encoder("XLNet", vocab_size=256, d_model=64, n_layer=2, n_head=4, d_inner=128, pad_token_id=0),
    "longformer": encoder("Longformer", **TEXT, attention_window=8, max_position_embeddings=64),
    "layoutlm": dataclasses.replace(encoder("LayoutLM", **TEXT, max_2d_position_embeddings=128), inputs=layouts),
    "squeezebert": encoder("SqueezeBert", **TEXT, embedding_size=64),
    "convbert": encoder("ConvBert", **TEXT, embedding_size=32),
    "roformer": encoder("RoFormer", **TEXT, embedding_size=64, max_position_embeddings=64),
    "mobilebert": encoder("MobileBert", **TEXT, embedding_size=32, intra_bottleneck_size=32),
    "mt5": translator("MT5", **T5),
    "mbart": translator("MBart", **BART),
    "m2m_100": translator("M2M100", **BART),
    "blenderbot": translator("Blenderbot", **BART),
    "speech_to_text": speech_to_text(),
    "wavlm": audio("WavLM"),
    "detr": detr(),
    "sam": segment_anything(),
    "pvt_v2": vision("PvtV2", size=64, image_size=64, hidden_sizes=[16, 32, 32, 64], num_attention_heads=[1, 2, 2, 4], depths=[1, 1, 1, 1],
                     num_labels=5),
    "poolformer": vision("PoolFormer", size=64, hidden_sizes=[16, 32, 32, 64], depths=[1, 1, 1, 1], num_labels=5),
    "timm_ghostnet": timm_network("ghostnet_100", drop_rate=0.0),
    "timm_mixer": timm_network("mixer_s32_224", size=224, batch=2),
    "timm_resmlp": timm_network("resmlp_12_224", size=224, batch=2),
    "timm_efficientnetv2": timm_network("tf_efficientnetv2_b0", drop_rate=0.0),
    "timm_cait": timm_network("cait_xxs24_224", size=32, img_size=32, patch_size=8, depth=2, embed_dim=64, num_heads=4),
    "timm_edgenext": timm_network("edgenext_xx_small"),
    "timm_rexnet": timm_network("rexnet_100"),
    "timm_hardcorenas": timm_network("hardcorenas_a"),
}
