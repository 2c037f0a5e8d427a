// Writes one record. Only with --allow-changes.

import { post } from "./api.js";
import { fill, h } from "./dom.js";
import { problems } from "./parts.js";

export class Produce {
  constructor(onWritten) {
    this.onWritten = onWritten;
    this.root = h("div");
    this.partitions = 0;
  }

  open(topic) {
    this.topic = topic;
    this.result = h("div", { role: "status" });
    this.headers = h("div", { class: "headers" });
    const value = h("textarea", { "aria-label": "Value", rows: "8", spellcheck: "false" });
    const key = h("input", { "aria-label": "Key", autocomplete: "off", spellcheck: "false" });
    const partition = h("input", { "aria-label": "Partition", type: "number", min: "0", title: "Empty: the key decides" });
    const hasKey = h("input", { type: "checkbox", checked: true, "aria-label": "With a key" });
    const hasValue = h("input", { type: "checkbox", checked: true, "aria-label": "With a value" });
    const show = () => { key.disabled = !hasKey.checked; value.disabled = !hasValue.checked; };
    for (const box of [hasKey, hasValue]) box.addEventListener("change", show);
    const send = async (event) => {
      event.preventDefault();
      const headers = [...this.headers.children].map((row) => [...row.querySelectorAll("input")].map((input) => input.value)).filter(([name]) => name);
      const found = await post("api/cluster/produce", {
        topic, partition: partition.value === "" ? null : Number(partition.value),
        key: hasKey.checked && key.value !== "" ? key.value : null, value: hasValue.checked ? value.value : null, headers,
      });
      fill(this.result, found.problem ? problems([found.problem]) : h("p", { class: "good" }, `Written to partition ${found.partition} at offset ${found.offset}.`));
      if (!found.problem) this.onWritten();
    };
    fill(this.root, h("form", { class: "form", on: { submit: send } },
      h("label", {}, h("span", {}, hasKey, "Key"), key),
      h("label", {}, h("span", {}, "Partition (or by key)"), partition),
      h("label", { class: "long" }, h("span", {}, hasValue, "Value (off: null, a tombstone)"), value),
      h("div", { class: "long" }, this.headers, h("button", { type: "button", on: { click: () => this._header() } }, "Add a header")),
      h("div", { class: "row long" }, h("button", { class: "primary", type: "submit" }, "Produce"), this.result)));
  }

  _header() {
    const row = h("div", { class: "row" }, h("label", {}, "Header", h("input", { "aria-label": "Header name" })), h("label", {}, "value", h("input", { "aria-label": "Header value" })),
      h("button", { type: "button", "aria-label": "Remove the header", on: { click: () => row.remove() } }, "×"));
    this.headers.append(row);
    row.querySelector("input").focus();
  }
}
