"""Engines that come, go and drain while requests run, by a file that the router looks at."""

import json

import pytest

from toolkit.router.request.dialects import Endpoint
from toolkit.testing.serving import wait_until


class Fleet:
    """A router whose decode engines a file names."""

    def __init__(self, engines, file, run):
        self.file = file
        self.decodes, self.urls = engines.decodes, engines.urls[2:]
        self._prefill = engines.urls[0]
        self.write(self.urls[:1])
        self.client = run(members=file)

    def write(self, decode):
        """Whole at once, as an operator's editor does."""
        draft = self.file.with_suffix(".new")
        draft.write_text(json.dumps({"prefill": [self._prefill], "decode": decode}))
        draft.replace(self.file)

    @property
    def healthy(self):
        return [leg["url"] for leg in self.client.ask("GET", "/health").json["decode"] if leg["healthy"]]

    def draining(self, url):
        return self.client.metric("pd_router_leg_draining", url=url)


@pytest.fixture
def fleet(bare_square, router, tmp_path):
    def run(**settings):
        return router([], [], **settings)

    return Fleet(bare_square, tmp_path / "members.yaml", run)


def test_a_new_engine_gets_requests_and_a_removed_one_none(fleet):
    assert fleet.healthy == fleet.urls[:1]
    fleet.write(fleet.urls)
    wait_until(lambda: fleet.healthy == fleet.urls)
    for _ in range(4):
        assert fleet.client.complete().status == 200
    assert [len(engine.seen) for engine in fleet.decodes] == [2, 2]
    fleet.write(fleet.urls[1:])
    wait_until(lambda: fleet.healthy == fleet.urls[1:])
    for _ in range(4):
        assert fleet.client.complete().status == 200
    assert [len(engine.seen) for engine in fleet.decodes] == [2, 6]


def test_a_removed_engine_finishes_what_it_has_and_is_then_forgotten(fleet, conversation, receive):
    leaving = fleet.decodes[0]
    leaving.token_s = 0.5
    fleet.client.chat(conversation)
    connection = fleet.client.send(
        "POST", Endpoint.CHAT, {"model": "m", "messages": [], "stream": True, "conversation_id": "other"}
    )
    wait_until(lambda: len(leaving.seen) == 2)
    fleet.write(fleet.urls[1:])
    wait_until(lambda: fleet.healthy[-1:] == fleet.urls[1:])
    assert leaving.seen[1].ended == "running"
    answer = receive(connection)
    assert (answer.status, answer.body) == (200, leaving.seen[1].clean)
    wait_until(lambda: leaving.seen[1].ended == "done")
    wait_until(lambda: fleet.healthy == fleet.urls[1:])
    assert fleet.client.metric("pd_router_conversations") == 0
    assert fleet.client.chat(conversation).path == "prefill"
    assert len(leaving.seen) == 2


def test_a_draining_engine_keeps_its_conversations_and_gets_no_new_ones(fleet, conversation):
    assert fleet.client.chat(conversation).status == 200
    first, second = fleet.urls
    fleet.write([{"url": first, "drain": True}, second])
    wait_until(lambda: fleet.draining(first) == 1 and second in fleet.healthy)
    legs = fleet.client.ask("GET", "/health").json["decode"]
    assert [(leg["url"], leg["draining"]) for leg in legs] == [(first, True), (second, False)]
    assert [fleet.client.complete().status for _ in range(3)] == [200] * 3
    assert [len(engine.seen) for engine in fleet.decodes] == [1, 3]
    assert fleet.client.chat(conversation).path == "readback"
    assert [len(engine.seen) for engine in fleet.decodes] == [2, 3]
    fleet.write([first, second])
    wait_until(lambda: fleet.draining(first) == 0)
    assert [fleet.client.complete().status for _ in range(4)] == [200] * 4
    assert len(fleet.decodes[0].seen) == 4


def test_a_file_that_cannot_be_read_changes_nothing(fleet, caplog):
    fleet.file.write_text("decode: [http://broken")
    wait_until(lambda: "members.yaml" in caplog.text)
    assert fleet.client.chat().status == 200
    assert fleet.healthy == fleet.urls[:1]


def test_a_folder_that_names_no_engine_is_told_at_the_start(router, tmp_path, caplog):
    client = router([], [], members=tmp_path)
    assert client.ask("GET", "/health").status == 503
    for role in ("prefill", "decode"):
        assert f"{tmp_path} names no {role} engine yet" in caplog.text
