import base64
import hashlib
import re

from toolkit.router.observe.page import page
from toolkit.router.paths.choice import Path, Reason


def parts():
    headers, body = page()
    return {name.decode(): value.decode() for name, value in headers}, body.decode()


def test_the_policy_allows_the_pages_own_script_and_style_and_nothing_else():
    headers, html = parts()
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    for tag in ("script", "style"):
        (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert policy.pop(f"{tag}-src") == f"'sha256-{digest}'"
    assert policy == {
        "default-src": "'none'",
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }


def test_the_page_needs_no_other_file_and_has_no_inline_handler():
    _, html = parts()
    markup = re.sub(r"<(script|style)>.*?</\1>", "", html, flags=re.DOTALL)
    assert re.findall(r"\bon\w+\s*=", markup) == []
    assert re.findall(r"\bstyle\s*=", markup) == []
    sources = re.findall(r'\b(?:src|href)="([^"]*)"', markup)
    assert [source for source in sources if not source.startswith("data:")] == [
        "metrics",
        "router/state",
        "health",
    ]
    assert "@import" not in html
    assert "url(" not in html


def test_data_never_become_markup():
    _, html = parts()
    for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert sink not in html


def test_every_element_that_the_script_asks_for_is_there():
    _, html = parts()
    asked = set(re.findall(r'\$\("([\w-]+)"\)', html))
    assert asked
    assert asked <= set(re.findall(r'\bid="([\w-]+)"', html))


def test_every_path_has_a_mark_of_its_own_and_every_reason_an_explanation():
    _, html = parts()
    for path in Path:
        assert f'"{path}": "{path}"' in html
        assert f".{path} {{ --c:" in html
    (explained,) = re.findall(r"const WHY = \{(.*?)\n\};", html, re.DOTALL)
    assert set(re.findall(r'^  "?([\w-]+)"?: "[^"]+",$', explained, re.MULTILINE)) == set(Reason)
