"""The prefill leg in the eyes of the vLLM that the engines run: its own request models, no server."""

import json
import subprocess
from pathlib import Path

import pytest

from toolkit.router.request.bodies import MISS_PARAMS, prefill_body
from toolkit.router.request.dialects import Endpoint

pytestmark = pytest.mark.engine
ENGINE = Path(__file__).parents[3] / ".venv-engine" / "bin" / "python"
CHAT, COMPLETIONS, RESPONSES, MESSAGES = Endpoint
HELLO = [{"role": "user", "content": "é"}]
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
BASES = {
    CHAT: {"model": "m", "messages": HELLO, "max_completion_tokens": 500},
    COMPLETIONS: {"model": "m", "prompt": "é"},
    RESPONSES: {"model": "m", "input": HELLO, "max_output_tokens": 500},
    MESSAGES: {"model": "m", "messages": HELLO, "max_tokens": 500},
}
TOOLS = [{"type": "function", "function": FUNCTION}]
RESPONSE_TOOLS = [{"type": "function", "strict": None, **FUNCTION}]
MESSAGE_TOOLS = [{"name": "f", "input_schema": {"type": "object"}}]
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
CASES = [
    *[(endpoint, {"stream": True}) for endpoint in Endpoint],
    (CHAT, {**STREAMED, "min_tokens": 20, "stop": ["a"]}),
    (CHAT, {"logprobs": True, "top_logprobs": 5, "logprob_token_ids": [1, 2]}),
    (CHAT, {"tools": TOOLS, "tool_choice": "required"}),
    (CHAT, {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}}),
    (CHAT, {"tools": TOOLS, "tool_choice": "none"}),
    (CHAT, {"response_format": SCHEMA}),
    (CHAT, {"structured_outputs": {"regex": "a+"}}),
    (CHAT, {"reasoning_effort": "low", "chat_template_kwargs": {"a": 1}, "documents": [{"text": "t"}]}),
    (CHAT, {"add_generation_prompt": False, "continue_final_message": True, "truncate_prompt_tokens": 9}),
    (CHAT, {"return_token_ids": True, "return_prompt_text": True, "cache_salt": "s", "n": None}),
    (COMPLETIONS, {**STREAMED, "prompt": [1, 2], "logprobs": 3, "max_tokens": 9, "min_tokens": 9}),
    (COMPLETIONS, {"echo": True, "max_tokens": 0, "add_special_tokens": False}),
    (COMPLETIONS, {"response_format": SCHEMA, "stop": "a"}),
    (RESPONSES, {"instructions": "i", "tools": RESPONSE_TOOLS, "tool_choice": "required"}),
    (RESPONSES, {"tools": RESPONSE_TOOLS, "tool_choice": {"type": "function", "name": "f"}}),
    (RESPONSES, {"text": {"format": {"type": "json_object"}}, "reasoning": {"effort": "low"}}),
    (RESPONSES, {"include": ["message.output_text.logprobs"], "top_logprobs": 3, "store": True}),
    (RESPONSES, {"input": "plain", "truncation": "disabled", "enable_response_messages": True}),
    (MESSAGES, {"system": "s", "tools": MESSAGE_TOOLS, "tool_choice": {"type": "any"}}),
    (MESSAGES, {"stop_sequences": ["a"], "output_config": {"effort": "low"}}),
]


@pytest.fixture(scope="module")
def judged(read):
    """What vLLM says of each case's prefill leg, by one start of its Python."""
    pairs = []
    for endpoint, members in CASES:
        body = {**BASES[endpoint], **members}
        found = read(endpoint, body)
        assert found.transferable
        pairs.append((endpoint, body, json.loads(b"".join(prefill_body(found, None)))))
    script = Path(__file__).with_name("vllm_models.py")
    done = subprocess.run(
        [ENGINE, script], input=json.dumps(pairs), capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda n: f"{CASES[n][0]}-{n}")
def test_it_is_accepted_and_renders_the_same_prompt(judged, case):
    assert judged[case] == {
        "differs": [],
        "tokens": 1,
        "stream": False,
        "transfer": dict(MISS_PARAMS),
        "store": False if CASES[case][0] == RESPONSES else None,
    }
