"""The operator page in a real Chromium: what it shows, what it asks for, and when nobody answers."""

from __future__ import annotations

import time

import pytest

pytestmark = pytest.mark.browser

MARKUP = "<img src=x onerror=\"document.title='owned'\"><b>bold</b>&amp;"


def test_a_healthy_router_is_shown_whole(stand, tab):
    tab.open(stand.url)
    tab.wait_for_status("Serving")
    assert [code.text for code in tab.all("#engines code")] == [leg.url for leg in stand.legs]
    assert [state.text for state in tab.all("#engines .state")] == ["● healthy"] * 4
    assert "12 in flight" in tab.all("#engines .leg")[2].text
    assert "318 tokens pending" in tab.all("#engines .leg")[2].text
    metrics = stand.sources.metrics
    assert f"{metrics.requests.total()} since the start" in tab.text("#tiles")
    for (path, reason), count in metrics.paths.items():
        shown = next(block.text for block in tab.all("#paths .path") if block.text.startswith(path))
        assert reason in shown
        assert str(count) in shown.split()
    hits, turns = metrics.readbacks["hit"], metrics.readbacks.total()
    assert f"{round(100 * hits / turns)}%\nof {turns} turns read KV back" in tab.text("#tiles")
    assert "1,843 of 100K" in tab.text("#memory")
    assert "9.2 MiB of 256 MiB" in tab.text("#memory")
    assert "9,214" in tab.text("#memory")
    assert tab.console_errors() == []


def test_it_asks_only_the_router_it_came_from(stand, tab):
    tab.open(stand.url)
    tab.wait_for_status("Serving")
    tab.wait(lambda: stand.requests_seen.count("/router/state") >= 2)
    urls = tab.requested()
    assert urls
    assert {url for url in urls if not url.startswith(stand.url)} == set()
    assert set(stand.requests_seen) == {"/", "/router/state"}


def test_a_histogram_says_in_words_what_it_draws(stand, tab):
    tab.open(stand.url)
    tab.wait_for_status("Serving")
    told = [each.get_attribute("aria-label") for each in tab.all("#ttft .histogram")]
    assert [text.partition(":")[0] for text in told] == ["prefill", "readback", "decode-local"]
    rows = [row for row in stand.sources.recent.all() if row.path == "readback" and row.ttft_ms is not None]
    assert f"readback: {len(rows)} samples, p50 " in told[1]
    drawn = tab.js(
        "[...document.querySelectorAll('#ttft .readback .bar title')]"
        ".reduce((sum, title) => sum + Number(title.textContent.match(/: (\\d+) request/)[1]), 0)"
    )
    assert drawn == len(rows)


def test_recent_requests_can_be_unfolded_and_filtered(stand, tab):
    stand.end_request(path="prefill", reason="decode-away", status=502, outcome="refused")
    tab.open(stand.url)
    tab.wait_for_status("Serving")
    assert len(tab.all("#recent tr")) == 20
    first = tab.text("#recent tr")
    for part in ("prefill", "decode-away", "502 refused"):
        assert part in first
    tab.one("#more").click()
    assert len(tab.all("#recent tr")) == 100
    tab.one("#filter").send_keys("502 no such thing")
    assert tab.text("#recent") == "No request matches the filter."
    tab.one("#filter").clear()
    tab.one("#filter").send_keys("decode-away")
    rows = stand.sources.recent.latest(100)
    assert len(tab.all("#recent tr")) == sum(row.reason == "decode-away" for row in rows)


def test_a_leg_that_goes_down_and_comes_back_is_seen(stand, tab):
    tab.open(stand.url)
    tab.wait_for_status("Serving")
    stand.legs[3].healthy = False
    tab.wait_for_status("Degraded: 1 of 4 engines down")
    assert tab.all("#engines .state")[3].text == "✕ down"
    stand.legs[2].draining = True
    tab.wait_for_status("Not serving: no healthy decode engine")
    assert tab.all("#engines .state")[2].text == "◐ draining"
    stand.legs[2].draining, stand.legs[3].healthy = False, True
    tab.wait_for_status("Serving")
    assert tab.console_errors() == []


def test_a_router_that_is_gone_is_said_to_be_gone_until_it_is_back(stand, tab):
    tab.open(stand.url)
    tab.wait_for_status("Serving")
    stand.stop()
    tab.wait_for_status("No answer")
    assert tab.text("#notice").startswith("The router does not answer (since ")
    assert "What is shown below is from " in tab.text("#notice")
    assert tab.one("#main").get_attribute("class") == "stale"
    assert tab.js("document.title").startswith("✕ No answer")
    stand.start()
    tab.wait_for_status("Serving")
    assert not tab.one("#notice").is_displayed()
    assert tab.one("#main").get_attribute("class") == ""


@pytest.mark.parametrize(
    ("instead", "told"),
    [
        ((500, b"{}"), "The router answers with status 500"),
        ((200, b"<html>a proxy's page</html>"), "What answers here is not the router"),
        ((200, b'{"router": {}}'), "This page cannot show the router's answer"),
    ],
)
def test_an_answer_that_is_no_state_is_told_and_not_drawn(stand, tab, instead, told):
    stand.instead = instead
    tab.open(stand.url)
    tab.wait_for_status("No answer")
    assert tab.text("#notice").startswith(told)
    stand.instead = None
    tab.wait_for_status("Serving")


def test_markup_in_names_stays_text(stand, tab):
    stand.legs[0].url = f"http://{MARKUP}"
    stand.end_request(path=MARKUP, reason=MARKUP, route=MARKUP, status=200, ttft_ms=50.0, declined=MARKUP)
    stand.end_request(
        path="readback", reason="r", offered=True, kv_read_tokens=0, status=200, declined=MARKUP
    )
    tab.open(stand.url)
    tab.wait_for_status("Serving")
    assert tab.text("#engines code") == f"http://{MARKUP}"
    for part in ("#paths", "#ttft", "#memory", "#recent"):
        assert MARKUP in tab.text(part)
    assert tab.js("document.querySelectorAll('main img, main script, main b b').length") == 0
    assert "owned" not in tab.js("document.title")
    assert tab.console_errors() == []


def test_even_markup_that_got_in_would_not_run(stand, tab):
    tab.open(stand.url)
    tab.wait_for_status("Serving")
    tab.driver.execute_script("document.getElementById('paths').innerHTML = arguments[0]", MARKUP)
    tab.wait(lambda: any("Content Security Policy" in message for message in tab.console_errors()))
    assert "owned" not in tab.js("document.title")


def test_a_key_is_asked_for_and_stays_in_the_tab(stand, tab):
    stand.key = "sk-secret-1"
    tab.open(stand.url)
    tab.wait_for_status("Key needed")
    assert not tab.one("#main").is_displayed()
    assert tab.one("#key").get_attribute("type") == "password"
    tab.one("#key").send_keys("wrong\n")
    tab.wait(lambda: tab.text("#why") == "The router did not accept this key.")
    tab.one("#key").send_keys("  sk-secret-1 \n")
    tab.wait_for_status("Serving")
    assert not tab.one("#ask").is_displayed()
    assert tab.js("Object.values(sessionStorage)") == ["sk-secret-1"]
    assert tab.js("localStorage.length + document.cookie.length") == 0
    assert "secret" not in tab.js("document.documentElement.outerHTML") + " ".join(stand.requests_seen)
    tab.open(stand.url)
    tab.wait_for_status("Serving")
    tab.one("#forget").click()
    tab.wait_for_status("Key needed")
    assert tab.js("sessionStorage.length") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_wider_than_the_screen(stand, tab, width, scheme):
    stand.legs[1].url = "http://" + "prefill-leg-with-a-very-long-name." * 6 + "example:8100"
    stand.places.waiting = 1024
    stand.end_request(path="prefill", reason="r" * 90, route="/v1/" + "e" * 90, status=200, outcome="o" * 40)
    tab.resize(width, scheme=scheme)
    tab.open(stand.url)
    tab.wait_for_status("Serving")
    assert tab.js("document.documentElement.scrollWidth") <= width
    # Of what scrolls on its own, only the table of a wide screen may.
    assert (
        tab.js("[...document.querySelectorAll('.scroll')].some((e) => e.scrollWidth > e.clientWidth)")
        is False
    )
    background = tab.js("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(244, 246, 248)", "dark": "rgb(15, 20, 25)"}[scheme]


@pytest.mark.parametrize("end", ["", "/"])
def test_it_works_behind_a_prefix(stand, tab, end):
    stand.prefix = "/team-a/router"
    tab.open(stand.url.rstrip("/") + end)
    tab.wait_for_status("Serving")
    assert "/team-a/router/router/state" in stand.requests_seen
    links = [link.get_attribute("href") for link in tab.all("footer a")]
    assert links == [stand.url + name for name in ("metrics", "router/state", "health")]


def test_a_paused_page_asks_for_nothing(stand, tab):
    tab.open(stand.url)
    tab.wait_for_status("Serving")
    tab.one("#pause").click()
    asked = len(stand.requests_seen)
    time.sleep(2.5)
    assert len(stand.requests_seen) == asked
    tab.one("#pause").click()
    tab.wait(lambda: len(stand.requests_seen) > asked)


def test_a_router_that_has_served_nothing_yet_says_so(stand, tab):
    fresh = type(stand)()
    fresh.start()
    try:
        tab.open(fresh.url)
        tab.wait_for_status("Serving")
        for part, told in (
            ("#paths", "No request has taken a path yet."),
            ("#ttft", "No sample yet."),
            ("#recent", "No request has ended yet."),
        ):
            assert tab.text(part) == told
        assert tab.console_errors() == []
    finally:
        fresh.stop()
