"""Engines that come and go by a file or by a run's folder, and what is wrong in either."""

import json
import logging
import os

import pytest

from toolkit.errors import SettingsError
from toolkit.router.fleet.legs import Pool
from toolkit.router.fleet.members import Members, read_members


class Set:
    """A members file and the two pools that follow it."""

    def __init__(self, path, prefill=(), decode=()):
        self.path = path
        self.gone = []
        self.prefill = Pool("prefill", prefill, self.gone.append)
        self.decode = Pool("decode", decode, self.gone.append)
        self.members = Members(path, self.prefill, self.decode)

    def write(self, text):
        self.path.write_text(text)
        self.members.poll()
        return self.urls

    @property
    def urls(self):
        return [[leg.url for leg in pool.legs] for pool in (self.prefill, self.decode)]


@pytest.fixture
def members(tmp_path):
    made = Set(tmp_path / "members.yaml")
    made.path.write_text("prefill: [http://p:1]\ndecode: [http://d:1]\n")
    made.members.load()
    return made


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("prefill: [http://p:1]\ndecode: [http://d:1]", [["http://p:1"], ["http://d:1"]]),
        ('{"prefill": ["http://p:1/"], "decode": []}', [["http://p:1"], []]),
        ("decode:\n- http://d:1\n- url: https://d:2/base/\n", [[], ["http://d:1", "https://d:2/base"]]),
        ("prefill: []\n", [[], []]),
        ("{}", [[], []]),
    ],
)
def test_yaml_and_json_name_the_engines(tmp_path, text, urls):
    made = Set(tmp_path / "members")
    made.path.write_text(text)
    made.members.load()
    assert made.urls == urls
    assert not any(leg.healthy for pool in (made.prefill, made.decode) for leg in pool.legs)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "members.yaml is no mapping"),
        ("[http://d:1]", "members.yaml is no mapping"),
        ("http://d:1", "members.yaml is no mapping"),
        ("decode: [", "members.yaml, line 1: "),
        ("decode: []\ndecode: []", "members.yaml, line 2: 'decode' is given twice"),
        ("decoder: []", "members.yaml: unknown key 'decoder'"),
        ("decode: http://d:1", "members.yaml: decode = 'http://d:1' is no list"),
        ("decode: {url: http://d:1}", "is no list"),
        ("decode:", "members.yaml: decode = null is no list"),
        ("decode: [5]", "members.yaml: decode[0] = 5 is no text"),
        ("decode: [http://d:1, null]", "members.yaml: decode[1] = null is no text"),
        ("decode: [[http://d:1]]", "members.yaml: decode[0] = ['http://d:1'] is no text"),
        ("decode: [{drain: true}]", "members.yaml: decode[0].url = null is no text"),
        ("decode: [{url: http://d:1, drian: true}]", "members.yaml: decode[0]: unknown key 'drian'"),
        ("decode: [{url: http://d:1, drain: 1}]", "members.yaml: decode[0].drain = 1 is not true or false"),
        ("decode: ['d:1']", "members.yaml: decode[0] = 'd:1' does not begin with http://"),
        ("decode: ['http://d:99999']", "members.yaml: decode[0] = 'http://d:99999' has no port"),
        ("decode: ['http://u:secret@d:1']", "members.yaml: decode[0] = 'http://***@d:1' carries a cred"),
        ("decode: ['http://d:1?secret']", "members.yaml: decode[0] = 'http://d:1?***' has a query"),
        (f"decode: ['http://{'a' * 64}:1']", "names no valid host"),
        (f"decode: ['http://{'ä' * 64}:1']", "names no valid host"),
        ("decode: ['http://d..d:1']", "names no valid host"),
        (
            "decode: [http://d:1, http://D:1/]",
            "members.yaml: decode[1] = 'http://D:1' is given by ",
        ),
        (
            "prefill: [http://d]\ndecode: [http://d:80]",
            "members.yaml: decode[0] = 'http://d:80' is given by",
        ),
    ],
)
def test_what_is_wrong_is_named_and_changes_nothing(members, text, said, caplog):
    before = members.urls
    members.path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        Set(members.path).members.load()
    assert said in caught.value.what
    assert str(members.path) in caught.value.what
    assert caught.value.next_step
    assert "secret" not in str(caught.value)
    for _ in range(3):
        members.members.poll()
    assert members.urls == before
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert said in record.getMessage()
    assert "stay as they were" in record.getMessage()


def test_a_missing_file_is_told_at_start_and_keeps_what_is_later(members, tmp_path, caplog):
    with pytest.raises(SettingsError, match=r"none\.yaml cannot be read: No such file"):
        Set(tmp_path / "none.yaml").members.load()
    before = members.urls
    members.path.unlink()
    for _ in range(3):
        members.members.poll()
    assert members.urls == before
    assert len(caplog.records) == 1
    assert members.write("decode: [http://d:2]") == [[], ["http://d:2"]]


def test_each_new_error_is_told_and_the_cure_too(members, caplog):
    for text in ("decode: [5]", "decode: [5]", "decode: [6]", "decode: [http://d:2]"):
        members.write(text)
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.ERROR, logging.WARNING]
    assert members.urls == [[], ["http://d:2"]]


def test_a_file_is_read_only_when_it_changed(members):
    leg = members.decode.add("http://by.hand:1")
    members.members.poll()
    assert leg in members.decode.legs
    members.write("decode: [http://d:1]  # touched")
    assert leg not in members.decode.legs


def test_engines_are_added_drained_and_removed(members):
    (leg,) = members.decode.legs
    leg.healthy = True
    assert members.write("decode: [http://d:1, http://d:2]") == [[], ["http://d:1", "http://d:2"]]
    assert leg is members.decode.legs[0]
    assert leg.healthy, "what stays is not touched"
    assert [gone.url for gone in members.gone] == ["http://p:1"]
    members.write("decode: [{url: http://d:1, drain: true}, {url: http://d:2, drain: false}]")
    assert [each.draining for each in members.decode.legs] == [True, False]
    members.write("decode: [http://d:1, http://d:2]")
    assert [each.draining for each in members.decode.legs] == [False, False]
    with leg.busy():
        members.write("decode: [http://d:2]")
        assert (leg.draining, leg in members.decode.legs) == (True, True)
        members.write("decode: [http://d:2] # again")
        assert leg in members.decode.legs
    assert members.urls == [[], ["http://d:2"]]


def test_an_engine_that_begins_with_draining_gets_no_conversation(members):
    members.write("decode: [{url: http://d:9, drain: true}]")
    assert [(leg.url, leg.draining) for leg in members.decode.legs] == [("http://d:9", True)]


def test_engines_of_the_command_line_stay_and_may_be_named_again(tmp_path, caplog):
    both = Set(tmp_path / "m", prefill=["http://p:1"], decode=["http://d:1"])
    both.path.write_text("decode: [http://D:1/, http://d:2]")
    both.members.load()
    assert both.urls == [["http://p:1"], ["http://d:1", "http://d:2"]]
    assert both.write("{}") == [["http://p:1"], ["http://d:1"]]
    both.write("decode: [{url: http://d:1, drain: true}]")
    assert both.decode.legs[0].draining
    both.write("decode: []")
    assert not both.decode.legs[0].draining
    both.write("prefill: [http://d:1]")
    assert "prefill[0] = 'http://d:1' is given by --decode too" in caplog.text
    assert both.urls == [["http://p:1"], ["http://d:1"]]


def test_an_engine_may_change_its_role(members):
    assert members.write("prefill: [http://d:1]") == [["http://d:1"], []]


def publish(run, job, url="http://10.0.0.1:8100", **more):
    """As pd_publish_when_healthy writes it."""
    file = run / "endpoints" / f"{job}.json"
    file.parent.mkdir(exist_ok=True)
    new = file.with_name(f"{job}.json.new")
    new.write_text(json.dumps({"name": job, "url": url, "node": "n", "job_id": "7", "hardware": "x", **more}))
    new.rename(file)
    return file


def test_a_runs_engines_are_what_its_jobs_have_published(tmp_path):
    run = Set(tmp_path)
    run.members.load()
    assert run.urls == [[], []], "no job has come so far"
    file = publish(tmp_path, "prefill-1", "http://10.0.0.1:8100")
    publish(tmp_path, "decode-1", "http://10.0.0.2:8200")
    publish(tmp_path, "decode-12", "http://10.0.0.3:8200")
    publish(tmp_path, "router", "http://10.0.0.9:8000")
    (tmp_path / "endpoints" / "decode-3.json.new").write_text("{")
    run.members.poll()
    assert run.urls == [["http://10.0.0.1:8100"], ["http://10.0.0.2:8200", "http://10.0.0.3:8200"]]
    file.unlink()
    publish(tmp_path, "decode-1", "http://10.0.0.4:8200")
    run.members.poll()
    assert run.urls == [[], ["http://10.0.0.3:8200", "http://10.0.0.4:8200"]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "decode-1.json is not JSON"),
        ("[]", "decode-1.json: url = null is no text"),
        ('{"name": "decode-1"}', "decode-1.json: url = null is no text"),
        ('{"url": "http://h"', "decode-1.json is not JSON"),
        ("[" * 200_000, "decode-1.json is not JSON"),
        ('{"url": "http://a b"}', "decode-1.json: url = 'http://a b' has a blank"),
    ],
)
def test_what_a_job_published_is_checked_too(tmp_path, text, said):
    file = publish(tmp_path, "decode-1")
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        read_members(tmp_path)
    assert said in caught.value.what


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path):
    (tmp_path / "endpoints" / "decode-1.json").mkdir(parents=True)
    with pytest.raises(SettingsError) as caught:
        read_members(tmp_path)
    assert (
        caught.value.what == f"{tmp_path}/endpoints/decode-1.json cannot be read: it is not a regular file."
    )


@pytest.mark.parametrize("what", ["endpoints", "run"])
def test_a_runs_folder_that_vanishes_takes_no_engine_away(tmp_path, what, caplog):
    folder = tmp_path / "run"
    folder.mkdir()
    publish(folder, "decode-1")
    run = Set(folder)
    run.members.load()
    lost = folder if what == "run" else folder / "endpoints"
    lost.rename(tmp_path / "elsewhere")
    for _ in range(3):
        run.members.poll()
    assert run.urls == [[], ["http://10.0.0.1:8100"]]
    assert len(caplog.records) == 1
    (tmp_path / "elsewhere").rename(lost)
    publish(folder, "decode-2", "http://10.0.0.2:8100")
    run.members.poll()
    assert run.urls == [[], ["http://10.0.0.1:8100", "http://10.0.0.2:8100"]]


@pytest.mark.parametrize("first", ["file", "folder"])
def test_a_file_that_becomes_a_folder_takes_no_engine_away(tmp_path, first, caplog):
    path, other = tmp_path / "members", tmp_path / "other"
    file, folder = (path, other) if first == "file" else (other, path)
    file.write_text("decode: [http://10.0.0.1:8100]\n")
    folder.mkdir()
    publish(folder, "decode-1")
    made = Set(path)
    made.members.load()
    path.rename(tmp_path / "away")
    other.rename(path)
    for _ in range(3):
        made.members.poll()
    assert made.urls == [[], ["http://10.0.0.1:8100"]]
    assert len(caplog.records) == 1
    assert f"was a {first} and is a" in caplog.text


@pytest.mark.timeout(20)
def test_a_pipe_is_refused_and_waited_for_by_nobody(tmp_path, members, caplog):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SettingsError, match="it is not a regular file"):
        read_members(tmp_path / "pipe")
    (tmp_path / "pipe").rename(members.path)
    members.members.poll()
    assert members.urls == [["http://p:1"], ["http://d:1"]]
    assert "it is not a regular file" in caplog.text
