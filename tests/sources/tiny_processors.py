"""Tokenizers and processors of a few hundred tokens, made on the spot from transformers' own classes, and a model.

Each function imports its classes: they take three seconds and 90 MiB, which each worker forked later would copy.
"""

import io

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PAD, BEGIN, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
QWEN_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
CHATML = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT = "You are a helpful assistant. user What is the sum of two numbers? Look at the image and say what it shows."


def tiny_tokenizer(*special):
    """A byte-level BPE of some hundred tokens with ChatML's own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=[PAD, BEGIN, END, *special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT] * 4, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=END)
    fast.add_special_tokens({"additional_special_tokens": [BEGIN, *special]})
    fast.chat_template = CHATML
    return fast


def tiny_qwen2_vl():
    """A processor whose images have 1 to 16 tokens."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    from tests.sources.tiny_qwen2_vl import TinyQwen2VLProcessor

    images = Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, temporal_patch_size=2, min_pixels=64, max_pixels=1024)
    return TinyQwen2VLProcessor(images, tiny_tokenizer(*QWEN_TOKENS), chat_template=CHATML)


def tiny_qwen2_vl_model(processor):
    """The model of these processors, with a few thousand random weights."""
    from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLConfig
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel

    vision = {"depth": 1, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "mlp_ratio": 1, "patch_size": 4}
    text = {
        "vocab_size": len(processor.tokenizer),
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]},
        "pad_token_id": processor.tokenizer.pad_token_id,
    }
    config = Qwen2VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=processor.image_token_id,
        video_token_id=processor.video_token_id,
        vision_start_token_id=processor.tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=processor.tokenizer.convert_tokens_to_ids("<|vision_end|>"),
    )
    torch.manual_seed(0)
    return Qwen2VLModel(config).eval()


def tiny_llava():
    """A processor whose images all have four tokens."""
    from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
    from transformers.models.llava.processing_llava import LlavaProcessor

    images = LlavaImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    return LlavaProcessor(
        images,
        tiny_tokenizer("<image>"),
        patch_size=8,
        vision_feature_select_strategy="full",
        chat_template=CHATML.replace("<|vision_start|><|image_pad|><|vision_end|>", "<image>"),
    )


def tiny_llava_model(processor):
    """A model of these processors, with a few thousand random weights."""
    from transformers.models.llava.configuration_llava import LlavaConfig
    from transformers.models.llava.modeling_llava import LlavaModel

    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlavaConfig(
        vision_config={"model_type": "siglip_vision_model", "image_size": 16, "patch_size": 8, **small},
        text_config={"model_type": "llama", "vocab_size": len(processor.tokenizer), "pad_token_id": 0, **small},
        image_token_index=processor.image_token_id,
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
    )
    torch.manual_seed(0)
    return LlavaModel(config).eval()


def picture(width, height, shade=0):
    """A picture that is not the same everywhere."""
    pixels = (np.arange(width * height * 3) * 7 + shade) % 256
    return Image.fromarray(pixels.astype(np.uint8).reshape(height, width, 3))


def png(image):
    """The bytes of an image's file."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
