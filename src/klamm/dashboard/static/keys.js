// The keys of the page, in a dialog: a button and the key "?" open it.

import { h } from "./dom.js";

const CONTROL = [
  ["Space", "play or pause"],
  ["← →", "previous or next record; with Shift by 50 ms"],
  ["Home End", "the beginning or the end"],
  ["+ − 0", "zoom in, zoom out, show everything; Ctrl and the wheel zoom too"],
  ["w", "explain the last change of the chosen partition"],
  ["Escape", "end the selection"],
];
const LIVE = [
  ["l", "follow the newest records"],
  ["1 to 7", "Cluster, Control plane, Requests, Topics, Groups, Transactions, Pipelines"],
];
const PAGES = [
  ["Enter", "open the row with the focus"],
  ["↑ ↓", "previous or next record of a topic"],
  ["t", "tail the records of a topic"],
  ["r", "read the records of a topic again"],
  ["Escape", "back to the list"],
];
const GUIDE = [["n p", "next or previous step of a guided scenario"]];

export function keysButton(button, { isLive = false, isGuided = false } = {}) {
  const part = (title, keys) => [h("h2", {}, title), h("dl", {}, keys.map(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)]))];
  const dialog = h("dialog", { class: "keys", "aria-label": "Keys" },
    h("div", { class: "row" }, h("h3", {}, "Keys"), h("span", { class: "grow" }), h("button", { "aria-label": "Close", title: "Close (Escape)", on: { click: () => dialog.close() } }, "×")),
    part("Control plane", [...CONTROL, ...(isGuided ? GUIDE : []), ...(isLive ? LIVE : [])]), isLive ? part("Topics and lists", PAGES) : null);
  document.body.append(dialog);
  button.addEventListener("click", () => dialog.showModal());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close()); // beside its contents
  // Before the listeners of the page, which must not act behind the dialog.
  window.addEventListener("keydown", (event) => {
    if (dialog.open) {
      if (event.key === "?") dialog.close();
      event.stopImmediatePropagation();
    } else if (event.key === "?" && !/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
      event.stopImmediatePropagation();
      dialog.showModal();
    }
  }, true);
}
