// What the parts of the console share. No text from the cluster becomes HTML.

export const CENSUS = ["used", "pinned", "quarantined", "cached", "free"];
export const LEDGER = [
  ["queued_s", "queued", "queued"], ["prefill_wait_s", "wait", "waits"], ["prefill_s", "prefill", "prefill"],
  ["transfer_s", "transfer", "transfer"], ["decode_wait_s", "wait", ""], ["decode_s", "decode", "decode"],
];
const GOOD = new Set(["alive", "running", "up", "finished"]);
export const BAD = new Set(["suspect", "gone", "failed", "lost", "off", "silent", "down", "died"]);
export const $ = (id) => document.getElementById(id);

// What shows the router who we are: the address's last part, or what was typed. A browser's
// certificate needs neither.
if (location.hash.length > 1) {
  sessionStorage.setItem("twolane", location.hash.slice(1));
  history.replaceState(null, "", location.pathname);
}
export const headers = () => {
  const token = sessionStorage.getItem("twolane");
  return token ? { authorization: `Bearer ${token}` } : {};
};

const ANSWER_MS = 5000; // routers wait 2 s for each other
// The answer, and what it says. Throws if none comes, or one that is no router's or only half of it.
export async function ask(path) {
  const answer = await fetch(path, { headers: headers(), signal: AbortSignal.timeout(ANSWER_MS) });
  return [answer, await answer.json()];
}

export function el(name, properties = {}, ...children) {
  const made = document.createElement(name);
  Object.assign(made, properties);
  made.append(...children);
  return made;
}

export const num = (value) => Number(value || 0);

export function seconds(value) {
  if (value < 0.0005) return "0";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 120) return `${value.toFixed(1)} s`;
  return value < 7200 ? `${Math.round(value / 60)} min` : `${(value / 3600).toFixed(1)} h`;
}

export const count = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;
export const percent = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "–");
const stateClass = (state) => `state ${GOOD.has(state) ? "good" : BAD.has(state) ? "bad" : "warn"}`;
export const state = (name) => el("span", { className: stateClass(name), textContent: name });
export const number = (text) => el("td", { className: "n", textContent: text });
export const word = (text, className = "") => el("td", { className, textContent: text });

export function stack(parts, title) {
  const whole = parts.reduce((sum, [n]) => sum + n, 0);
  const bar = el("div", { className: "stack", title });
  for (const [n, className] of parts) {
    if (!n) continue;
    const piece = el("i", { className });
    piece.style.width = `${(100 * n) / whole}%`;
    bar.append(piece);
  }
  return bar;
}

export function legend(id, entries) {
  $(id).replaceChildren(...entries.map(([className, text]) =>
    el("span", {}, el("i", { className }), text)));
}

export const nameOf = (its) => its.request_id || (its.submission_id || "").slice(0, 8);

// Of one that runs, `age` is how long: what its ledger does not say yet belongs to where it is now.
export function ledgerBar(ledger, age = 0) {
  const parts = LEDGER.map(([field, className]) => [num(ledger[field]), className]);
  const rest = age - parts.reduce((sum, [n]) => sum + n, 0);
  const now = num(ledger.transfer_s) ? "decode" : num(ledger.prefill_s) ? "transfer" : "wait";
  if (rest > 0) parts.push([rest, now]);
  return stack(parts, LEDGER.map(([field]) => `${field.replace(/_s$/, "").replace("_", " ")} ${seconds(num(ledger[field]))}`).join(", "));
}
