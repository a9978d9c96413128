// What the router says, every two seconds.

const $ = (id) => document.getElementById(id);
const EVERY_MS = 2000;
const PATIENCE_MS = 5000;
const ROWS_AT_FIRST = 20;
const STORED_KEY = "router-api-key";
// The page's own folder, so that it works behind a prefix, with and without a slash at its end.
const STATE_URL = `${location.pathname.replace(/\/?$/, "/")}router/state`;

const page = { timer: null, paused: false, busy: false, seen: null, goneSince: null, history: [], drawn: {}, rows: new Map(), allRows: false };

function say(state, text) {
  $("status").className = `pill ${state}`;
  if ($("status").textContent !== text) $("status").textContent = text;
  document.title = `${{ good: "●", warn: "▲", bad: "✕" }[state] ?? ""} ${text} · ${location.host}`;
}

// Draws a part only where its data changed: a selection or an open tooltip survives the rest of the polls.
function draw(name, data, nodes) {
  const text = JSON.stringify(data);
  if (page.drawn[name] === text) return;
  page.drawn[name] = text;
  $(name).replaceChildren(...nodes());
}

function health(legs) {
  const missing = ["prefill", "decode"].filter((role) => !legs.some((leg) => leg.role === role && leg.healthy && !leg.draining));
  if (missing.length) return ["bad", `Not serving: no healthy ${missing.join(" or ")} engine`];
  const down = legs.filter((leg) => !leg.healthy).length;
  return down ? ["warn", `Degraded: ${down} of ${plural(legs.length, "engine")} down`] : ["good", "Serving"];
}

function tile(label, value, unit, detail, spark = null, state = "") {
  return h("div", { class: `tile ${state}` }, h("p", { class: "label" }, label),
    h("b", {}, value, unit ? h("small", {}, unit) : null), h("p", { class: "soft" }, detail),
    spark !== null && spark.length > 1 ? sparkline(spark) : null);
}

function tiles({ queue, requests, conversations, window: recent }) {
  const spark = (pick) => page.history.map(pick);
  const others = [[recent.refused, "refused"], [recent.client_gone, recent.client_gone === 1 ? "client left" : "clients left"]];
  const rest = others.filter(([count]) => count).map(([count, name]) => `${short(count)} ${name}`).join(", ");
  const read = conversations.prompt_tokens ? conversations.kv_read_tokens / conversations.prompt_tokens : null;
  return [
    tile("Requests", recent.per_s >= 100 ? Math.round(recent.per_s) : recent.per_s.toFixed(1), "per s",
      `${short(requests.total)} since the start`, spark((point) => point.perSecond)),
    tile("Running", whole(queue.running), `of ${short(queue.max_concurrent)}`, `${whole(queue.in_flight)} in flight in all`,
      spark((point) => point.running)),
    tile("Queue", whole(queue.waiting), `of ${short(queue.max_queue)}`, queue.waiting ? "wait for a place" : "nobody waits",
      spark((point) => point.waiting), queue.waiting ? "warn" : ""),
    tile("Readback rate", percent(conversations.hit_rate), "", `of ${plural(conversations.turns, "turn")} read KV back`),
    tile("Prompt tokens read", percent(read), "", read === null ? "no prompt yet" : `${short(conversations.kv_read_tokens)} of ${short(conversations.prompt_tokens)} not computed again`),
    tile("Failed", whole(recent.failed), `of last ${short(recent.requests)}`,
      rest ? `and ${rest}` : "nothing refused, no client left", null, recent.failed ? "bad" : ""),
  ];
}

function legRow(leg) {
  const [state, text] = !leg.healthy ? ["down", "✕ down"] : leg.draining ? ["draining", "◐ draining"] : ["up", "● healthy"];
  const fact = (value, label, bad = false) => h("span", { class: bad ? "bad" : null }, h("b", {}, short(value)), ` ${label}`);
  return h("li", { class: "leg" }, h("span", { class: `state ${state}` }, text), h("code", {}, leg.url),
    h("span", { class: "facts" }, fact(leg.in_flight, "in flight"),
      leg.pending_tokens ? fact(leg.pending_tokens, "tokens pending") : null,
      fact(leg.failures, "failed", leg.failures > 0)));
}

function engines(legs) {
  return ["prefill", "decode"].flatMap((role) => {
    const mine = legs.filter((leg) => leg.role === role);
    const ready = mine.filter((leg) => leg.healthy && !leg.draining).length;
    return [h("h3", {}, `${role === "prefill" ? "Prefill" : "Decode"}: ${ready} of ${mine.length} ready`),
      h("ul", { class: "legs" }, mine.map(legRow))];
  });
}

function paths(rows) {
  const total = rows.reduce((sum, row) => sum + row.count, 0);
  if (!total) return [h("p", { class: "empty" }, "No request has taken a path yet.")];
  const share = (count) => percent(count / total);
  return [stackedBar(rows.map(({ path, count }) => [pathClass(path), count / total, `${path} ${share(count)}`])),
    ...rows.map(({ path, count, reasons }) => h("div", { class: "path" },
      h("div", { class: "line flat" }, pathTag(path), h("span", { class: "count" }, h("b", {}, share(count)), ` · ${short(count)}`)),
      reasons.map((each) => h("div", { class: "line" }, h("span", {}, h("b", {}, each.reason), WHY[each.reason] ? `: ${WHY[each.reason]}` : null),
        h("span", { class: "count" }, short(each.count))))))];
}

const line = (label, value, flat = "") => h("div", { class: `line ${flat}` }, h("span", {}, label), h("span", { class: "count" }, value));
const lines = (counts) => Object.entries(counts).map(([name, count]) => line(name, short(count), "flat"));

function meter(label, value, limit, text) {
  const share = limit ? Math.min(value / limit, 1) : 0;
  return h("div", { class: "meter" }, line(label, `${text(value)} of ${text(limit)}`, "flat"),
    stackedBar([["used", share, `${percent(share)} used`], ["rest", 1 - share, "the rest is free"]]));
}

function memory(kept) {
  const readback = [["hit", "read back"], ["declined", "offered, nothing read"], ["unknown", "offered, not told"], ["none", "nothing to offer"]];
  const share = (name) => (kept.turns ? kept.readback[name] / kept.turns : 0);
  return [
    h("div", {}, h("h3", {}, "Held now"), meter("Conversations", kept.count, kept.max_count, short),
      meter("Memory of the map", kept.bytes, kept.max_bytes, bytes)),
    h("div", {}, h("h3", {}, "Turns since the start"), stackedBar(readback.map(([name, text]) => [name, share(name), `${text} ${percent(share(name))}`])),
      readback.filter(([name]) => kept.readback[name] || name !== "unknown").map(([name, text]) => h("div", { class: "line flat" },
        h("span", { class: `tag ${name}` }, text), h("span", { class: "count" }, `${percent(share(name))} · ${short(kept.readback[name])}`))),
      Object.keys(kept.declined).length ? [h("h3", {}, "Why nothing was read"), lines(kept.declined)] : []),
    h("div", {}, h("h3", {}, "Handles since the start"), lines(kept.events),
      Object.keys(kept.leases).length ? [h("h3", {}, "Leases"), lines(kept.leases)] : []),
  ];
}

function resultClass({ failed, outcome, status }) {
  if (failed) return "failed";
  return outcome === "ok" && status < 400 ? "ok" : "left";
}

function requestRow(row) {
  const cell = (label, name, ...content) => h("td", { "data-label": label, class: name }, ...content);
  const result = `${row.status ?? "no status"} ${row.outcome}`;
  return h("tr", {}, h("td", { class: "time", title: new Date(row.at * 1000).toISOString() }, clock(row.at)),
    cell("Endpoint", "endpoint", row.endpoint ?? DASH),
    cell("Path", "wide", row.path === null ? DASH : pathTag(row.path), row.reason === null ? null : h("span", { class: "reason", title: WHY[row.reason] }, ` ${row.reason}`)),
    cell("Prompt", "num", whole(row.prompt_tokens)), cell("Read", "num", whole(row.read_tokens)), cell("TTFT", "num", ms(row.ttft_ms)),
    cell("Prefill", "num", ms(row.prefill_ms)), cell("Total", "num", ms(row.total_ms)),
    cell("Result", resultClass(row), result), h("td", { "data-label": "Conversation", title: `request ${row.request_id}` }, h("code", {}, row.conversation ?? DASH)));
}

// Rows are kept from poll to poll, so that one can be selected and copied.
function recent(rows) {
  const wanted = $("filter").value.trim().toLowerCase();
  const fitting = rows.filter((row) => Object.values(row).join(" ").toLowerCase().includes(wanted));
  const shown = page.allRows ? fitting : fitting.slice(0, ROWS_AT_FIRST);
  page.rows = new Map(shown.map((row) => {
    const id = `${row.request_id} ${row.at}`;
    return [id, page.rows.get(id) ?? requestRow(row)];
  }));
  const none = h("tr", {}, h("td", { class: "empty", colspan: 10 }, rows.length ? "No request matches the filter." : "No request has ended yet."));
  $("recent").replaceChildren(...(shown.length ? page.rows.values() : [none]));
  $("recent-note").textContent = !rows.length ? "" : wanted ? `${fitting.length} of the last ${rows.length}` : `the last ${rows.length}`;
  $("more").hidden = shown.length === fitting.length && !page.allRows || fitting.length <= ROWS_AT_FIRST;
  $("more").textContent = page.allRows ? "Show fewer" : `Show all ${fitting.length}`;
}

function remember({ router, queue, window: recently }) {
  if (page.history.length && page.history[0].started !== router.started) page.history = [];
  page.history.push({ started: router.started, perSecond: recently.per_s, running: queue.running, waiting: queue.waiting });
  page.history = page.history.slice(-90);
}

function show(state) {
  const { router, legs, latency, window: recently } = state;
  remember(state);
  page.seen = state;
  page.goneSince = null;
  $("notice").hidden = $("ask").hidden = true;
  $("main").hidden = $("pause").hidden = false;
  $("main").classList.remove("stale");
  $("forget").hidden = sessionStorage.getItem(STORED_KEY) === null;
  $("about").textContent = `${location.host} · version ${router.version} · up ${duration(router.uptime_s)}`;
  $("fresh").textContent = `as of ${clock(router.time)}`;
  say(...health(legs));
  $("tiles").replaceChildren(...tiles(state));
  draw("engines", legs, () => engines(legs));
  draw("paths", state.paths, () => paths(state.paths));
  draw("memory", state.conversations, () => memory(state.conversations));
  const range = logRange([...Object.values(latency.ttft), ...Object.values(latency.prefill)], latency.edges_ms);
  for (const name of ["ttft", "prefill"]) draw(name, [latency[name], range], () => latencyChart(latency[name], latency.edges_ms, range));
  $("latency-note").textContent = recently.since === null ? "" : `of the last ${plural(recently.requests, "request")}, since ${clock(recently.since)}`;
  $("paths-note").textContent = "since the start";
  recent(state.recent);
}

function showGone(why) {
  page.goneSince ??= Date.now() / 1000;
  const old = page.seen === null ? "" : ` What is shown below is from ${clock(page.seen.router.time)}.`;
  $("notice").textContent = `${why} (since ${clock(page.goneSince)}; this page goes on asking).${old}`;
  $("notice").hidden = false;
  $("main").classList.add("stale");
  say("bad", "No answer");
}

function askForKey(refused) {
  sessionStorage.removeItem(STORED_KEY);
  $("why").textContent = refused ? "The router did not accept this key." : "This router shows its state to those who have a key.";
  $("ask").hidden = false;
  $("main").hidden = $("notice").hidden = $("forget").hidden = $("pause").hidden = true;
  $("fresh").textContent = "";
  say("warn", "Key needed");
  $("key").focus();
}

// The state; null after telling on the page why there is none.
async function ask() {
  const key = sessionStorage.getItem(STORED_KEY);
  const headers = key === null ? {} : { Authorization: `Bearer ${key}` };
  let answer;
  try {
    answer = await fetch(STATE_URL, { headers, cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
    if (answer.ok) return await answer.json();
  } catch (error) {
    if (!["TypeError", "TimeoutError", "SyntaxError", "AbortError"].includes(error.name)) throw error;
    showGone(error.name === "SyntaxError" ? "What answers here is not the router" : "The router does not answer");
    return null;
  }
  if (answer.status === 401 || answer.status === 403) askForKey(key !== null);
  else showGone(`The router answers with status ${answer.status}`);
  return null;
}

async function poll() {
  if (page.busy) return;
  page.busy = true;
  clearTimeout(page.timer);
  try {
    const state = await ask();
    if (state !== null) show(state);
  } catch (error) {
    console.error(error);
    showGone(`This page cannot show the router's answer: ${error.message}`);
  } finally {
    page.busy = false;
    // Without a key there is nothing to ask for; while nobody looks there is nobody to ask for.
    if (!page.paused && !document.hidden && $("ask").hidden) page.timer = setTimeout(poll, EVERY_MS);
  }
}

$("pause").addEventListener("click", () => {
  page.paused = !page.paused;
  $("pause").setAttribute("aria-pressed", page.paused);
  $("pause").textContent = page.paused ? "Resume" : "Pause";
  if (page.paused) clearTimeout(page.timer);
  else poll();
});
$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(STORED_KEY, $("key").value.trim());
  $("key").value = "";
  $("ask").hidden = true;
  poll();
});
$("forget").addEventListener("click", () => {
  clearTimeout(page.timer);
  askForKey(false);
});
$("more").addEventListener("click", () => {
  page.allRows = !page.allRows;
  recent(page.seen.recent);
});
$("filter").addEventListener("input", () => recent(page.seen.recent));
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !page.paused && $("ask").hidden) poll();
});
$("about").textContent = location.host;
for (const link of document.querySelectorAll("footer a")) link.href = STATE_URL.replace("router/state", link.getAttribute("href"));
poll();
