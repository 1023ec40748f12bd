// The console: asks the router each second for what it draws.

import { send } from "/console/chat.js";
import { drawScaler } from "/console/scaler.js";
import {
  $, BAD, CENSUS, LEDGER, ask, count, el, ledgerBar, legend, nameOf, num, number, percent, seconds, stack,
  state, word,
} from "/console/dom.js";

const EVERY_MS = 1000;
const KEPT = 60; // points of a sparkline
const NO_ANSWER = "the router does not answer";
const figures = {}; // name: its last values
let showsEnded = false;
let latest = null;
let traces = 0; // that were asked for
let isPressed = false; // a click begins: a row that is replaced then would never get it

function say(text, level) {
  $("so-what").textContent = text;
  $("so-what").className = level;
}

// Workers

const pagesOf = (worker) => (worker.load && worker.load.pages) || {};
const held = (worker) => ["used", "pinned", "quarantined"].reduce((sum, k) => sum + num(pagesOf(worker)[k]), 0);
const total = (worker) => CENSUS.reduce((sum, k) => sum + num(pagesOf(worker)[k]), 0);
const roles = (worker) => (worker.roles || []).map((role) => role.replace("ROLE_", "").toLowerCase());

function waits(worker) {
  const load = worker.load || {};
  const tokens = num(load.prefill_queue_tokens);
  return tokens ? tokens / Math.max(num(load.prefill_tokens_per_s), 1) : 0;
}

const isStuck = (load) => num(load.step_bound_s) > 0 && num(load.step_age_s) > num(load.step_bound_s);

function workerRow(worker) {
  const load = worker.load || {}, pages = pagesOf(worker);
  const title = CENSUS.map((name) => `${name} ${num(pages[name])}`).join(", ");
  const does = roles(worker);
  const row = el("tr", {},
    word(worker.worker.worker_id), word(does.join("+"), "dim"),
    el("td", {}, state(isStuck(load) ? `a step of ${seconds(num(load.step_age_s))}` : worker.state)),
    word(worker.host || "", "place dim"),
    el("td", { className: "bar" }, stack(CENSUS.map((name) => [num(pages[name]), name]), title)),
    number(percent(held(worker), total(worker))),
    number(does.includes("prefill") ? seconds(waits(worker)) : ""),
    number(does.includes("decode") ? String(num(load.rows)) : ""),
    number(Math.round(num(load.prefill_tokens_per_s) + num(load.decode_tokens_per_s)).toLocaleString()),
    number(seconds(num(load.step_p50_s) || num(load.step_s))), number(seconds(num(load.step_p99_s))));
  row.dataset.worker = worker.worker.worker_id;
  row.dataset.state = worker.state;
  return row;
}

const pressure = (worker) => Math.max(total(worker) ? held(worker) / total(worker) : 0, waits(worker));
const trouble = (worker) => (BAD.has(worker.state) ? 2 : worker.state === "alive" ? 0 : 1);

function drawWorkers(workers) {
  const sorted = [...workers].sort((a, b) => trouble(b) - trouble(a) || pressure(b) - pressure(a)
    || a.worker.worker_id.localeCompare(b.worker.worker_id));
  $("workers").replaceChildren(...sorted.map(workerRow));
}

function drawPools(status, workers) {
  const pools = status.pools || [];
  const sizes = {}; // where no controller tells of its pools: what there is
  for (const worker of workers) {
    const name = worker.pool || roles(worker).join("+");
    sizes[name] = (sizes[name] || 0) + (worker.state === "alive" ? 1 : 0);
  }
  const shown = pools.length ? pools : Object.entries(sizes).map(([pool, alive]) => ({ pool, alive, workers: alive }));
  $("pools").replaceChildren(...shown.map((its) => {
    const more = [];
    if (its.starting) more.push(`${its.starting} starting`);
    if (its.draining) more.push(`${its.draining} draining`);
    if (its.pinned) more.push("pinned");
    if (its.gpus_a_worker) more.push(count(its.workers * its.gpus_a_worker, "GPU"));
    const isShort = num(its.alive) < num(its.workers);
    return el("div", {}, el("span", { className: "dim", textContent: `${its.pool}: ` }),
      el("b", { className: isShort ? "warn" : "", textContent: `${num(its.alive)} of ${num(its.workers)} alive` }),
      el("div", { className: "dim", textContent: more.join(" · ") || "as wanted" }));
  }));
}

// Requests

const waiting = (its) => its.state === "queued" || its.state === "resuming";

function requestRow(its) {
  const silent = num(its.silent_s);
  const path = [its.prefill_worker, its.decode_worker].filter(Boolean).join(" › ");
  const attempts = num(its.attempt) > 1 ? ` (${its.attempt})` : "";
  const gap = number(its.finish ? "" : seconds(silent));
  if (!its.finish && silent > 1) gap.classList.add(silent > 5 ? "bad" : "warn");
  const row = el("tr", { tabIndex: 0 }, word(nameOf(its)), el("td", {}, state(its.finish && BAD.has(its.state) ? its.finish : its.state)),
    word(path + attempts, "place dim"), number(String(num(its.prompt_tokens))), number(String(num(its.output_tokens))),
    number(seconds(num(its.age_s))), number(its.ttft_s ? seconds(its.ttft_s) : ""), gap,
    el("td", { className: "bar" }, ledgerBar(its.ledger || {}, its.finish ? 0 : num(its.age_s))));
  row.dataset.id = its.submission_id;
  return row;
}

function drawRequests(look) {
  if (isPressed) return;
  const found = (showsEnded ? look.ended : look.running).requests || [];
  const rows = found.slice(0, 20).map(requestRow);
  const none = showsEnded ? "no request has ended lately" : "no request runs";
  const empty = el("tr", {}, el("td", { colSpan: 9, className: "dim", textContent: none }));
  $("requests").replaceChildren(...(rows.length ? rows : [empty]));
}

function openTrace(title, facts, spans, marks) {
  $("trace-title").textContent = title;
  $("trace-facts").textContent = facts;
  $("spans").replaceChildren(...spans);
  $("marks").replaceChildren(...marks);
  if (!$("trace").open) $("trace").showModal();
}

async function showTrace(id) {
  const nth = ++traces;
  let answer, told;
  try {
    [answer, told] = await ask(`/console/api/request?id=${encodeURIComponent(id)}`);
  } catch {
    if (nth === traces) openTrace(NO_ANSWER, "", [], []);
    return;
  }
  if (nth !== traces) return; // another one was asked for meanwhile
  if (!answer.ok) {
    openTrace(told?.error?.message || `HTTP ${answer.status}`, "", [], []);
    return;
  }
  const trace = told.trace;
  const spans = (trace.spans || []).filter((span) => num(span.end_s) > num(span.start_s));
  const end = Math.max(0.001, ...spans.map((span) => num(span.end_s)));
  const its = trace.request;
  const facts = `${num(its.prompt_tokens)} prompt tokens, ${num(its.output_tokens)} of the answer, `
    + `${count(num(trace.ledger && trace.ledger.attempts), "attempt")}, at ${its.router_id}, model ${its.model}`;
  const lanes = spans.map((span) => {
    const bar = el("i", { className: span.name.includes("wait") ? "wait" : span.name });
    bar.style.left = `${(100 * num(span.start_s)) / end}%`;
    bar.style.width = `${(100 * (num(span.end_s) - num(span.start_s))) / end}%`;
    const again = num(span.attempt) > 1 ? ` #${span.attempt}` : "";
    return el("div", { className: "span" }, el("span", { textContent: span.name + again }),
      el("div", { className: "lane" }, bar),
      el("span", { className: "n", textContent: seconds(num(span.end_s) - num(span.start_s)) }),
      el("span", { className: "dim", textContent: span.where || "" }));
  });
  const marks = (trace.marks || []).map((mark) => el("tr", {},
    number(seconds(num(mark.at_s))), word(mark.what), word(mark.where || "", "dim"), word(mark.note || "", mark.note === "finished" ? "dim" : "warn")));
  openTrace(`${nameOf(its)} · ${its.state}`, facts, lanes, marks);
}

// Tiles

function sparkline(values) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${KEPT - 1} 24`);
  svg.setAttribute("preserveAspectRatio", "none");
  const most = Math.max(1, ...values);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  const first = KEPT - values.length;
  line.setAttribute("points", values.map((v, i) => `${first + i},${23 - (22 * v) / most}`).join(" "));
  svg.append(line);
  return svg;
}

function tile(name, value, text, className = "") {
  const values = (figures[name] = figures[name] || []);
  values.push(value);
  if (values.length > KEPT) values.shift();
  return el("div", { className: `tile ${className}` }, el("span", { textContent: name }),
    el("b", { textContent: text }), sparkline(values));
}

function drawTiles(look, workers) {
  const states = look.status.requests_by_state || {};
  const queued = num(states.queued) + num(states.resuming);
  const all = Object.values(states).reduce((sum, n) => sum + num(n), 0);
  const rate = (field) => workers.reduce((sum, w) => sum + num((w.load || {})[field]), 0);
  const firsts = (look.ended.requests || []).map((r) => num(r.ttft_s)).filter((s) => s > 0).sort((a, b) => a - b);
  const first = firsts.length ? firsts[Math.floor(firsts.length / 2)] : 0;
  const gap = Math.max(0, ...(look.running.requests || []).filter((r) => !waiting(r)).map((r) => num(r.silent_s)));
  const prompts = rate("prefill_tokens_per_s"), answers = rate("decode_tokens_per_s");
  $("tiles").replaceChildren(
    tile("requests", all, String(all)),
    tile("in the queue", queued, String(queued), queued ? "warn" : ""),
    tile("prompt tokens/s", prompts, Math.round(prompts).toLocaleString()),
    tile("answer tokens/s", answers, Math.round(answers).toLocaleString()),
    tile("first token, median", first, first ? seconds(first) : "–"),
    tile("longest gap", gap, seconds(gap), gap > 5 ? "bad" : gap > 1 ? "warn" : ""));
}

function soWhat(look, workers) {
  const status = look.status;
  const bad = workers.filter((w) => BAD.has(w.state)).map((w) => w.worker.worker_id);
  const serving = workers.filter((w) => w.state === "alive");
  const does = (role) => serving.filter((w) => roles(w).includes(role));
  const missing = (status.routers || []).filter((r) => r.unreached).map((r) => r.address.router_id);
  const prefill = does("prefill"), decode = does("decode");
  const more = [];
  if (bad.length) more.push(`not heard: ${bad.join(", ")}`);
  if (missing.length) more.push(`routers that do not answer: ${missing.join(", ")}`);
  const tail = more.length ? `; ${more.join("; ")}` : "";
  const level = more.length ? "warn" : "";
  if (!prefill.length || !decode.length) return [`nothing is served: no ${prefill.length ? "decode" : "prefill"} worker is alive${tail}`, "bad"];
  const full = decode.reduce((sum, w) => sum + (total(w) ? held(w) / total(w) : 0), 0) / decode.length;
  const wait = Math.max(...prefill.map(waits));
  if (full > 0.9) return [`decode is the bottleneck: ${Math.round(full * 100)} % of its pages are held${tail}`, "warn"];
  if (wait > 0.5) return [`prefill is the bottleneck: prompts wait ${seconds(wait)}${tail}`, "warn"];
  return [`there is room: decode holds ${Math.round(full * 100)} % of its pages, no prompt waits${tail}`, level];
}

function drawEvents(events) {
  $("events").replaceChildren(...[...events].reverse().map((event) => {
    const at = new Date(num(event.at) * 1000).toLocaleTimeString([], { hour12: false });
    const isBad = BAD.has((event.kind || "").split(".").pop()) || (event.audit && event.audit.refused);
    return el("li", { className: isBad ? "bad" : "" }, el("time", { textContent: at }), event.text || event.kind);
  }));
}

function drawModels(workers) {
  const names = [...new Set(workers.map((w) => w.model).filter(Boolean))].sort();
  const known = [...$("model").options].map((option) => option.value);
  if (names.join() !== known.join()) $("model").replaceChildren(...names.map((name) => el("option", { textContent: name, value: name })));
}

// The loop

function draw(look) {
  latest = look;
  const workers = (look.status.workers || []).filter((w) => w.state !== "gone");
  say(...soWhat(look, workers));
  const routers = (look.status.routers || []).length || 1;
  $("who").textContent = `${look.who} · ${count(routers, "router")}`;
  drawTiles(look, workers);
  drawPools(look.status, workers);
  drawScaler(look.status.scaler);
  drawWorkers(workers);
  drawRequests(look);
  drawEvents(look.events.events || []);
  drawModels(workers);
  const mayChat = look.role === "operator";
  $("prompt").disabled = !mayChat;
  $("prompt").placeholder = mayChat ? "Say something" : "the chat is for operators";
}

async function look() {
  let answer, told;
  try {
    [answer, told] = await ask("/console/api/look");
  } catch {
    say(NO_ANSWER, "bad");
    return;
  }
  const isKnown = answer.ok || answer.status >= 500;
  $("login").hidden = isKnown;
  $("main").hidden = !isKnown;
  if (answer.ok) draw(told);
  else {
    const why = told?.error?.message || `HTTP ${answer.status}`;
    say(isKnown ? why : "", "bad");
    if (sessionStorage.getItem("twolane")) $("login-error").textContent = why;
  }
}

async function refresh() {
  try {
    await look();
  } catch (error) {
    console.error(error);
    say(`this page cannot show what the router says: ${error.message}`, "bad");
  }
}

async function forever() {
  for (;;) {
    if (document.visibilityState === "visible") await refresh();
    await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
  }
}

function select(ended) {
  showsEnded = ended;
  $("show-ended").ariaSelected = String(ended);
  $("show-running").ariaSelected = String(!ended);
  if (latest) drawRequests(latest);
}

$("show-running").addEventListener("click", () => select(false));
$("show-ended").addEventListener("click", () => select(true));
const opened = (event) => {
  const row = event.target.closest("tr[data-id]");
  if (row && (event.type === "click" || event.key === "Enter")) showTrace(row.dataset.id);
};
$("requests").addEventListener("pointerdown", (event) => { isPressed = event.button === 0; });
for (const end of ["pointerup", "pointercancel", "contextmenu", "blur"]) addEventListener(end, () => { isPressed = false; });
$("requests").addEventListener("click", opened);
$("requests").addEventListener("keydown", opened);
$("login-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("twolane", $("key").value.trim());
  $("key").value = "";
  refresh();
});
$("chat-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = $("prompt").value.trim();
  if (!text || $("send").disabled) return;
  $("prompt").value = "";
  $("send").disabled = true;
  await send(text);
  $("send").disabled = false;
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    $("chat-form").requestSubmit();
  }
});
legend("census-legend", CENSUS.map((name) => [name, name]));
legend("ledger-legend", LEDGER.filter(([, , text]) => text).map(([, className, text]) => [className, text]));
forever();
