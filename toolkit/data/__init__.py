"""Templates and files that ship with the toolkit; each entry is a link to a top-level folder.

A wheel holds copies, a checkout the links, and both are read in the same way.
"""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable


def shipped(*parts: str) -> Traversable:
    """The shipped file or folder, such as `shipped("sbatch", "lib.sh")`."""
    return files(__name__).joinpath(*parts)
