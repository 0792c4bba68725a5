"""What the assistant says in the formats of known model families, as regular expressions on the rendered text.

They know the formats' tokens and nothing of how a mask is found. A row's first group is said, header excluded, and end
of turn included; `but` is in it and not said. A prompt that goes on after the header, such as with `<think>`, is header
as far as the text has it.
"""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

FOLDERS = {"trl": "chat_templates", "axolotl": "utils/chat_templates/templates"}

ALTERNATE, NO_SYSTEM, NO_TOOLS = "roles must alternate", "System role not supported", "nexpected role|Only user"


class Row(NamedTuple):
    """One format.

    Attributes:
        says: what the assistant says.
        but: what of that others say.
        refuses: why its templates refuse conversations.
        typed: whether contents are lists of parts.
        arguments_as_text: whether those of calls are.
        eos: the end of sequence.
        lost: the conversations in which what a message says cannot be told from what others say.
    """

    says: str
    but: str = r"(?!)"
    refuses: tuple[str, ...] = ()
    typed: bool = False
    arguments_as_text: bool = False
    eos: str = "</s>"
    lost: tuple[str, ...] = ()


WITH_EARLIER_ANSWERS = ("system", "long", "open", "assistant first", "thoughts", "rounds of tools")
WITH_EARLIER_ANSWERS += ("content beside calls", "thoughts before calls")
CHATML = r"<\|im_start\|>assistant\n"
LLAMA = Row(r"<\|start_header_id\|>assistant<\|end_header_id\|>\n\n(.*?<\|eot_id\|>)")
COHERE = Row(r"<\|CHATBOT_TOKEN\|>(.*?<\|END_OF_TURN_TOKEN\|>)", refuses=(ALTERNATE,))
COHERE2 = Row(r"<\|CHATBOT_TOKEN\|><\|START_RESPONSE\|>(.*?<\|END_OF_TURN_TOKEN\|>)", refuses=(ALTERNATE,))
COMMAND_A_TOOLS = Row(r"<\|CHATBOT_TOKEN\|>(.+?<\|END_OF_TURN_TOKEN\|>)")
GEMMA = Row(r"<start_of_turn>model\n(.*?<end_of_turn>)", refuses=(ALTERNATE,))
GEMMA_ALONE = GEMMA._replace(refuses=(ALTERNATE, NO_SYSTEM))
# One turn of the model may hold several messages, and the results of tools.
GEMMA4 = Row(r"<\|turn>model\n(.*?)(?=<\|turn>|\Z)", but=r"response:.*?<tool_response\|>|(?<=<turn\|>)\n")
# Its prompt goes on with thoughts that are empty.
GEMMA4_SILENT = GEMMA4._replace(says=r"<\|turn>model\n(?:<\|channel>thought\n)?(.*?)(?=<\|turn>|\Z)")
DEEPSEEK = Row(
    r"(?:<\uff5cAssistant\uff5c>|<\uff5ctool\u2581outputs\u2581end\uff5c>)((?!<\uff5cA).*?<\uff5cend\u2581of\u2581sentence\uff5c>)"
)
# The second call of a conversation has neither a header nor the end of the results before it.
DEEPSEEK3 = DEEPSEEK._replace(arguments_as_text=True, lost=("rounds of tools", "content beside calls"))
PHI3 = Row(r"<\|assistant\|>\n(.*?<\|end\|>(?:\n<\|endoftext\|>)?)", eos="<|endoftext|>")
MISTRAL = Row(r"\[/(?:INST|TOOL_RESULTS)\](?!\[TOOL_RESULTS\])(.*?</s>)", refuses=(ALTERNATE,))
NEMOTRON = Row(CHATML + r"(?:<think>\n|<think>)?(.*?<\|im_end\|>)")
UTTERANCE = Row(r"Assistant:(.*?<end_of_utterance>)", typed=True)

CHATML_ROW, THINKING = Row(CHATML + r"(.*?<\|im_end\|>)"), Row(CHATML + r"(?:<think>\n)?(.*?<\|im_end\|>)")
ROWS = {
    "trl/cohere": COHERE,
    "trl/cohere2": COHERE2,
    "trl/deepseek_r1_distill": DEEPSEEK,
    "trl/deepseekv3": DEEPSEEK3,
    "trl/diffusion_gemma": GEMMA4,
    "trl/gemma": GEMMA_ALONE,
    "trl/gemma3": GEMMA,
    "trl/gemma4": GEMMA4,
    "trl/gemma4_v2": GEMMA4,
    "trl/gemma4_v3": GEMMA4,
    "trl/gemma4_v4": GEMMA4,
    "trl/gemma4_v5": GEMMA4,
    "trl/glm4moe": Row(r"<\|assistant\|>(.*?)(?=<\|user\|>|<\|observation\|>|\Z)"),
    "trl/gptoss": Row(
        r"<\|start\|>assistant((?:<\|channel\|>analysis[^<]*<\|message\|>[^<]*<\|end\|><\|start\|>assistant)?"
        r".*?(?:<\|end\|>|<\|call\|>|<\|return\|>))"
    ),
    "trl/idefics3": UTTERANCE,
    "trl/lfm2": CHATML_ROW,
    "trl/lfm2_v2": CHATML_ROW,
    "trl/llama3": LLAMA,
    "trl/llama3_1": LLAMA,
    "trl/llama3_2": LLAMA,
    "trl/llava_next": Row(r"(?:\[/INST\]|^|SYS>>\n\n)( .*?</s>)", refuses=(NO_TOOLS,), typed=True),
    "trl/muse_glimmer": Row(
        r"<\|start\|>assistant((?: to=self<\|message\|>[^<]*<\|eom\|><\|start\|>assistant)? to=.*?<\|eot\|>)"
    ),
    "trl/nemotron_3_5_lightning": NEMOTRON,
    "trl/nemotron_3_nano": NEMOTRON,
    "trl/nemotron_3_super": NEMOTRON,
    "trl/nemotron_3_ultra": NEMOTRON,
    "trl/phi3": PHI3,
    "trl/phi3_5": PHI3,
    "trl/qwen2_5": CHATML_ROW,
    "trl/qwen2_5_vl": CHATML_ROW,
    "trl/qwen3": CHATML_ROW,
    "trl/qwen3_5_nothink": Row(CHATML + r"(?:<think>\n\n</think>\n\n|<think>)?(.*?<\|im_end\|>)"),
    "trl/qwen3_5_think": THINKING,
    "trl/qwen3_6": THINKING,
    "trl/qwen3_8": THINKING,
    "trl/qwen3_instruct_2507": CHATML_ROW,
    "trl/qwen3_vl": CHATML_ROW,
    "trl/smolvlm": UTTERANCE,
    "axolotl/alpaca": Row(r"### Response:\n(.*?</s>)"),
    "axolotl/aya": COHERE,
    "axolotl/chatml": CHATML_ROW,
    "axolotl/cohere": COHERE,
    "axolotl/command_a": COHERE2._replace(refuses=()),
    "axolotl/command_a_rag": COMMAND_A_TOOLS,
    "axolotl/command_a_tool_use": COMMAND_A_TOOLS,
    "axolotl/deepseek_v2": Row(r"<\uff5cAssistant\uff5c>(.*?</s>)"),
    "axolotl/deepseek_v3": DEEPSEEK._replace(arguments_as_text=True),
    "axolotl/exaone": Row(r"\[\|assistant\|\](.*?\[\|endofturn\|\])"),
    "axolotl/exaone4": Row(r"\[\|assistant\|\]\n?(?:<think>\n\n</think>\n\n)?(.*?\[\|endofturn\|\])"),
    "axolotl/falcon_h1": CHATML_ROW,
    "axolotl/gemma": GEMMA_ALONE,
    "axolotl/gemma3": GEMMA,
    "axolotl/gemma3n": GEMMA,
    "axolotl/gemma4": GEMMA4_SILENT,
    "axolotl/gemma4_unified": GEMMA4_SILENT,
    "axolotl/jamba": Row(r"<\|assistant\|>(.*?<\|eom\|>)"),
    "axolotl/llama3": LLAMA,
    "axolotl/llama3_2_vision": LLAMA,
    "axolotl/llama4": Row(r"<\|header_start\|>assistant<\|header_end\|>\n\n(.*?<\|eot\|>)"),
    "axolotl/metharme": Row(r"<\|model\|>(.*?)(?=<\|user\|>|<\|model\|>|\Z)"),
    "axolotl/mistral_v1": MISTRAL,
    "axolotl/mistral_v2v3": MISTRAL,
    "axolotl/mistral_v3_tekken": MISTRAL,
    "axolotl/mistral_v7_tekken": Row(r"\[/(?:INST|SYSTEM_PROMPT)\](?!\[)(.*?</s>)", refuses=(NO_TOOLS,)),
    "axolotl/nemotron_h": CHATML_ROW._replace(refuses=(NO_TOOLS,)),
    # The header ends the user's message, and no other.
    "axolotl/phi_3": Row(r"(?:<\|assistant\|>\n|<s>(?!<)|(?<=<\|end\|>\n)(?!<\|[uas]))(.*?<\|end\|>)"),
    "axolotl/phi_35": PHI3,
    "axolotl/pixtral": MISTRAL,
    "axolotl/qwen2_vl": CHATML_ROW,
    "axolotl/qwen3": Row(CHATML + r"(?:<think>\n\n|<think>)?(.*?<\|im_end\|>)"),
    "axolotl/qwen3_5": Row(CHATML + r"(?:<think>\n\n|<think>)?(.*?<\|im_end\|>)"),
    "axolotl/qwen_25": CHATML_ROW,
}
"""Templates without generation marks, by the package that has them. Others say themselves what the assistant says."""

OWN = {
    # Each round opens a text of its own, so that the end of one and the start of the next adjoin.
    "own/llama2": (
        (
            "{% for m in messages %}{% if m.role == 'user' %}{{ '<s>[INST] ' + m.content + ' [/INST]' }}"
            "{% elif m.role == 'system' %}{{ raise_exception('System role not supported') }}"
            "{% elif m.role == 'tool' %}{{ raise_exception('Only user and assistant') }}"
            "{% else %}{{ ' ' + m.content + ' </s>' }}{% endif %}{% endfor %}"
        ),
        Row(r"(?:\[/INST\]|^)( .*?</s>)", refuses=(NO_SYSTEM, NO_TOOLS)),
    ),
    "own/zephyr": (
        (
            "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '</s>\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
        ),
        Row(r"<\|assistant\|>\n(.*?</s>)"),
    ),
    # The end of text opens it too.
    "own/olmo": (
        (
            "{{ eos_token }}{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}"
            "{{ eos_token if m.role == 'assistant' }}{{ '\n' if not loop.last }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '\n<|assistant|>\n' }}{% endif %}"
        ),
        Row(r"<\|assistant\|>\n(.*?<\|endoftext\|>)", eos="<|endoftext|>"),
    ),
    # Only the last answer has an end, prompt or not, so that nothing says how much of what follows on others is theirs.
    "own/unlike": (
        (
            "{{ eos_token }}{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}"
            "{% if loop.last and m.role == 'assistant' %}{{ eos_token }}{% else %}{{ '\n' }}{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
        ),
        Row(r"<\|assistant\|>\n(.*?<\|endoftext\|>)", eos="<|endoftext|>", lost=WITH_EARLIER_ANSWERS),
    ),
    # The next header stands at the end, whoever is to speak.
    "own/dangling": (
        "{% for m in messages %}{{ m.role.title() + ': ' + m.content + '</s>' }}{% endfor %}{{ 'Assistant: ' }}",
        Row(r"Assistant: (.*?</s>)"),
    ),
    # The prompt begins with what separates messages, and the first one lacks it.
    "own/separated": (
        (
            "{{ '<s>' }}{% for m in messages %}{{ '<|end|>\n' if not loop.first }}"
            "{{ '<|' + m.role + '|>' + m.content }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|end|>\n<|assistant|>' }}{% endif %}"
        ),
        Row(r"<\|assistant\|>(.*?)(?=<\|end\|>|\Z)", lost=("assistant first",)),
    ),
}
"""Templates in other manners, with their rows."""

TOKEN = re.compile(
    r"<\|[\w/]+\|>|<\|\w+>|<\w+\|>|<\|\"\|>|<\uff5c[^>]*\uff5c>|\[\|\w+\|\]|\[/?[A-Z_]+\]"
    r"|</?(?:start_of_turn|end_of_turn|end_of_utterance|think|tool_call|tool_response|s|sop)>|\[gMASK\]"
)


def installed_templates() -> dict[str, str]:
    """The templates of the packages that are installed, which are not imported."""
    found: dict[str, str] = {}
    for package, folder in FOLDERS.items():
        spec = find_spec(package)
        for place in (spec and spec.submodule_search_locations) or ():
            files = sorted((Path(place) / folder).glob("*.jinja"))
            found |= {f"{package}/{file.stem}": file.read_text(encoding="utf-8") for file in files}
    return found


def said(text: str, row: Row) -> list[bool]:
    """Which characters the assistant says."""
    found = [False] * len(text)
    for match in re.finditer(row.says, text, re.DOTALL):
        begin, end = match.span(1)
        found[begin:end] = [True] * (end - begin)
        for other in re.finditer(row.but, match[1], re.DOTALL):
            found[begin + other.start() : begin + other.end()] = [False] * len(other[0])
    return found
