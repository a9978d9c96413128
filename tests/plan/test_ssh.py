"""Fingerprints on an instance's console."""

from __future__ import annotations

from pathlib import Path

from toolkit.plan.ssh import SshAddress, fingerprints_in_console_output

# In the form of cloud-init's tools/write-ssh-key-fingerprints on Ubuntu 24.04: util-linux's logger writes the
# prefix, and a console has \r\n and other programs' lines.
CONSOLE = """\
[    4.218] systemd[1]: Starting cloud-final.service\r
<14>Nov 29 12:00:00 ec2: \r
<14>Nov 29 12:00:00 ec2: #############################################################\r
<14>Nov 29 12:00:00 ec2: -----BEGIN SSH HOST KEY FINGERPRINTS-----\r
<14>Nov 29 12:00:00 ec2: 256 SHA256:sTH9QQaaWvPBDaZxGvy8GXOwPqhCvmtVuGPU1O4PoIk root@ip-10-0-0-9 (ECDSA)\r
<14>Nov 29 12:00:00 ec2: 256 SHA256:DWXt+NbgCxjsEBvjSQ5H73JTO9TSlhuFdX06vCUvVc0 no comment (ED25519)\r
<14>Nov 29 12:00:00 ec2: 3072 SHA256:zwyYqMAstIbqFGPrVVZdZq1hnAr6HSUT1P4FehPDQeQ root@ip-10-0-0-9 (RSA)\r
<14>Nov 29 12:00:00 ec2: -----END SSH HOST KEY FINGERPRINTS-----\r
<14>Nov 29 12:00:00 ec2: #############################################################\r
-----BEGIN SSH HOST KEY KEYS-----\r
ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB root@ip-10-0-0-9\r
-----END SSH HOST KEY KEYS-----\r
somebody: 256 SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA planted (ED25519)\r
"""
FOUND = (
    "SHA256:sTH9QQaaWvPBDaZxGvy8GXOwPqhCvmtVuGPU1O4PoIk",
    "SHA256:DWXt+NbgCxjsEBvjSQ5H73JTO9TSlhuFdX06vCUvVc0",
    "SHA256:zwyYqMAstIbqFGPrVVZdZq1hnAr6HSUT1P4FehPDQeQ",
)


def test_only_the_blocks_own_fingerprints() -> None:
    assert fingerprints_in_console_output(CONSOLE) == FOUND


def test_without_the_loggers_prefix() -> None:
    assert fingerprints_in_console_output(CONSOLE.replace("<14>Nov 29 12:00:00 ec2: ", "ec2: ")) == FOUND


def test_the_last_whole_block_counts() -> None:
    rebuilt = CONSOLE.replace("sTH9", "tTH9").replace("DWXt", "EWXt").replace("zwyY", "awyY")
    cut = CONSOLE[: CONSOLE.index("-----END")]
    assert fingerprints_in_console_output(rebuilt + CONSOLE + cut) == FOUND


def test_no_block_no_fingerprint() -> None:
    for text in ("", "booting\n", CONSOLE[: CONSOLE.index("-----END")], CONSOLE[CONSOLE.index("-----END") :]):
        assert fingerprints_in_console_output(text) == ()


def test_md5_fingerprints_are_none_of_ours() -> None:
    old = CONSOLE.replace("SHA256:", "MD5:")
    assert fingerprints_in_console_output(old) == ()


def test_the_name_in_known_hosts() -> None:
    known = Path("k")
    assert SshAddress("h", 22, "u", None, known).known_as == "h"
    assert SshAddress("h", 2222, "u", None, known).known_as == "[h]:2222"
