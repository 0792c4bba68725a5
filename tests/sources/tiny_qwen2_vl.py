"""A processor of Qwen2-VL that needs no torchvision; what it is made of takes three seconds to import."""

import torch
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor


class TinyVideoProcessor:
    """A video as every second of its frames, each as the patches of an image; no torchvision."""

    def __init__(self, image_processor):
        self._image_processor = image_processor
        self.merge_size = image_processor.merge_size

    def __call__(self, videos, **kwargs):
        made = [self._image_processor(list(video[::2]), return_tensors="pt") for video in videos]
        grids = [[len(video["image_grid_thw"]), *video["image_grid_thw"][0, 1:].tolist()] for video in made]
        pixels = torch.cat([video["pixel_values"] for video in made])
        return {"pixel_values_videos": pixels, "video_grid_thw": torch.tensor(grids)}

    def to_dict(self):
        """As transformers' own."""
        return {"merge_size": self.merge_size}


class TinyQwen2VLProcessor(Qwen2VLProcessor):
    """Without `video_processor` in its signature, which would have to be one of torchvision's."""

    def __init__(self, image_processor=None, tokenizer=None, chat_template=None, **kwargs):
        super().__init__(image_processor, tokenizer, chat_template=chat_template)
        self.video_processor = TinyVideoProcessor(image_processor)
