// The chat box: answers as they stream, then where their time went.

import { $, ask, count, el, headers, ledgerBar, seconds } from "/console/dom.js";

const messages = []; // so far

async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    }
  }
}

export async function send(text) {
  messages.push({ role: "user", content: text });
  const answer = el("p"), note = el("small", { textContent: "…" });
  $("answers").append(el("p", { className: "mine", textContent: text }), answer);
  const begun = performance.now();
  let first = 0, said = "", n = 0, usage = null;
  try {
    const response = await fetch("/console/api/chat", {
      method: "POST",
      headers: { ...headers(), "content-type": "application/json" },
      body: JSON.stringify({ model: $("model").value, messages, stream: true, max_tokens: 120, stream_options: { include_usage: true } }),
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    const id = response.headers.get("x-request-id");
    for await (const event of eventsOf(response.body)) {
      if (event.error) throw new Error(event.error.message);
      usage = event.usage || usage;
      const piece = event.choices && event.choices[0] && event.choices[0].delta.content;
      if (!piece) continue;
      first = first || performance.now();
      n += 1;
      said += piece;
      answer.textContent = said;
      $("answers").scrollTop = $("answers").scrollHeight;
    }
    const tokens = usage ? usage.completion_tokens : n;
    note.textContent = `${count(tokens, "token")}; the first after ${seconds((first - begun) / 1000)}, all after ${seconds((performance.now() - begun) / 1000)}`;
    answer.append(note);
    messages.push({ role: "assistant", content: said });
    await showLedger(id, answer, note);
  } catch (error) {
    messages.pop();
    note.textContent = String(error.message || error);
    note.className = "bad";
    answer.append(note);
  }
  $("answers").scrollTop = $("answers").scrollHeight;
}

async function showLedger(id, answer, note) {
  try {
    const [found, told] = await ask(`/console/api/request?id=${encodeURIComponent(id)}`);
    if (found.ok) {
      answer.append(ledgerBar(told.trace.ledger || {}));
      return;
    }
  } catch (error) {
    console.error(error);
  }
  note.textContent += "; the router does not say where the time went";
}
