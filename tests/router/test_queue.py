"""How many requests run and wait, and what becomes of those that cannot."""

import pytest

from toolkit.router.request.dialects import Endpoint
from toolkit.testing.fake_engine import Fault
from toolkit.testing.serving import wait_until

every_endpoint = pytest.mark.parametrize("endpoint", list(Endpoint))


class Line:
    """A router with one place, and requests that stand in line."""

    def __init__(self, stage, make_body, receive):
        self.stage = stage
        self.client = stage.client
        self._body = make_body
        self._receive = receive

    def send(self, text, endpoint=Endpoint.CHAT):
        return self.client.send("POST", endpoint, self._body(endpoint, [text]))

    def received(self, connection):
        return self._receive(connection)

    def waits(self, running, waiting):
        wait_until(
            lambda: (
                self.client.metric("pd_router_queue_running") == running
                and self.client.metric("pd_router_queue_waiting") == waiting
            )
        )

    @property
    def asked(self):
        return [seen.body["messages"][0]["content"] for seen in self.stage.prefills[0].seen]


@pytest.fixture
def line(own, make_body, receive):
    def start(**settings):
        return Line(own(max_concurrent=1, **settings), make_body, receive)

    return start


@every_endpoint
def test_beyond_the_queue_a_request_is_told_when_to_come_again(line, endpoint):
    line = line(max_queue=1)
    line.stage.prefills[0].fault = Fault(delay_s=0.3, only=1)
    first = line.send("first", endpoint)
    line.waits(1, 0)
    second = line.send("second", endpoint)
    line.waits(1, 1)
    refused = line.client.turn(endpoint, ["third"])
    assert refused.status == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    error = refused.json["error"]
    assert error["type"] == "rate_limit_error"
    assert (refused.json.get("type") == "error") == (endpoint == Endpoint.MESSAGES)
    # What operators read needs no place.
    assert line.client.ask("GET", "/health").status == 200
    assert [line.received(connection).status for connection in (first, second)] == [200, 200]
    assert line.client.metric("pd_router_refusals_total", status="429") == 1
    line.waits(0, 0)


def test_first_come_first_served(line):
    line = line()
    line.stage.prefills[0].fault = Fault(delay_s=0.3, only=1)
    connections = []
    for number in range(5):
        connections.append(line.send(str(number)))
        line.waits(1, number)
    assert [line.received(connection).status for connection in connections] == [200] * 5
    assert line.asked == ["0", "1", "2", "3", "4"]
    assert line.client.metric("pd_router_queue_seconds_count") == 5
    assert line.client.metric("pd_router_queue_seconds_sum") >= 0.2


def test_who_waits_too_long_is_told_so(line):
    line = line(queue_timeout_s=0.2)
    line.stage.prefills[0].fault = Fault(hang="answer")
    first = line.send("first")
    line.waits(1, 0)
    refused = line.client.chat()
    assert (refused.status, "0.2 s" in refused.json["error"]["message"]) == (429, True)
    assert int(refused.headers["retry-after"]) >= 1
    first.close()
    line.waits(0, 0)
    assert line.asked == ["first"]


def test_a_client_that_leaves_the_queue_asks_no_engine_anything(line):
    line = line()
    line.stage.prefills[0].fault = Fault(delay_s=0.5, only=1)
    first = line.send("first")
    line.waits(1, 0)
    second, third = line.send("second"), line.send("third")
    line.waits(1, 2)
    second.close()
    line.waits(1, 1)
    assert [line.received(connection).status for connection in (first, third)] == [200, 200]
    assert line.asked == ["first", "third"]
    assert line.client.metric("pd_router_client_gone_total") == 1


def test_requests_that_one_engine_answers_take_a_place_too(line):
    line = line(max_queue=0)
    line.stage.prefills[0].fault = Fault(delay_s=0.3, only=1)
    first = line.send("first")
    line.waits(1, 0)
    assert line.client.ask("GET", "/v1/models").status == 429
    assert line.received(first).status == 200
    assert line.client.ask("GET", "/v1/models").status == 200


def test_beyond_the_connections_one_is_told_so(own, receive, caplog):
    client = own(max_connections=2).client
    held = [client.send("GET", "/health") for _ in range(2)]
    for connection in held:
        connection.getresponse().read()
    refused = receive(client.send("GET", "/health"))
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    for connection in held:
        connection.close()
    wait_until(lambda: receive(client.send("GET", "/health")).status == 200)
    assert client.metric("pd_router_refusals_total", status="503") >= 1
    assert caplog.text.count("all 2 connections are in use") == 1
