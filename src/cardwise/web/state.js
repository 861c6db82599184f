// The state, whole at first and by changes from then on. A change is for who has the very state that it is from; else the
// whole state is fetched again.
"use strict";

const AGAIN_MS = 2000;
const SILENT_MS = 45000; // three breaths of the server (BREATH_S in news.py): a connection can be dead without having ended
const HIDDEN_MS = 10000; // a browser has six connections to a host, and each tab that looks holds one

// draw(state, change): change is null where all may be new. say(live, why): whether changes come.
export function follow(draw, say) {
  let state = null, early = null, events = null, asking = null, resting = false;
  let again = 0, silence = 0, hidden = 0; // timers: one each, or two streams are open in the end

  async function load() {
    if (early) return;
    const mine = asking = new AbortController(), waiting = early = [];
    let told;
    try {
      const answer = await fetch("/state", { cache: "no-store", signal: mine.signal });
      if (!answer.ok) throw new Error(`the answer was ${answer.status}`);
      told = await answer.json();
    } catch (error) {
      if (asking === mine) lost(error.message);
      return;
    }
    if (asking !== mine) return;
    asking = early = null;
    state = told;
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

  function end() {
    for (const timer of [again, silence]) clearTimeout(timer);
    asking?.abort();
    asking = early = null;
    events?.close();
  }

  function lost(why) {
    end();
    say(false, why);
    again = setTimeout(open, AGAIN_MS);
  }

  function heard() {
    clearTimeout(silence);
    silence = setTimeout(() => lost("it is silent"), SILENT_MS);
  }

  function hear(name, then) {
    events.addEventListener(name, (event) => { heard(); then(event); });
  }

  function open() {
    end();
    events = new EventSource("/events");
    heard();
    hear("hello", load);
    hear("again", load);
    hear("change", (event) => apply(JSON.parse(event.data)));
    hear("still", () => {});
    events.onerror = () => lost("the connection broke");
  }

  function rest() {
    resting = true;
    end();
  }

  function look() {
    clearTimeout(hidden);
    if (document.hidden) hidden = setTimeout(rest, HIDDEN_MS);
    else if (resting) {
      resting = false;
      open();
    }
  }

  document.addEventListener("visibilitychange", look);
  open();
  look();
}
