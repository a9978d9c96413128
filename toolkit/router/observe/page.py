"""The operator page at `/`: one document without any data in it, which asks /router/state for them."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

_PARTS = {"<!-- style -->": ("style", ("page.css",)), "<!-- script -->": ("script", ("charts.js", "page.js"))}


def page() -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Its headers (lower-case names, without a length) and its body; the same for everybody."""
    headers, body = _built()
    return list(headers), body


@cache
def _built() -> tuple[tuple[tuple[bytes, bytes], ...], bytes]:
    folder = files(__package__)
    html = folder.joinpath("page.html").read_text("utf-8")
    hashes: dict[str, str] = {}
    for mark, (tag, names) in _PARTS.items():
        text = "\n" + "\n".join(folder.joinpath(name).read_text("utf-8") for name in names)
        html = html.replace(mark, f"<{tag}>{text}</{tag}>")
        hashes[tag] = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    # Nothing but these two texts runs or styles, and nothing is asked of another host.
    policy = (
        f"default-src 'none'; script-src 'sha256-{hashes['script']}'; style-src 'sha256-{hashes['style']}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
    return tuple((name.encode(), value.encode()) for name, value in headers.items()), html.encode()
