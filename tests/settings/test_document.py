"""YAML that can't be read, and YAML's merge keys: each fault with its line, flag or variable."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from toolkit.settings.document import Document, DocumentError
from toolkit.settings.load import Loaded

Refusal = Callable[..., str]
Read = Callable[..., Loaded]

# Values that YAML's own conversions can't take, with what is said.
UNREADABLE = [
    ("2020-13-45", "'2020-13-45' is not a date; quote it if it is text"),
    ("2020-01-01T00:00:00+99:99", "is not a date"),
    ("!!timestamp foo", "'foo' is not a date"),
    ("!!int abc", "'abc' is not a whole number"),
    ('!!int ""', "'' is not a whole number"),
    ("9" * 5000, "is not a whole number"),
    ("0x" + "f" * 5000, "is too large a number"),
    (str(2**63), "9223372036854775808 is too large a number"),
    ("!!float abc", "'abc' is not a number"),
    ('!!float ""', "'' is not a number"),
    ("!!bool zzz", "'zzz' is not true or false"),
    ("!!binary zzz", "'zzz' is not a value of the tag binary"),
    ("!!python/object:os.system x", "'x' is not a value of the tag python/object:os.system"),
    ("!!map x", "'x' is not a value of the tag map"),
    ("<<", "'<<' is not a value"),
    ("=", "'=' is not a value"),
    ("!!set {x}", "the tag tag:yaml.org,2002:set can't be used here"),
    ("!x [y]", "the tag !x can't be used here"),
    ("*none", "found undefined alias"),
    ('"\\ud800"', "holds half a character"),
    ("[" * 5000 + "]" * 5000, "is nested more than 20 levels deep"),
    ("{x: " * 3000 + "}" * 3000, "is nested more than 20 levels deep"),
    ("&x [*x]", "holds itself"),
    ("[{a: &x [*x]}]", "holds itself"),
    ("[{a: 1, a: 2}]", "is given twice"),
    ("{? [x] : y}", "a key must be a single word"),
]
IDS = [value[:25] for value, _ in UNREADABLE]


@pytest.mark.parametrize(("value", "problem"), UNREADABLE, ids=IDS)
def test_an_unreadable_value_is_refused_wherever_it_is_given(
    value: str, problem: str, refusal: Refusal
) -> None:
    in_file = refusal(f"router:\n  ttl: {value}\n")
    assert "d.yaml, line 5: " in in_file
    assert problem in in_file
    by_flag = refusal("", f"router.ttl={value}")
    assert by_flag.startswith("--set router.ttl = ")
    assert problem in by_flag
    by_variable = refusal("", TOOLKIT__ROUTER__TTL=value)
    assert by_variable.startswith("environment TOOLKIT__ROUTER__TTL = ")
    assert problem in by_variable
    assert max(len(in_file), len(by_flag), len(by_variable)) < 500


@pytest.mark.parametrize(
    ("text", "problem", "line"),
    [
        ("a: 1\ntarget: &t {kind: embedded, x: *t}\n", "'target.x' holds itself", 2),
        ("&a\nname: *a\n", "'name' holds itself", 2),
        ("a: 1\nb: &b\n  c: &c\n    d: *b\n", "'b.c.d' holds itself", 4),
        ("&a\nb: 1\n<<: *a\n", "'<<' merges a section into itself", 3),
        ("a: &a\n  b: 1\n  <<: {<<: *a}\n", "'<<' merges a section into itself", 3),
        ("a: &a\n  <<: [{b: 1}, *a]\n", "'<<' merges a section into itself", 2),
        ("a:\n  <<: 5\n", "'<<' merges sections only", 2),
        ("a:\n  <<: [{b: 1}, 5]\n", "'<<' merges sections only", 2),
        ("a:\n  <<: {b: 1}\n  <<: {c: 1}\n", "'a.<<' is given twice, first on line 2", 3),
        ("a:\n  <<: {b: 1}\n  b: 1\n  b: 2\n", "'a.b' is given twice, first on line 3", 4),
        ("a: 1\nb: \x07\n", "the character U+0007 can't stand in YAML", 2),
        ("\x00", "the character U+0000 can't stand in YAML", 1),
        ("a: 1\n---\nb: 1\n", "but found another document", 2),
        ("a: 1\n\tb: 1\n", "found character", 2),
        ("".join(" " * i + "k:\n" for i in range(100)), "is nested more than 20 levels deep", 21),
    ],
)
def test_a_text_that_cannot_be_walked_names_the_line(text: str, problem: str, line: int) -> None:
    with pytest.raises(DocumentError) as caught:
        list(Document(text).leaves())
    assert problem in caught.value.problem
    assert caught.value.line == line


def rising(first: str, each: Callable[[int], str], levels: int) -> str:
    """Anchors of which each refers to the one before."""
    lines = [f"a0: &a0 {first}", *(f"a{i}: &a{i} {each(i)}" for i in range(1, levels))]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (rising("[x]", lambda i: f"[{', '.join([f'*a{i - 1}'] * 10)}]", 15), "more than 100000 values"),
        (
            rising("{x: 1}", lambda i: "{" + ", ".join(f"k{j}: *a{i - 1}" for j in range(10)) + "}", 15),
            "more than 100000 values",
        ),
        (rising("{x: 1}", lambda i: f"{{x: *a{i - 1}}}", 2000), "more than 20 levels"),
    ],
    ids=["lists", "sections", "depth"],
)
def test_anchors_that_grow_without_end_are_refused(text: str, problem: str) -> None:
    with pytest.raises(DocumentError, match=problem):
        list(Document(text).leaves())


def test_merges_of_merges_stay_as_small_as_their_keys() -> None:
    text = rising("{x: 1}", lambda i: f"{{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}", 300)
    leaves = list(Document(text).leaves())
    assert [leaf.key for leaf in leaves] == [(f"a{i}", "x") for i in range(300)]
    assert {leaf.line for leaf in leaves} == {1}


MERGE = """\
legs:
  prefill:
    env: &cpu
      A: 1
      B: prefill
  decode:
    env:
      B: decode
      <<: *cpu
      FOO: bar
"""


def test_merge_keys_keep_value_and_line(read: Read) -> None:
    loaded = read(MERGE)
    assert loaded.deployment.legs.prefill.env == {"A": "1", "B": "prefill"}
    assert loaded.deployment.legs.decode.env == {"A": "1", "B": "decode", "FOO": "bar"}
    lines = {
        key.rpartition(".")[2]: int(source.rpartition(" ")[2])
        for key, _, source in loaded.rows()
        if key.startswith("legs.decode.env.")
    }
    assert lines == {"A": 7, "B": 11, "FOO": 13}


def test_the_first_merged_section_wins_and_a_quoted_mark_merges_nothing() -> None:
    assert Document("{<<: [{a: 1, b: 1}, {b: 2, c: 2}], c: 3}").value() == {"a": 1, "b": 1, "c": 3}
    assert Document('{"<<": {a: 1}}').value() == {"<<": {"a": 1}}


def test_a_wrong_merged_setting_names_the_line_it_comes_from(refusal: Refusal) -> None:
    message = refusal("kv: &x\n  bidirectionl: true\nrouter:\n  <<: *x\n")
    assert "unknown key 'kv.bidirectionl' (file" in message
    assert "unknown key 'router.bidirectionl' (file" in message
    assert message.count("d.yaml, line 5)") == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("8", 8),
        ("1.5", 1.5),
        ("[a, 1]", ["a", 1]),
        ("{a: {b: 1}, c: {}}", {"a": {"b": 1}, "c": {}}),
    ],
)
def test_a_flags_value(text: str, value: object) -> None:
    assert Document(text).value() == value


def test_a_list_may_hold_sections_and_lists() -> None:
    text = "a: [{b: [1, {c: x}], d: {}}, [2]]\n"
    assert [(leaf.key, leaf.value) for leaf in Document(text).leaves()] == [
        (("a",), [{"b": [1, {"c": "x"}], "d": {}}, [2]])
    ]
