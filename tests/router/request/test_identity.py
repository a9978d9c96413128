"""Keys: a turn's end is found in the next turn's chain, and in nobody else's."""

import itertools
import json
import random
from dataclasses import replace

import orjson
import pytest

from toolkit.router.request.identity import (
    KEY_BYTES,
    Scope,
    keys_of_messages,
    keys_of_name,
    keys_of_prompt,
    tenant,
)

SECRET = b"s" * 32
SCOPE = Scope(b"t" * 16, "/v1/chat/completions", "model", None, None, (b'[{"type":"function"}]', b""))
OTHERS = {
    "tenant": b"u" * 16,
    "endpoint": "/v1/messages",
    "model": "other",
    "cache_salt": "salt",
    "cache_key": "key",
    "before": (b"", b'[{"type":"function"}]'),
}

GOLDEN = {
    "messages": "66916c29fc5659cf426a317d2ed014c5",
    "name": "cea6705c8681716cba259a8390738bd1",
    "prompt": "427d321b0bbcad1961340dfb4746fc3c",
}


class Credentials:
    def __init__(self, *raw):
        self.raw = raw

    def all(self, name):
        return [value for known, value in self.raw if known == name]


def message(role, text):
    return orjson.dumps({"role": role, "content": text})


def history(turns):
    """Of a turn's request: the user speaks last."""
    said = [message("system", "Be kind."), message("user", "0")]
    for turn in range(1, turns):
        said += [message("assistant", f"answer {turn}"), message("user", f"question {turn}")]
    return said


def all_keys(keys):
    return {key for key in (keys.explicit, keys.end, *keys.chain) if key is not None}


class TestTenant:
    def test_is_of_the_credentials_and_the_secret(self):
        headers = [(b"authorization", b"Bearer a"), (b"x-api-key", b"b")]
        known = tenant(Credentials(*headers), SECRET)
        assert len(known) == 16
        assert known == tenant(Credentials(*headers, (b"user-agent", b"other")), SECRET)
        others = [
            tenant(Credentials(*headers), b"another secret of 32 bytes......"),
            tenant(Credentials(headers[0]), SECRET),
            tenant(Credentials(headers[1]), SECRET),
            tenant(Credentials((b"authorization", b"b"), (b"x-api-key", b"Bearer a")), SECRET),
            tenant(Credentials(*headers, headers[0]), SECRET),
            tenant(Credentials(), SECRET),
        ]
        assert len({known, *others}) == 7

    @pytest.mark.parametrize("secret", [b"", b"s" * 15, b"s" * 65])
    def test_a_secret_of_another_length_is_an_error(self, secret):
        with pytest.raises(ValueError, match="16 to 64 bytes"):
            tenant(Credentials(), secret)


class TestMessages:
    def test_each_turn_ends_where_the_next_one_goes_on(self):
        turns = [keys_of_messages(SCOPE, history(turn)) for turn in range(1, 6)]
        for earlier, later in itertools.pairwise(turns):
            assert earlier.end == earlier.chain[-1]
            assert later.chain[: len(earlier.chain)] == earlier.chain
            assert later.chain.index(earlier.end) == len(later.chain) - 3

    def test_keys_begin_with_the_tenant(self):
        keys = keys_of_messages(SCOPE, history(3), "name")
        assert {len(key) for key in all_keys(keys)} == {KEY_BYTES}
        assert {key[:16] for key in all_keys(keys)} == {SCOPE.tenant}

    @pytest.mark.parametrize("field", OTHERS)
    def test_another_scope_has_no_key_in_common(self, field):
        other = replace(SCOPE, **{field: OTHERS[field]})
        mine, theirs = (keys_of_messages(scope, history(3)) for scope in (SCOPE, other))
        assert not all_keys(mine) & all_keys(theirs)

    def test_a_changed_message_ends_what_is_common(self):
        said = history(4)
        for place in range(len(said)):
            edited = [*said[:place], message("user", "edited"), *said[place + 1 :]]
            mine, theirs = keys_of_messages(SCOPE, said).chain, keys_of_messages(SCOPE, edited).chain
            assert [a == b for a, b in zip(mine, theirs, strict=True)] == [
                at < place for at in range(len(said))
            ]

    @pytest.mark.parametrize(
        ("one", "other"),
        [([b"1", b"2"], [b"12"]), ([b"1", b"23"], [b"12", b"3"]), ([b"[]", b"{}"], [b"[]{}"])],
    )
    def test_parts_do_not_run_into_each_other(self, one, other):
        assert keys_of_messages(SCOPE, one).end != keys_of_messages(SCOPE, other).end

    def test_what_stands_before_does_not_run_into_each_other(self):
        scopes = [replace(SCOPE, before=before) for before in [(b"ab", b""), (b"a", b"b")]]
        assert len({keys_of_messages(scope, [b"{}"]).end for scope in scopes}) == 2

    @pytest.mark.parametrize("mark", [{"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}])
    @pytest.mark.parametrize("order", [("role", "content"), ("content", "role")])
    @pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" , ", " : ")])
    def test_a_cache_mark_that_moved_on_changes_nothing(self, mark, order, separators):
        def said(text, marked):
            block = {"type": "text", "text": text}
            members = {"role": "user", "content": [{**block, "cache_control": mark} if marked else block]}
            return json.dumps({name: members[name] for name in order}, separators=separators).encode()

        before = keys_of_messages(SCOPE, [said("a", True)])
        after = keys_of_messages(SCOPE, [said("a", False), b"{}", said("b", True)])
        assert before.end == after.chain[0]

    def test_a_cache_mark_in_what_was_said_counts(self):
        quoted = [f',"cache_control":{{"type":"{kind}"}}' for kind in ("a", "b")]
        assert len({keys_of_messages(SCOPE, [message("user", text)]).end for text in quoted}) == 2

    def test_none_have_no_keys(self):
        keys = keys_of_messages(SCOPE, [])
        assert (keys.explicit, keys.chain, keys.end) == (None, (), None)

    def test_keys_of_an_earlier_release_are_still_found(self):
        """They stand in map files; another value needs another FORMAT there."""
        assert keys_of_messages(SCOPE, history(2), "name").end[16:].hex() == GOLDEN["messages"]
        assert keys_of_messages(SCOPE, history(2), "name").explicit[16:].hex() == GOLDEN["name"]
        assert keys_of_prompt(SCOPE, b'"' + b"p" * 600 + b'"').end[16:].hex() == GOLDEN["prompt"]


class TestNames:
    def test_a_name_is_of_its_endpoint_model_salt_and_tenant(self):
        fields = [field for field in OTHERS if field not in ("before", "cache_key")]
        scopes = [SCOPE, *(replace(SCOPE, **{field: OTHERS[field]}) for field in fields)]
        assert len({keys_of_name(scope, "name").explicit for scope in scopes}) == 5

    def test_it_stays_whatever_is_said(self):
        scope = replace(SCOPE, before=(b"other tools",), cache_key="key")
        named = {
            keys_of_name(SCOPE, "name").explicit,
            keys_of_messages(SCOPE, history(1), "name").explicit,
            keys_of_messages(scope, history(2), "name").explicit,
            keys_of_prompt(SCOPE, b'"' + b"p" * 9000 + b'"', "name").explicit,
        }
        assert len(named) == 1

    @pytest.mark.parametrize("name", [None, ""])
    def test_no_name_no_key(self, name):
        assert keys_of_name(SCOPE, name).explicit is None

    def test_a_cache_key_names_only_what_has_no_history(self):
        scope = replace(SCOPE, cache_key="shared")
        assert keys_of_messages(scope, history(1)).explicit is None
        assert keys_of_prompt(scope, b'"' + b"p" * 600 + b'"').explicit is None
        short = keys_of_prompt(scope, b'"short"')
        assert short.explicit == keys_of_name(scope, None).explicit is not None
        assert short.explicit != keys_of_name(SCOPE, "shared").explicit


class TestPrompts:
    @pytest.mark.parametrize(
        "sizes", [(600, 601), (511, 5000), (3000, 17_000), (16_500, 40_000), (70_000, 70_600)]
    )
    def test_a_prompt_that_goes_on_is_found_by_the_length_of_the_earlier(self, sizes):
        whole = "".join(random.Random(1).choices('abc"\\\né😀 ', k=sizes[1]))
        earlier, later = (keys_of_prompt(SCOPE, orjson.dumps(whole[:size])) for size in sizes)
        assert later.chain[: len(earlier.chain)] == earlier.chain
        assert [*later.text.keys_at([earlier.text.length])] == [earlier.end]

    def test_tokens_go_on_at_whole_tokens_only(self):
        tokens = random.Random(1).choices(range(150_000), k=500)
        earlier = keys_of_prompt(SCOPE, orjson.dumps(tokens))
        later = keys_of_prompt(SCOPE, orjson.dumps([*tokens, 7]))
        assert later.chain[: len(earlier.chain)] == earlier.chain
        assert [*later.text.keys_at([earlier.text.length])] == [earlier.end]
        tokens[-1] = int(f"{tokens[-1]}1")
        other = keys_of_prompt(SCOPE, orjson.dumps([*tokens, 7]))
        assert [*other.text.keys_at([earlier.text.length])] != [earlier.end]

    def test_text_and_tokens_have_nothing_in_common(self):
        numbers = ",".join("1" * 600)
        one, other = (
            keys_of_prompt(SCOPE, f"[{numbers}]".encode()),
            keys_of_prompt(SCOPE, f'"{numbers}"'.encode()),
        )
        assert not all_keys(one) & all_keys(other)

    def test_keys_at_several_lengths_are_those_at_each(self):
        text = keys_of_prompt(SCOPE, orjson.dumps("p" * 9000)).text
        lengths = [1, 512, 513, 8999]
        assert [*text.keys_at(lengths)] == [key for length in lengths for key in text.keys_at([length])]

    @pytest.mark.parametrize(
        ("length", "points"),
        [(511, 0), (512, 1), (1023, 1), (16_384, 32), (20_479, 32), (20_480, 33), (400_000, 125)],
    )
    def test_the_grid_is_fine_at_first(self, length, points):
        keys = keys_of_prompt(SCOPE, b'"' + b"p" * (length - 1) + b'"')
        assert len(keys.chain) == points
        assert (keys.end is None) == (keys.text is None) == (points == 0)

    @pytest.mark.parametrize("prompt", [b"", b"null", b"[]", b'"short"', b"7" * 600, b"[1,2,3]"])
    def test_what_tells_nothing_has_no_keys(self, prompt):
        keys = keys_of_prompt(SCOPE, prompt)
        assert (keys.explicit, keys.chain, keys.end, keys.text) == (None, (), None, None)

    def test_nothing_is_copied(self):
        prompt = orjson.dumps("p" * 9000)
        assert keys_of_prompt(SCOPE, prompt).text.body.obj is prompt

    @pytest.mark.parametrize("field", OTHERS)
    def test_another_scope_has_no_key_in_common(self, field):
        other = replace(SCOPE, **{field: OTHERS[field]})
        prompt = orjson.dumps("p" * 3000)
        assert not all_keys(keys_of_prompt(SCOPE, prompt)) & all_keys(keys_of_prompt(other, prompt))
