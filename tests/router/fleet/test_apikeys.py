"""Who may use the router, and files that hold secrets."""

import logging
import os

import pytest

from toolkit.errors import SettingsError
from toolkit.router.fleet.apikeys import ApiKeys, engine_authorization
from toolkit.router.fleet.secretfile import read_secret
from toolkit.router.wire.headers import Headers

MODES_REFUSED = [0o604, 0o644, 0o602, 0o601, 0o777]
MODES_TAKEN = [0o600, 0o640, 0o400, 0o440, 0o660]


@pytest.fixture
def keys(tmp_path):
    """Writes a key file and loads it: `keys(text)`."""

    def make(text, mode=0o600):
        path = tmp_path / "keys"
        path.write_text(text)
        path.chmod(mode)
        made = ApiKeys(path)
        made.load()
        return made

    return make


def asked(*fields):
    return Headers([(name.encode(), value.encode()) for name, value in fields])


def bearer(key):
    return asked(("authorization", f"Bearer {key}"))


def test_names_comments_and_blank_lines(keys):
    made = keys("# ours\n\nalice:sk-1\n  bob : sk-2 \nsk-3\nalice:sk-4:with:colons\n")
    assert [made.check(bearer(key)) for key in ("sk-1", "sk-2", "sk-3", "sk-4:with:colons")] == [
        "alice",
        "bob",
        "key-3",
        "alice",
    ]


@pytest.mark.parametrize(
    "fields",
    [
        [("authorization", "Bearer sk-1")],
        [("authorization", "bearer  sk-1 ")],
        [("x-api-key", "sk-1")],
        [("authorization", "Bearer other"), ("x-api-key", "sk-1")],
        [("authorization", "Basic x"), ("x-api-key", " sk-1")],
    ],
)
def test_a_key_comes_in_either_header(keys, fields):
    assert keys("alice:sk-1").check(asked(*fields)) == "alice"


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [("authorization", "")],
        [("authorization", "Bearer")],
        [("authorization", "Bearer ")],
        [("authorization", "sk-1")],
        [("authorization", "Basic sk-1")],
        [("authorization", "Bearer sk-")],
        [("authorization", "Bearer sk-11")],
        [("authorization", "Bearer SK-1")],
        [("authorization", "Bearer alice:sk-1")],
        [("authorization", "Bearer alice")],
        [("x-api-key", "")],
        [("x-api-key", "Bearer sk-1")],
        [("cookie", "sk-1")],
        [("authorization", "Bearer é")],
    ],
)
def test_anything_else_is_nobody(keys, fields):
    assert keys("alice:sk-1").check(asked(*fields)) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no key"),
        ("# only a comment\n", "holds no key"),
        ("alice:sk-1\nbob:sk-1", "line 2: the key is that of line 1 too"),
        ("alice:", "line 1: the key is empty"),
        ("ok:sk-1\nali ce:sk-secret", "line 2: what stands before the colon is not a name"),
        (":sk-secret", "line 1: what stands before the colon"),
        ("alice:sk secret", "line 1: the key is empty, or no word"),
        ("sk-sécret", "line 1: the key is empty, or no word"),
    ],
)
def test_a_wrong_file_is_refused_without_showing_a_key(keys, text, said):
    with pytest.raises(SettingsError) as caught:
        keys(text)
    assert said in caught.value.what
    assert "--api-keys" in caught.value.what
    assert caught.value.next_step
    assert "secret" not in str(caught.value)
    assert "sk-1" not in str(caught.value)


@pytest.mark.parametrize("mode", MODES_REFUSED)
def test_a_file_that_others_have_rights_on_is_refused(keys, mode):
    with pytest.raises(SettingsError, match=rf"every user of this machine .*\(mode 0{mode:o}\)") as caught:
        keys("alice:sk-1", mode)
    assert "chmod 600" in caught.value.next_step


@pytest.mark.parametrize("mode", MODES_TAKEN)
def test_a_file_of_its_owner_and_group_is_taken(keys, mode):
    if not os.access("/", os.W_OK) and not mode & 0o400:
        pytest.skip("unreadable for this user")
    assert keys("alice:sk-1", mode).check(bearer("sk-1")) == "alice"


def test_a_changed_file_is_read_again(keys, tmp_path, caplog):
    made = keys("alice:sk-1")
    made.poll()
    (tmp_path / "keys").write_text("alice:sk-2")
    assert made.check(bearer("sk-1")) == "alice", "until it is polled"
    made.poll()
    assert [made.check(bearer(key)) for key in ("sk-1", "sk-2")] == [None, "alice"]
    assert "were read again" in caplog.text
    assert "sk-" not in caplog.text


@pytest.mark.parametrize("change", ["empty", "open to others", "gone", "a folder", "no text"])
def test_a_change_that_is_wrong_leaves_the_keys_as_they_were(keys, tmp_path, change, caplog):
    made = keys("alice:sk-1")
    path = tmp_path / "keys"
    if change == "empty":
        path.write_text("")
    elif change == "open to others":
        path.chmod(0o644)
    elif change == "no text":
        path.write_bytes(b"sk-\xff")
    else:
        path.unlink()
        if change == "a folder":
            path.mkdir()
    for _ in range(3):
        made.poll()
    assert made.check(bearer("sk-1")) == "alice"
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "sk-" not in caplog.text


def test_rights_that_are_set_right_are_noticed(keys, tmp_path):
    made = keys("alice:sk-1")
    (tmp_path / "keys").write_text("alice:sk-2")
    (tmp_path / "keys").chmod(0o644)
    made.poll()
    assert made.check(bearer("sk-2")) is None
    (tmp_path / "keys").chmod(0o600)
    made.poll()
    assert made.check(bearer("sk-2")) == "alice"


def secret_file(tmp_path, content, mode=0o600):
    path = tmp_path / "secret"
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("content", [b"s3cret", b"  s3cret\n", b"s3cret\r\n"])
def test_a_secret_is_read_without_white_space_around_it(tmp_path, content):
    path = secret_file(tmp_path, content)
    assert read_secret("--lease-secret-file", path) == b"s3cret"
    assert engine_authorization(path, clients_have_keys=True) == b"Bearer s3cret"


def test_without_a_key_of_the_engines_the_clients_goes_on_unless_it_is_the_routers():
    assert engine_authorization(None, clients_have_keys=True) == b""
    assert engine_authorization(None, clients_have_keys=False) is None


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (b"", 0o600, "is empty"),
        (b" \n", 0o600, "is empty"),
        (b"s3cret two", 0o600, "more than one word"),
        (b"s3cret\nx", 0o600, "more than one word"),
        (b"s3cret\x00", 0o600, "more than one word"),
        ("s3crét".encode(), 0o600, "more than one word"),
        (b"s3cret\xff", 0o600, "not UTF-8"),
        (b"s3cret" * (1 << 18), 0o600, "larger than"),
        *((b"s3cret", mode, "every user of this machine") for mode in MODES_REFUSED),
    ],
)
def test_a_secret_that_cannot_be_used_is_refused_unshown(tmp_path, content, mode, said):
    path = secret_file(tmp_path, content, mode)
    with pytest.raises(SettingsError) as caught:
        read_secret("--lease-secret-file", path)
    assert f"--lease-secret-file {path}: " in caught.value.what
    assert said in caught.value.what
    assert caught.value.next_step
    assert "s3cr" not in str(caught.value)


@pytest.mark.parametrize("what", ["missing", "folder"])
def test_a_secret_that_is_no_file_is_refused(tmp_path, what):
    path = tmp_path if what == "folder" else tmp_path / "none"
    with pytest.raises(SettingsError, match="--engine-key-file .*: it cannot be read: "):
        engine_authorization(path, clients_have_keys=True)
