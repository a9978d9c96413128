"""Which vLLM versions are served, and what is said of the others."""

from importlib import metadata

import pytest

from pd_connector.versions import NOTES, OVERRIDE, RefusedError, check, judge, require


@pytest.mark.parametrize(
    ("version", "verdict"),
    [
        ("0.29.0", "tested"),
        ("0.29.0+cpu", "tested"),
        ("0.32.0+cpu", "tested"),
        ("0.29.1", "expected"),
        ("0.32.1", "expected"),
        ("0.21.0", "expected"),
        ("0.33.0", "expected"),
        ("0.33.5", "expected"),
        ("0.20.2", "refused"),
        ("0.34.0", "refused"),
        ("1.0", "refused"),
        ("dev", "refused"),
    ],
)
def test_verdicts(version: str, verdict: str) -> None:
    assert judge(version) == verdict


@pytest.mark.engine
def test_the_vllm_of_this_environment_is_a_tested_one() -> None:
    assert judge(metadata.version("vllm")) == "tested"


def test_a_tested_version_says_nothing() -> None:
    assert check("0.29.0", {}) is None


def test_an_expected_version_warns() -> None:
    assert "not tested" in str(check("0.31.0", {}))


@pytest.mark.parametrize("version", ["0.20.0", "0.34.0", "dev"])
def test_a_refusal_names_the_version_the_range_and_the_way_out(version: str) -> None:
    with pytest.raises(RefusedError, match=rf"vLLM {version}.*0\.21\.0.*0\.34\.0.*{OVERRIDE}=1"):
        check(version, {})
    with pytest.raises(RefusedError):
        check(version, {OVERRIDE: "yes"})
    assert "going on" in str(check(version, {OVERRIDE: "1"}))


def test_a_part_that_lacks_what_is_relied_on_is_refused() -> None:
    require("text", ["upper"])
    with pytest.raises(RefusedError, match="str of this vLLM has no a, b"):
        require("text", ["upper", "a", "b"])


def test_every_minor_version_of_the_range_has_its_note() -> None:
    assert list(NOTES) == [(0, minor) for minor in range(21, 34)]
    for minor in range(21, 34):
        assert NOTES[(0, minor)] in str(check(f"0.{minor}.9", {}))
