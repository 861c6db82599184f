// Sums, pods that wait, services, traffic, decisions, evictions: everything but nodes and cards.
"use strict";

import { at, counted, make, number, replace, say, short, swatch, table } from "/dom.js";
import { whyButton } from "/why.js";

const SHOWN = { pending: 20, services: 24, traffic: 24, decisions: 8, evictions: 8, denied: 20, conflicts: 20 };
const all = new Set(); // lists that are shown whole

// Puts the first of some elements into a list, and a button for the others.
function fill(id, elements, again, put = (shown) => replace(at(id), ...shown)) {
  const whole = all.has(id) || elements.length <= SHOWN[id];
  put(whole ? elements : elements.slice(0, SHOWN[id]));
  if (whole) return;
  const more = make("button", { type: "button", cls: "more", text: `Show all ${number(elements.length)}` });
  more.addEventListener("click", () => { all.add(id); again(); });
  const place = at(id);
  place.append(place.tagName === "UL" ? make("li", { cls: "plain" }, more) : more);
}

const hit = (query, ...texts) => !query || texts.some((text) => text && text.toLowerCase().includes(query));

export function drawSums(sums) {
  const memory = sums.memory_total_mib ? Math.round((100 * sums.memory_allocated_mib) / sums.memory_total_mib) : 0;
  const tiles = [
    ["Cards in use", number(sums.cards_used), `of ${number(sums.cards)}`],
    ["Slices", number(sums.slices), sums.cards_whole ? `+ ${number(sums.cards_whole)} whole` : ""],
    ["Card memory given away", `${memory} %`, ""],
    ["Pods placed", number(sums.pods_placed), ""],
    ["Pods pending", number(sums.pods_pending), "", sums.pods_pending > 0],
  ];
  if (sums.pods_denied) tiles.push(["Pods denied", number(sums.pods_denied), "", true]);
  replace(at("sums"), ...tiles.map(([name, value, more, waits]) =>
    make("div", { cls: waits ? "waits" : "" }, make("dt", { text: name }),
      make("dd", { text: value }, ...(more ? [" ", make("small", { text: more })] : [])))));
  say("sentence", `${sums.cards_used} of ${sums.cards} cards in use, ${sums.pods_placed} pods placed, ` +
    `${sums.pods_pending} pending`);
}

export function drawPending(pending, query) {
  const groups = new Map();
  for (const each of pending) {
    const key = JSON.stringify([each.service, each.asks, each.why, each.detail]);
    groups.set(key, { ...each, count: (groups.get(key)?.count || 0) + 1 });
  }
  at("waiting").hidden = at("to-waiting").hidden = !groups.size;
  const seen = [...groups.values()].filter((each) => hit(query, each.service, each.pod, each.why, each.asks));
  fill("pending", seen.map((each) => make("li", {},
    make("strong", { text: `${short(each.service)} ×${number(each.count)}` }), ` asks for ${each.asks}`,
    whyButton(each.pod),
    make("p", { text: each.why }),
    ...[each.detail, each.advice && `What to do: ${each.advice}`].filter(Boolean)
      .map((text) => make("p", { cls: "soft", text })))), () => drawPending(pending, query));
}

export function drawDenied(denied) {
  at("refused").hidden = !denied.length;
  fill("denied", denied.map((each) => make("li", {},
    make("strong", { text: each.workload }), ` in ${each.where}`, make("p", { text: each.why }))), () => drawDenied(denied));
}

export function drawConflicts(conflicts) {
  at("contradicting").hidden = !conflicts.length;
  fill("conflicts", conflicts.map((each) => make("li", {},
    make("strong", { text: each.node }), each.pod ? ` by ${each.pod}` : "", make("p", { text: each.text }),
    make("p", { cls: "soft", text: "The node takes nothing new until that has gone." }))), () => drawConflicts(conflicts));
}

export function drawEvictions(evictions, query) {
  at("going").hidden = !evictions.length;
  const seen = evictions.filter((each) => hit(query, each.pod, each.node, each.why));
  fill("evictions", seen.map((each) => make("li", {},
    make("strong", { text: each.pod }), each.node ? ` on ${each.node}` : "",
    ...(each.at ? [", ", make("time", { datetime: each.at, text: each.at.replace("T", " ").slice(0, 19) + " UTC" })] : []),
    make("p", { text: each.why }))), () => drawEvictions(evictions, query));
}

export function drawServices(services, query) {
  if (!services.length) {
    replace(at("services"), make("p", { cls: "soft", text: "No pod holds cards, or waits for some." }));
    return;
  }
  const seen = services.filter((each) => hit(query, each.service))
    .sort((one, other) => other.pending - one.pending || other.memory_mib - one.memory_mib
      || (one.service < other.service ? -1 : 1));
  const heads = [["Service"], ["Pods", 1], ["Pending", 1], ["Cards", 1], ["MiB", 1], ["Compute, % of a card", 1]];
  const rows = seen.map((each) => [swatch(each.service, short(each.service)), number(each.pods),
    each.pending ? make("b", { cls: "waits", text: number(each.pending) }) : "0",
    number(each.cards), number(each.memory_mib), number(each.compute_pct)]);
  fill("services", rows, () => drawServices(services, query),
    (shown) => replace(at("services"), table("Services, the ones with pods that wait on top", heads, shown)));
}

const known = (value, words) => (value === null || value === undefined ? "–" : words(value));

export function drawTraffic(traffic, query) {
  at("asked").hidden = !traffic.length;
  const heads = [["Service"], ["Requests/s", 1], ["P99, ms", 1], ["Target, ms", 1], ["Queue", 1], ["Refused", 1]];
  const rows = traffic.filter((each) => hit(query, each.service)).map((each) => {
    const late = each.p99_ms > each.target_ms && each.target_ms !== null;
    const p99 = known(each.p99_ms, (ms) => number(Math.round(ms)));
    return [each.service, known(each.requests_per_s, (rate) => rate.toFixed(1)),
      late ? make("b", { cls: "waits", text: `${p99}, late` }) : p99,
      known(each.target_ms, (ms) => number(Math.round(ms))),
      known(each.queue, (length) => number(length) + known(each.queue_depth, (depth) => ` of ${number(depth)}`)),
      known(each.refused_share, (share) => `${(100 * share).toFixed(1)} %`)];
  });
  fill("traffic", rows, () => drawTraffic(traffic, query),
    (shown) => replace(at("traffic"), table("What the gateways say", heads, shown)));
}

export function drawDecisions(decisions, query) {
  at("decided").hidden = at("to-decided").hidden = !decisions.length;
  const seen = decisions.filter((each) => hit(query, each.pod, each.node, each.service));
  const rows = seen.map((each) => [short(each.pod), each.asks, each.node, counted(each.cards.length, "card"),
    each.policy, whyButton(each.pod)]);
  fill("decisions", rows, () => drawDecisions(decisions, query), (shown) => replace(at("decisions"),
    table("Latest bindings, newest first", [["Pod"], ["Asks for"], ["Node"], ["Got"], ["Policy"], ["Explanation"]], shown)));
}

export function drawNotes(notes) {
  replace(at("notes"), ...notes.map((text) => make("li", { text: `note: ${text}` })));
}
