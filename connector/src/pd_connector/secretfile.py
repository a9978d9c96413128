"""The secret that the engines of one cluster and their router share.

It opens the lease routes (`routes`), and engines sign their handles with it (`handle.sign`). Pure: no vLLM.
"""

import os
from pathlib import Path

SECRET_FILE = "PD_LEASE_SECRET_FILE"
"""Environment variable: the file whose content (without white space around it) is the secret."""
SECRET_FILE_KEY = "pd_lease_secret_file"
"""The same in `kv_connector_extra_config`; the environment goes first."""


def read_secret(configured: str | None) -> bytes | None:
    """The shared secret, or None where no file is named.

    Raises OSError for a file that cannot be read and ValueError for one that is empty: a secret was meant.
    """
    named = os.environ.get(SECRET_FILE) or configured
    if not named:
        return None
    secret = Path(named).read_bytes().strip()
    if not secret:
        raise ValueError(f"the file is empty: {named}")
    return secret
