// The page: what is drawn anew when. Only wires.
"use strict";

import { drawNodes, listen as listenToCards } from "/cards.js";
import { at, name, say } from "/dom.js";
import {
  drawConflicts, drawDecisions, drawDenied, drawEvictions, drawNotes, drawPending, drawServices, drawSums, drawTraffic,
} from "/lists.js";
import { drawMap, listen as listenToMap } from "/map.js";
import { follow } from "/state.js";

const LISTS = [
  ["policy", drawPolicy],
  ["summary", drawSums],
  ["pending", drawPending],
  ["denied", drawDenied],
  ["conflicts", drawConflicts],
  ["evictions", drawEvictions],
  ["traffic", drawTraffic],
  ["services", drawServices],
  ["decisions", drawDecisions],
  ["notes", drawNotes],
];
let shown = null, query = "";

function drawPolicy(policy) {
  const policies = new Set(Object.values(policy));
  at("policy").textContent = policies.size === 1 ? `policy ${[...policies][0]}`
    : "policy " + Object.entries(policy).map(([latency, each]) => `${each} for ${latency}`).join(", ");
}

function draw(state, change) {
  shown = state;
  name(state.services.map((each) => each.service));
  for (const [key, drawList] of LISTS) {
    if (!change || key in change.set) drawList(state[key], query);
  }
  drawNodes(state.nodes, change && new Set(change.nodes.map((node) => node.name)), query);
  if (!change || change.nodes.length || change.names) drawMap(state.nodes);
  problem(state.problem ? `The files cannot be used, shown is the state before: ${state.problem}` : state.stale || "");
}

function problem(text) {
  say("problem", text);
  at("problem").hidden = !text;
}

function connected(live, why) {
  at("live").className = live ? "" : "lost";
  at("live").textContent = live ? "live" : `no answer, shown is what it said last (${why})`;
}

at("filter").addEventListener("input", () => {
  query = at("filter").value.trim().toLowerCase();
  if (shown) draw(shown, { set: shown, nodes: [] });
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches?.("input, dialog *");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    at("filter").focus();
  }
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => shown && drawMap(shown.nodes));
new ResizeObserver(() => shown && drawMap(shown.nodes)).observe(at("services"));
listenToCards();
listenToMap();
follow(draw, connected);
