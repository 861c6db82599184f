// Asks for the state once a second and draws it anew when it changed. All text goes in as text, never as markup:
// names come from files.
"use strict";

const PERIOD_MS = 1000;
const COLOURS = 8;
let drawn = -1;
const opened = new Set();

const at = (id) => document.getElementById(id);

function make(tag, { text, cls, ...attributes } = {}, ...children) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (cls) element.className = cls;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const number = (value) => value.toLocaleString("en-US");
const short = (service) => service.replace(/^default\//, "");
const counted = (n, what) => `${number(n)} ${what}${n === 1 ? "" : "s"}`;

function coloured(element, colours, service) {
  element.style.setProperty("--colour", `var(--s${colours.get(service)})`);
  return element;
}

function swatch(colours, service, label) {
  const mark = coloured(make("span", { cls: "swatch", "aria-hidden": "true" }), colours, service);
  return make("span", {}, mark, label);
}

function servicesOf(slices) {
  const counts = new Map();
  for (const each of slices) {
    const known = counts.get(each.service) || { count: 0, whole: each.whole };
    counts.set(each.service, { count: known.count + 1, whole: known.whole });
  }
  return counts;
}

// ---------------------------------------------------------------- sums

function drawSums(sums) {
  const memory = sums.memory_total_mib ? Math.round((100 * sums.memory_allocated_mib) / sums.memory_total_mib) : 0;
  const tiles = [
    ["Cards in use", number(sums.cards_used), `of ${number(sums.cards)}`],
    ["Slices", number(sums.slices), sums.cards_whole ? `+ ${number(sums.cards_whole)} whole` : ""],
    ["Card memory given away", `${memory} %`, ""],
    ["Pods placed", number(sums.pods_placed), ""],
    ["Pods pending", number(sums.pods_pending), "", sums.pods_pending > 0],
  ];
  if (sums.pods_denied) tiles.push(["Pods denied", number(sums.pods_denied), "", true]);
  at("sums").replaceChildren(
    ...tiles.map(([name, value, more, waits]) =>
      make("div", { cls: waits ? "waits" : "" }, make("dt", { text: name }),
        make("dd", { text: value }, ...(more ? [" ", make("small", { text: more })] : [])))));
  at("sentence").textContent =
    `${sums.cards_used} of ${sums.cards} cards in use, ${sums.pods_placed} pods placed, ${sums.pods_pending} pending`;
}

// ---------------------------------------------------------------- pods that wait

function drawPending(pending) {
  const groups = new Map();
  for (const each of pending) {
    const key = JSON.stringify([each.service, each.asks, each.why, each.detail]);
    groups.set(key, { ...each, count: (groups.get(key)?.count || 0) + 1 });
  }
  at("waiting").hidden = !groups.size;
  at("pending").replaceChildren(...[...groups.values()].map((each) => make("li", {},
    make("strong", { text: `${short(each.service)} ×${each.count}` }), ` asks for ${each.asks}`,
    make("p", { text: each.why }),
    ...[each.detail, each.advice && `What to do: ${each.advice}`].filter(Boolean)
      .map((text) => make("p", { cls: "soft", text })))));
}

function drawDenied(denied) {
  at("refused").hidden = !denied.length;
  at("denied").replaceChildren(...denied.map((each) => make("li", {},
    make("strong", { text: each.workload }), ` in ${each.where}`, make("p", { text: each.why }))));
}

// ---------------------------------------------------------------- nodes and cards

function bar(card, colours, kind) {
  const [amount, total, unit] = kind === "memory"
    ? [(each) => each.memory_mib, card.memory_total_mib, "MiB"] : [(each) => each.compute_pct, 100, "%"];
  const told = card.slices.map((each) => `${short(each.service)} ${number(amount(each))} ${unit}`).join(", ");
  const strip = make("span", { cls: `bar ${kind}`, role: "img", "aria-label": `${kind}: ${told || "all free"}` });
  for (const each of card.slices.filter(amount)) {
    const part = coloured(make("i", { cls: each.whole ? "whole" : "" }), colours, each.service);
    part.style.flex = `0 1 ${(100 * amount(each)) / total}%`;
    part.title = `${each.pod}: ${number(each.memory_mib)} MiB, ${each.compute_pct} %`;
    strip.append(part);
  }
  return strip;
}

function slicesTable(card) {
  const head = make("tr", {}, make("th", { text: "Pod", scope: "col" }),
    make("th", { text: "MiB", scope: "col", cls: "number" }), make("th", { text: "Compute", scope: "col", cls: "number" }));
  const rows = card.slices.map((each) => make("tr", {}, make("td", { text: each.pod }),
    make("td", { text: number(each.memory_mib), cls: "number" }),
    make("td", { text: `${each.compute_pct} %`, cls: "number" })));
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows));
}

function drawCard(card, place, colours) {
  const who = [...servicesOf(card.slices)].map(([service, { count, whole }]) =>
    swatch(colours, service, short(service) + (count > 1 ? ` ×${count}` : "") + (whole ? " (whole card)" : "")));
  const left = `${number(card.memory_free_mib)} of ${number(card.memory_total_mib)} MiB`;
  const facts = `free: ${left}, ${card.compute_free_pct.toFixed(0)} % compute`;
  const summary = make("summary", {},
    make("span", { cls: "line" }, make("b", { text: `Card ${place} · ${card.model}${card.healthy ? "" : " · unhealthy"}` }),
      make("span", { cls: "soft", text: facts })),
    bar(card, colours, "memory"), bar(card, colours, "compute"),
    make("span", { cls: "chips" }, ...(who.length ? who : [make("span", { cls: "none", text: "free" })])));
  const details = make("details", { cls: "card" }, summary,
    card.slices.length ? slicesTable(card) : make("p", { cls: "soft", text: "Nothing holds a slice of this card." }));
  details.open = opened.has(card.uuid);
  details.addEventListener("toggle", () => (details.open ? opened.add(card.uuid) : opened.delete(card.uuid)));
  summary.id = `card-${card.uuid}`;
  return details;
}

function drawNodes(nodes) {
  const services = new Set(nodes.flatMap((node) => node.cards.flatMap((card) => card.slices.map((each) => each.service))));
  const colours = new Map([...services].sort().map((service, i) => [service, i % COLOURS]));
  at("legend").replaceChildren(...[...colours.keys()].map((service) =>
    make("li", {}, swatch(colours, service, short(service)))));
  at("nodes").replaceChildren(...nodes.map((node) => {
    const used = node.cards.filter((card) => card.slices.length).length;
    const title = make("h3", {}, make("b", { text: node.name }),
      make("span", { text: node.cards.length ? `${used} of ${counted(node.cards.length, "card")} in use` : "no cards" }));
    if (node.fenced) title.append(make("span", { cls: "fenced", text: "fenced" }));
    return make("article", { cls: "node", "aria-label": `node ${node.name}` }, title,
      ...node.cards.map((card, place) => drawCard(card, place, colours)));
  }));
}

// ---------------------------------------------------------------- the page

function draw(state) {
  const focused = document.activeElement?.id;
  const policies = new Set(Object.values(state.policy));
  at("policy").textContent = policies.size === 1 ? `policy ${[...policies][0]}`
    : "policy " + Object.entries(state.policy).map(([latency, name]) => `${name} for ${latency}`).join(", ");
  drawSums(state.summary);
  drawPending(state.pending);
  drawDenied(state.denied);
  drawNodes(state.nodes);
  at("notes").replaceChildren(...state.notes.map((text) => make("li", { text: `note: ${text}` })));
  if (focused) at(focused)?.focus({ preventScroll: true });
}

function say(problem) {
  if (at("problem").textContent !== problem) at("problem").textContent = problem;
  at("problem").hidden = !problem;
}

async function look() {
  try {
    const answer = await fetch("/state", { cache: "no-store" });
    if (!answer.ok) throw new Error(`the answer was ${answer.status}`);
    const state = await answer.json();
    if (state.version !== drawn) draw(state);
    drawn = state.version;
    say(state.problem && `The files cannot be used, shown is the state before: ${state.problem}`);
  } catch (error) {
    say(`No answer from cardwise up, shown is what it said last (${error.message}).`);
  }
  setTimeout(look, PERIOD_MS);
}

look();
