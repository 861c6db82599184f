// All cards at a glance: a cell each, memory on its left and compute on its right. Says by place and height what it says by
// colour. The list below has the same for the keyboard and for readers of screens.
"use strict";

import { at, number } from "/dom.js";
import { show } from "/cards.js";

const LEAST_NODES = 9; // fewer are seen whole in the list
const MANY_CARDS = 2000; // their cells are smaller
const MOST_PX = 16384; // a canvas that is higher stays empty in some browsers
const LARGE = { width: 8, memory: 4, compute: 3, height: 16, gap: 6 }, SMALL = { width: 5, memory: 2, compute: 2, height: 10, gap: 4 };
let nodes = [], columns = 1, groupWidth = 1, rowHeight = 1, cell = LARGE;

export function drawMap(list) {
  nodes = list.filter((node) => node.cards.length);
  at("all").hidden = nodes.length < LEAST_NODES;
  if (at("all").hidden) return;
  const canvas = at("map"), width = canvas.parentElement.clientWidth;
  cell = nodes.reduce((sum, node) => sum + node.cards.length, 0) > MANY_CARDS ? SMALL : LARGE;
  groupWidth = nodes.reduce((most, node) => Math.max(most, node.cards.length), 1) * cell.width + cell.gap;
  rowHeight = cell.height + cell.gap;
  columns = Math.max(Math.floor(width / groupWidth), 1);
  const height = Math.max(Math.ceil(nodes.length / columns), 1) * rowHeight;
  const ratio = Math.min(window.devicePixelRatio || 1, MOST_PX / height);
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  const colours = Object.fromEntries(["empty", "memory", "compute", "bad"].map((name) => [name, style.getPropertyValue(`--${name}`)]));
  pen.scale(ratio, ratio);
  nodes.forEach((node, i) => {
    const x = (i % columns) * groupWidth, y = Math.floor(i / columns) * rowHeight;
    node.cards.forEach((card, place) => drawCell(pen, colours, card, node.fenced, x + place * cell.width, y));
  });
  canvas.setAttribute("aria-label", `All cards. ${spread()}`);
  at("spread").textContent = spread();
}

function drawCell(pen, colours, card, fenced, x, y) {
  const memory = 1 - card.memory_free_mib / card.memory_total_mib, compute = 1 - card.compute_free_pct / 100;
  pen.fillStyle = colours.empty;
  pen.fillRect(x, y, cell.memory, cell.height);
  pen.fillRect(x + cell.memory, y, cell.compute, cell.height);
  const bars = [[memory, colours.memory, 0, cell.memory], [compute, colours.compute, cell.memory, cell.compute]];
  for (const [share, colour, left, width] of bars) {
    const height = Math.round(cell.height * Math.min(Math.max(share, 0), 1));
    pen.fillStyle = colour;
    pen.fillRect(x + left, y + cell.height - height, width, height);
  }
  if (!fenced && card.healthy) return;
  pen.strokeStyle = colours.bad;
  pen.lineWidth = 1.5;
  pen.beginPath();
  pen.moveTo(x, y);
  pen.lineTo(x + cell.width - 1, y + cell.height);
  pen.moveTo(x + cell.width - 1, y);
  pen.lineTo(x, y + cell.height);
  pen.stroke();
}

function spread() {
  const counts = [0, 0, 0, 0];
  let out = 0;
  for (const node of nodes) {
    for (const card of node.cards) {
      const share = 1 - card.memory_free_mib / card.memory_total_mib;
      counts[share <= 0 ? 0 : share <= 0.5 ? 1 : share < 0.95 ? 2 : 3] += 1;
      out += node.fenced || !card.healthy;
    }
  }
  const [none, some, most, full] = counts.map(number);
  return `Cards by memory given away: ${none} none, ${some} up to half, ${most} up to 95 %, ${full} more.` +
    (out ? ` ${number(out)} fenced or unhealthy.` : "");
}

function under(event) {
  const box = at("map").getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left) / groupWidth), row = Math.floor((event.clientY - box.top) / rowHeight);
  return column < columns ? nodes[row * columns + column] : undefined;
}

export function listen() {
  at("map").addEventListener("mousemove", (event) => { at("map").title = under(event)?.name || ""; });
  at("map").addEventListener("click", (event) => { const node = under(event); if (node) show(node.name); });
}
