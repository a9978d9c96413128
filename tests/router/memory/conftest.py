"""Handles, keys of turns and a clock for the map of conversations."""

import base64
import random

import orjson
import pytest

from toolkit.router.memory.handle import Handle
from toolkit.router.request.identity import Scope, keys_of_messages, keys_of_prompt


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def handle_params(lease="lease", blocks=1500, seed=0, **changed):
    """As decode's connector gives it for 24,000 tokens in blocks of 16: ids of 17 bits, 120 digests."""
    source = random.Random(seed)
    return {
        "do_remote_prefill": False,
        "do_remote_decode": True,
        "remote_block_ids": [[]],
        "remote_engine_id": "decode+1f2e3d4c",
        "remote_request_id": f"chatcmpl-{source.randbytes(16).hex()}-0",
        "remote_host": "10.0.0.2",
        "remote_port": 5600,
        "remote_num_tokens": 0,
        "remote_blocks_expiry_time": 1234.5 + seed,
        "remote_registration_generation": 0,
        "transfer_mode": "pull",
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "pd_blocks": [base64.b64encode(source.randbytes(blocks * 17 // 8)).decode()],
        "pd_lease": lease,
        "pd_proof": {
            "format": 2,
            "block_size": 16,
            "tokens": blocks * 16,
            "digests": base64.b64encode(source.randbytes(8 * min(blocks, 120))).decode(),
        },
        **changed,
    }


@pytest.fixture
def make_params():
    return handle_params


@pytest.fixture
def make_handle():
    def make(lease="lease", **changed):
        handle = Handle.pack(handle_params(lease, **changed))
        assert handle is not None
        return handle

    return make


class Turns:
    """Keys of requests: `turns.chat("a", "b")` has the user's messages a and b; replies stand between."""

    def __init__(self, **scope):
        self.scope = Scope(**{"tenant": b"t" * 16, "endpoint": "/v1/chat/completions", "model": "m", **scope})

    def chat(self, *said, name=None):
        messages = [b'{"role":"system"}']
        for number, text in enumerate(said):
            # What decode answered depends on all that was said before.
            messages += [orjson.dumps({"role": "assistant", "content": said[:number]})] if number else []
            messages.append(orjson.dumps({"role": "user", "content": text}))
        return keys_of_messages(self.scope, messages, name)

    def prompt(self, text, name=None):
        return keys_of_prompt(self.scope, orjson.dumps(text), name)


@pytest.fixture
def turns():
    return Turns()


@pytest.fixture
def make_turns():
    return Turns
