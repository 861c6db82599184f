// Elements, words and colours. All text goes in as text, never as markup: names come from users.
"use strict";

const COLOURS = 8;
const numbers = new Map(); // of services, as first seen: a colour stays while the page is open

export const at = (id) => document.getElementById(id);

export function make(tag, { text, cls, ...attributes } = {}, ...children) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (cls) element.className = cls;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const grouped = new Intl.NumberFormat("en-US");
export const number = (value) => grouped.format(value);
export const short = (service) => service.replace(/^default\//, "");
export const counted = (n, what) => `${number(n)} ${what}${n === 1 ? "" : "s"}`;

// Writes only what differs: readers of screens say again whatever is written.
export function say(id, text) {
  if (at(id).textContent !== text) at(id).textContent = text;
}

export function name(services) {
  for (const service of services) if (!numbers.has(service)) numbers.set(service, numbers.size);
}

export function coloured(element, service) {
  if (!numbers.has(service)) name([service]);
  const place = numbers.get(service);
  element.style.setProperty("--colour", `var(--s${place % COLOURS})`);
  if (place % (2 * COLOURS) >= COLOURS) element.classList.add("second"); // the colours come again, dotted
  return element;
}

export function swatch(service, label) {
  return make("span", {}, coloured(make("span", { cls: "swatch", "aria-hidden": "true" }), service), label);
}

export function table(caption, heads, rows) {
  const head = heads.map(([text, right]) => make("th", { text, scope: "col", cls: right ? "number" : "" }));
  const body = rows.map((cells) => make("tr", {}, ...cells.map((cell, i) =>
    make("td", { cls: heads[i][1] ? "number" : "" }, cell))));
  return make("table", {}, make("caption", { cls: "unseen", text: caption }),
    make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
}

// Puts elements where others were; what had the focus keeps it, by its id.
export function replace(parent, ...children) {
  const focused = parent.contains(document.activeElement) ? document.activeElement.id : "";
  parent.replaceChildren(...children);
  if (focused) at(focused)?.focus({ preventScroll: true });
}
