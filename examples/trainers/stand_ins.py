"""What stands in for GPUs in `trl_async_grpo.py`: a server of answers, a kernel of attention, and a tiny model."""

import json
import random
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from threading import Thread
from types import SimpleNamespace
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl.experimental.async_grpo import async_grpo_trainer, async_rollout_worker, packing


class Answers(BaseHTTPRequestHandler):
    """In vLLM's place: three tokens at random, after a while; one answer takes 50 times as long as another."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(0.001 * 50 ** random.random())
        choice = {"token_ids": random.choices(range(8), k=3), "logprobs": {"token_logprobs": [-5.5] * 3}}
        content = json.dumps({"choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """No log."""


def attend(query: Tensor, key: Tensor, value: Tensor, ends_q: Tensor, ends_k: Tensor, *_: Any, **more: Any) -> Tensor:
    """In FlashAttention's place: causal attention of segments that lie end to end, (tokens, heads, size)."""
    parts = []
    for (a, b), (c, d) in zip(pairwise(ends_q.tolist()), pairwise(ends_k.tolist()), strict=True):
        q, k, v = (part.transpose(0, 1) for part in (query[a:b], key[c:d], value[c:d]))
        mask = torch.ones(b - a, d - c, dtype=torch.bool).tril(d - c - b + a)
        found = scaled_dot_product_attention(q, k, v, mask, scale=more["softmax_scale"], enable_gqa=True)
        parts.append(found.transpose(0, 1))
    return torch.cat(parts)


def install() -> str:
    """Put both in place; return the url of the answers."""
    async_rollout_worker.is_vllm_available = lambda: True
    packing._flash_attn = lambda: SimpleNamespace(flash_attn_varlen_func=attend)  # noqa: SLF001  no other way
    async_grpo_trainer.get_peak_flops_per_device = lambda *_: None  # it asks CUDA
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def save_tiny_model(path: str) -> None:
    """Write a model of few weights, and its tokenizer: one token for each word."""
    special = {"[UNK]": 253, "[EOS]": 254, "[PAD]": 255}
    words = models.WordLevel({f"t{number}": number for number in range(253)} | special, unk_token="[UNK]")
    rule = Tokenizer(words)
    rule.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=rule, eos_token="[EOS]", pad_token="[PAD]")
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    tokenizer.response_template = {"defaults": {"role": "assistant"}, "fields": {"content": {"close_pattern": "$"}}}
    tokenizer.save_pretrained(path)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=256, eos_token_id=254, **sizes)).save_pretrained(path)
