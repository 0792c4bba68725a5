"""Chat templates in the manners of well-known model families, and a tokenizer that knows their special tokens."""

from pathlib import Path

from tokenizers import AddedToken

from streamdata.text.masks import ChatEncoder
from streamdata.text.templates import ChatRenderer
from streamdata.text.tokenizer import load_tokenizer
from tests.text.tiny_tokenizer import save_tiny_tokenizer

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|begin|>", "<|head|>", "<|/head|>", "<|eot|>", "<s>", "</s>", "[INST]"]
SPECIAL += ["[/INST]", "<turn>", "<end_turn>", "<|User|>", "<|Assistant|>", "<|eos|>"]
ADDED = ["<think>", "</think>", "<tool_call>", "</tool_call>"]  # not special, as Qwen has them

CHATML = """\
{%- if messages[0].role != 'system' %}{{ '<|im_start|>system\\nBe good.<|im_end|>\\n' }}{% endif %}
{%- if tools %}{{ '<|im_start|>system\\nTools: ' + tools | tojson + '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

CHATML_MARKED = """\
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

LLAMA = """\
{{- '<|begin|>' }}
{%- if messages[0].role == 'system' %}{% set system = messages[0].content | trim %}{% set messages = messages[1:] %}
{%- else %}{% set system = '' %}{% endif %}
{{- '<|head|>system<|/head|>\\n\\n' }}{% if tools %}{{ 'Tools: ' + tools | tojson + '\\n' }}{% endif %}
{{- system + '<|eot|>' }}
{%- for message in messages %}
{%- if message.tool_calls is defined %}
{{- '<|head|>assistant<|/head|>\\n\\n' + message.tool_calls[0].function | tojson + '<|eot|>' }}
{%- else %}
{{- '<|head|>' + message.role + '<|/head|>\\n\\n' + message.content | trim + '<|eot|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|head|>assistant<|/head|>\\n\\n' }}{% endif %}"""

MISTRAL = """\
{{- '<s>' }}
{%- set system = messages[0].content + '\\n\\n' if messages[0].role == 'system' else '' %}
{%- set messages = messages[1:] if system else messages %}
{%- set ns = namespace(last=0) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}
{%- if message.role == 'user' %}
{{- '[INST] ' + (system if loop.index0 == ns.last else '') + message.content + ' [/INST]' }}
{%- else %}
{{- ' ' + message.content + '</s>' }}
{%- endif %}
{%- endfor %}"""

GEMMA = """\
{{- '<s>' }}
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
{%- set role = 'model' if message.role == 'assistant' else message.role %}
{{- '<turn>' + role + '\\n' + message.content | trim + '<end_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<turn>model\\n' }}{% endif %}"""

QWEN3 = """\
{%- if tools %}{{ '<|im_start|>system\\n' + tools | tojson + '<|im_end|>\\n' }}{% endif %}
{%- set ns = namespace(last=0) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- elif message.role == 'assistant' %}
{%- set content = message.content if message.content is string else '' %}
{%- set reasoning = message.reasoning_content if message.reasoning_content is string else '' %}
{%- if '</think>' in content %}
{%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > ns.last and (loop.last or reasoning) %}
{{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
{%- else %}{{ content }}{% endif %}
{%- for call in message.tool_calls or [] %}
{%- if not loop.first or content %}{{ '\\n' }}{% endif %}
{{- '<tool_call>\\n' + call.function | tojson + '\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"""

# All that the assistant says, its thoughts and calls of tools too, up to its end of turn.
QWEN3_MARKED = QWEN3.replace("{{- '<|im_start|>assistant\\n' }}", "{{- '<|im_start|>assistant\\n' }}{% generation %}")
QWEN3_MARKED = QWEN3_MARKED.replace(
    "{%- endfor %}\n{{- '<|im_end|>\\n' }}", "{%- endfor %}\n{{- '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}"
)

DEEPSEEK = """\
{{- '<|begin|>' }}
{%- for message in messages %}
{%- if message.role == 'system' %}{{ message.content }}
{%- elif message.role == 'user' %}{{ '<|User|>' + message.content }}
{%- else %}
{%- set content = message.content.split('</think>')[-1] if '</think>' in message.content else message.content %}
{{- '<|Assistant|>' + content + '<|eos|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|Assistant|><think>\\n' }}{% endif %}"""

TEMPLATES = {
    "chatml": CHATML,
    "chatml_marked": CHATML_MARKED,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "gemma": GEMMA,
    "qwen3": QWEN3,
    "qwen3_marked": QWEN3_MARKED,
    "deepseek": DEEPSEEK,
}


def chat_tokenizer(path: Path, template: str | None = CHATML):
    """A tiny tokenizer, an object of its own, with the special tokens of all these templates."""
    name = save_tiny_tokenizer(path, text="the user system assistant says a good answer to what is asked")
    tokenizer = load_tokenizer(name)
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    tokenizer.add_tokens([AddedToken(token) for token in ADDED])
    tokenizer.chat_template = template
    return tokenizer


def render_chat(tokenizer, messages, *, tools=None, add_generation_prompt=False, **settings):
    """One conversation as text."""
    renderer = ChatRenderer(tokenizer, **settings)
    return renderer.render(messages, tools=tools, add_generation_prompt=add_generation_prompt)


def encode_chat(tokenizer, messages, *, tools=None, **settings):
    """One conversation in tokens."""
    return ChatEncoder(tokenizer, **settings).encode(messages, tools=tools)
