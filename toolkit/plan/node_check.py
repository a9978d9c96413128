"""The script by which a node says whether it is what its jobs need, as OnNodeConfigured. Pure."""

from __future__ import annotations

from toolkit.data import shipped

# The line by which verify.sh reads facts.sh; a node fetches one file only.
FACTS_LINE = '. "$(dirname "$0")/facts.sh"\n'


def node_check() -> str:
    """ami-setup/verify.sh with the facts it reads, in one file."""
    text, facts = (
        shipped("ami-setup", name).read_text(encoding="utf-8") for name in ("verify.sh", "facts.sh")
    )
    if text.count(FACTS_LINE) != 1:
        raise ValueError("verify.sh does not read facts.sh by the one line that is replaced here")
    lines = text.replace(FACTS_LINE, facts).splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("# shellcheck source"))
