// Why a pod is where it is, or nowhere: rules, then scores, then what was reported, as `cardwise explain` says it.
"use strict";

import { at, make, number, short } from "/dom.js";

const NODES = 10;

export function whyButton(pod, where = "") {
  const label = `Why? Of ${pod}`; // begins with what is seen
  const button = make("button", { type: "button", cls: "why", id: `why-${pod}-${where}`, text: "Why?", "aria-label": label });
  button.addEventListener("click", () => open(pod));
  return button;
}

async function open(pod) {
  const dialog = at("why");
  show(dialog, pod, make("p", { text: "asking", role: "status" }));
  if (!dialog.open) dialog.showModal();
  const [namespace, name] = [pod.slice(0, pod.indexOf("/")), pod.slice(pod.indexOf("/") + 1)];
  try {
    const answer = await fetch(`/explain/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`);
    if (!answer.ok) throw new Error((await answer.text()).trim());
    show(dialog, pod, ...content(await answer.json()));
  } catch (error) {
    show(dialog, pod, make("p", { text: `No explanation: ${error.message}` }));
  }
}

function show(dialog, pod, ...children) {
  const close = make("button", { type: "button", text: "Close", id: "why-close" });
  close.addEventListener("click", () => dialog.close());
  const top = make("div", { cls: "top" }, make("h2", { id: "why-title", text: short(pod) }), close);
  dialog.replaceChildren(top, ...children);
  close.focus({ preventScroll: true });
}

function asked(ask) {
  const cards = `${ask.cards} card${ask.cards > 1 ? "s" : ""}`;
  if (ask.whole) return `${cards}, whole`;
  const memory = ask.memory_mib ? `${number(ask.memory_mib)} MiB` : `${ask.memory_pct} % of memory`;
  return `${cards} with ${memory} and ${ask.compute_pct} % of compute${ask.cards > 1 ? " each" : ""}`;
}

function content(told) {
  const more = `The first ${NODES} of ${number(told.nodes_total)} nodes; cardwise explain --json tells of more.`;
  const why = told.refusals.map((each) => `${number(each.nodes)} ${each.short}`).join(", ");
  return [
    make("p", { text: `Policy ${told.policy}. ` + told.asks.map((ask) => `Container ${ask.container} asks for ${asked(ask)}.`).join(" ") }),
    make("p", {}, make("strong", { text: told.bound_to ? `Bound to ${told.bound_to}.` : "Not bound." })),
    make("p", { text: `Asked now, ${number(told.nodes_fit)} of ${number(told.nodes_total)} nodes fit${why ? `: ${why}` : ""}.` }),
    make("ol", { cls: "nodes-asked" }, ...told.nodes.slice(0, NODES).map(drawNode)),
    ...(told.nodes.length > NODES ? [make("p", { cls: "soft", text: more })] : []),
  ];
}

function drawNode(node) {
  const factors = Object.entries(node.factors).map(([name, value]) => `${name} ${value.toFixed(2)}`).join(", ");
  const cost = node.cost === null ? "–" : node.cost.toPrecision(4);
  const verdict = node.fits ? `fits, cost ${cost}${factors ? ` (${factors})` : ""}` : `no: ${node.reason.long}`;
  const advice = node.reason ? [make("p", { cls: "soft", text: node.reason.advice })] : [];
  return make("li", {}, make("strong", { text: node.name }), ` ${verdict}`, ...advice,
    make("ul", {}, ...node.cards.map((card, place) => make("li", { cls: "soft", text: `Card ${place}: ${verdictOf(card)}` }))));
}

function verdictOf(card) {
  const busy = card.compute_used_share === null ? "not measured" : `${Math.round(100 * card.compute_used_share)} % busy`;
  const said = card.reason ? `no: ${card.reason.long}` : card.chosen ? "taken" : "would do";
  return `${number(card.memory_free_mib)} of ${number(card.memory_total_mib)} MiB and ${card.compute_free_pct.toFixed(0)} % free, ${busy}, ${card.slices} slices; ${said}`;
}
