// The state, whole at first and by changes from then on. A change is for who has the very state that it is from; else the
// whole state is fetched again.
"use strict";

const AGAIN_MS = 2000;

// draw(state, change): change is null where all may be new. say(live, why): whether changes come.
export function follow(draw, say) {
  let state = null, early = null, events = null;

  async function load() {
    if (early) return;
    early = [];
    try {
      const answer = await fetch("/state", { cache: "no-store" });
      if (!answer.ok) throw new Error(`the answer was ${answer.status}`);
      state = await answer.json();
    } catch (error) {
      early = null;
      lost(error.message);
      return;
    }
    const waiting = early;
    early = null;
    draw(state, null);
    say(true);
    waiting.forEach(apply);
  }

  function apply(change) {
    if (early) { early.push(change); return; }
    if (change.version <= state.version) return;
    if (change.base !== state.version) { load(); return; }
    const known = new Map(state.nodes.map((node) => [node.name, node]));
    for (const node of change.nodes) known.set(node.name, node);
    const names = change.names || state.nodes.map((node) => node.name);
    state = { ...state, ...change.set, nodes: names.map((name) => known.get(name)), version: change.version };
    draw(state, change);
  }

  function lost(why) {
    say(false, why);
    events.close();
    setTimeout(open, AGAIN_MS);
  }

  function open() {
    events = new EventSource("/events");
    events.addEventListener("hello", load);
    events.addEventListener("again", load);
    events.addEventListener("change", (event) => apply(JSON.parse(event.data)));
    events.onerror = () => lost("the connection broke");
  }

  open();
}
