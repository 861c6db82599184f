// Nodes and their cards. Heads of all nodes are there; cards are drawn where one looks, and taken away elsewhere.
"use strict";

import { at, coloured, counted, make, number, replace, say, short, swatch } from "/dom.js";
import { whyButton } from "/why.js";

const ALL_DRAWN = 128; // cards; so many are drawn without looking where one looks
const AHEAD_PX = 1200;
const HEAD_PX = 40, CARD_PX = 84;
const NONE = "None of these nodes tells of cards: cardwise's agent does, on each node that is handed over to it (docs: Install).";
const opened = new Set();
const nodes = new Map(); // by name: what is drawn of each
const seen = new IntersectionObserver(look, { rootMargin: `${AHEAD_PX}px 0px` });

function bar(card, kind) {
  const [amount, total, unit] = kind === "memory"
    ? [(each) => each.memory_mib, card.memory_total_mib, "MiB"] : [(each) => each.compute_pct, 100, "%"];
  const told = card.slices.map((each) => `${short(each.service)} ${number(amount(each))} ${unit}`).join(", ");
  const strip = make("span", { cls: `bar ${kind}`, role: "img", "aria-label": `${kind}: ${told || "all free"}` });
  for (const each of card.slices.filter(amount)) {
    const part = coloured(make("i", { cls: each.whole ? "whole" : "" }), each.service);
    part.style.flex = `0 1 ${(100 * amount(each)) / total}%`;
    part.title = `${each.pod}: ${number(each.memory_mib)} MiB, ${each.compute_pct} %`;
    strip.append(part);
  }
  return strip;
}

function slicesTable(card) {
  const head = make("tr", {}, make("th", { text: "Pod", scope: "col" }),
    make("th", { text: "MiB", scope: "col", cls: "number" }), make("th", { text: "Compute", scope: "col", cls: "number" }),
    make("th", { text: "Explanation", scope: "col" }));
  const rows = card.slices.map((each) => make("tr", {}, make("td", { text: each.pod }),
    make("td", { text: number(each.memory_mib) + (each.memory_lent_mib ? `, ${number(each.memory_lent_mib)} lent` : ""), cls: "number" }),
    make("td", { text: `${each.compute_pct} %`, cls: "number" }), make("td", {}, whyButton(each.pod, `${card.uuid}-${each.container}`))));
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows));
}

function servicesOf(slices) {
  const counts = new Map();
  for (const each of slices) {
    const before = counts.get(each.service) || { count: 0, whole: each.whole };
    counts.set(each.service, { count: before.count + 1, whole: before.whole });
  }
  return counts;
}

function facts(card) {
  const left = `${number(card.memory_free_mib)} of ${number(card.memory_total_mib)} MiB`;
  const busy = card.compute_used_share === null ? "" : `; ${Math.round(100 * card.compute_used_share)} % busy`;
  const lent = card.memory_lent_mib ? `; ${number(card.memory_lent_mib)} MiB lent beyond it` : "";
  return `free: ${left}, ${card.compute_free_pct.toFixed(0)} % compute${busy}${lent}`;
}

function drawCard(card, place) {
  const who = [...servicesOf(card.slices)].map(([service, { count, whole }]) =>
    swatch(service, short(service) + (count > 1 ? ` ×${count}` : "") + (whole ? " (whole card)" : "")));
  const summary = make("summary", { id: `card-${card.uuid}` },
    make("span", { cls: "line" }, make("b", { text: `Card ${place} · ${card.model}${card.healthy ? "" : " · unhealthy"}` }),
      make("span", { cls: "soft", text: facts(card) })),
    bar(card, "memory"), bar(card, "compute"),
    make("span", { cls: "chips" }, ...(who.length ? who : [make("span", { cls: "none", text: "free" })])));
  const details = make("details", { cls: card.healthy ? "card" : "card sick" }, summary);
  const table = () => details.append(card.slices.length ? slicesTable(card)
    : make("p", { cls: "soft", text: "Nothing holds a slice of this card." }));
  details.open = opened.has(card.uuid);
  if (details.open) table();
  details.addEventListener("toggle", () => {
    if (details.open && details.childElementCount === 1) table();
    if (details.open) opened.add(card.uuid); else opened.delete(card.uuid);
  });
  return details;
}

function drawHead(drawn) {
  const { node, head } = drawn;
  const used = node.cards.filter((card) => card.slices.length).length;
  head.replaceChildren(make("b", { text: node.name }),
    make("span", { text: node.cards.length ? `${used} of ${counted(node.cards.length, "card")} in use` : "no cards" }));
  if (node.fenced) head.append(make("span", { cls: "fenced", text: "fenced" }));
}

function fill(drawn) {
  drawn.filled = true;
  drawn.article.style.minHeight = "";
  replace(drawn.cards, ...drawn.node.cards.map(drawCard));
}

function empty(drawn) {
  if (!drawn.filled || drawn.article.contains(document.activeElement)) return;
  drawn.article.style.minHeight = `${drawn.article.offsetHeight}px`;
  drawn.filled = false;
  drawn.cards.replaceChildren();
}

function look(entries) {
  for (const { target, isIntersecting } of entries) {
    const drawn = nodes.get(target.dataset.name);
    if (drawn?.article !== target) continue;
    if (isIntersecting && !drawn.filled) fill(drawn);
    else if (!isIntersecting) empty(drawn);
  }
}

function add(node) {
  const head = make("h3"), cards = make("div");
  const article = make("article", { cls: "node", "aria-label": `node ${node.name}` }, head, cards);
  article.dataset.name = node.name;
  article.style.minHeight = `${HEAD_PX + CARD_PX * node.cards.length}px`;
  const drawn = { node, head, cards, article, filled: false, words: "" };
  nodes.set(node.name, drawn);
  return drawn;
}

function words(drawn) {
  if (!drawn.words) {
    const { node } = drawn;
    drawn.words = [node.name, node.fenced ? "fenced" : "", ...node.cards.flatMap((card) => [card.model, card.uuid,
      card.healthy ? "" : "unhealthy", ...card.slices.map((each) => each.pod)])].join("\n").toLowerCase();
  }
  return drawn.words;
}

// news: names of the nodes that may be new; null for all.
export function drawNodes(list, news, query) {
  const few = list.reduce((sum, node) => sum + node.cards.length, 0) <= ALL_DRAWN;
  const names = new Set(list.map((node) => node.name));
  for (const [name, drawn] of nodes) {
    if (names.has(name)) continue;
    seen.unobserve(drawn.article);
    drawn.article.remove();
    nodes.delete(name);
  }
  const place = at("nodes");
  let hits = 0, next = place.firstElementChild;
  for (const node of list) {
    const old = nodes.get(node.name), drawn = old || add(node);
    if (drawn.article === next) next = next.nextElementSibling; else place.insertBefore(drawn.article, next);
    if (!old || !news || news.has(node.name)) {
      drawn.node = node;
      drawn.words = "";
      drawHead(drawn);
      if (drawn.filled) fill(drawn);
    }
    if (few && !drawn.filled) fill(drawn);
    if (!old && !few) seen.observe(drawn.article);
    const fits = query ? words(drawn).includes(query) : node.cards.length > 0 || node.fenced;
    hits += fits;
    if (drawn.article.hidden === fits) drawn.article.hidden = !fits;
  }
  say("found", query ? `${counted(hits, "node")} of ${number(list.length)} found` : notShown(list.length, hits));
}

function notShown(total, shown) {
  if (!total) return "No node is known.";
  if (!shown) return `${counted(total, "node")}. ${NONE}`;
  return shown < total ? `${counted(total - shown, "node")} without cards: not shown, but the filter finds them.` : "";
}

export function show(name) {
  const drawn = nodes.get(name);
  if (!drawn) return;
  drawn.article.scrollIntoView({ block: "center" });
  if (!drawn.filled) fill(drawn);
  drawn.article.querySelector("summary")?.focus({ preventScroll: true });
}

export function listen() {
  at("nodes").addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || event.target.tagName !== "SUMMARY") return;
    const summaries = [...at("nodes").querySelectorAll("summary")].filter((each) => each.checkVisibility());
    const next = summaries[summaries.indexOf(event.target) + step];
    if (!next) return;
    event.preventDefault();
    next.focus();
  });
}
