// Why pools have the sizes that they have: the scaler's latest decision, and what was done lately.

import { $, count, el, num, number, seconds, state, word } from "/console/dom.js";

const DEEDS = 8;
const NO_BOUND = 1024; // the default of a pool's maximum
const rate = (value) => (num(value) >= 1000 ? `${(num(value) / 1000).toFixed(1)}k` : num(value).toFixed(0));

const allowed = (its) => (num(its.most) >= NO_BOUND ? `${num(its.least)} or more` : `${num(its.least)} to ${num(its.most)}`);

function poolRow(its) {
  const row = el("tr", {}, word(its.pool), number(String(num(its.have))), number(String(num(its.target))),
    number(String(num(its.need))), number(allowed(its)), number(num(its.load).toFixed(2)),
    number(rate(its.forecast_per_s)), number(rate(its.capacity_per_s)));
  if (num(its.target) < num(its.need)) row.classList.add("warn");
  return row;
}

function facts(its) {
  const unit = its.unit || "GPUs";
  const parts = [`${num(its.held_gpus)} of ${num(its.budget_gpus)} ${unit}`,
    `SLO: first token ${seconds(num(its.ttft_s))}, gap ${seconds(num(its.gap_s))}`];
  if (its.has_attainment) parts.push(`held by ${(100 * num(its.attainment)).toFixed(1)} % of the last 5 minutes' requests`);
  parts.push(count(num(its.decisions), "decision"));
  return parts.join(" · ");
}

export function drawScaler(its) {
  $("scaler").hidden = !its;
  if (!its) return;
  const mode = state(its.mode);
  mode.classList.replace("warn", its.mode === "on" ? "good" : "warn");
  $("scaler-mode").replaceChildren(mode);
  $("scaler-facts").textContent = facts(its);
  $("scaler-pools").replaceChildren(...(its.pools || []).map(poolRow));
  const actions = (its.actions || []).map((text) => el("li", { className: "acts", textContent: text }));
  const reasons = (its.reasons || []).filter((text) => !(its.actions || []).includes(text));
  $("scaler-why").replaceChildren(...actions, ...reasons.map((text) => el("li", { textContent: text })));
  const deeds = [...(its.deeds || [])].reverse().slice(0, DEEDS);
  const none = el("li", { className: "dim", textContent: "nothing since this controller began" });
  $("scaler-deeds").replaceChildren(...(deeds.length ? deeds.map((deed) =>
    el("li", {}, el("time", { textContent: `${seconds(num(deed.ago_s))} ago` }), deed.text)) : [none]));
}
