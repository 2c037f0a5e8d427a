// The browser edition: a plan (seed, actions) is run by Python in a worker, and shown. The address holds the plan.

import { readAddress, writeAddress } from "./address.js";
import { fill, h } from "./dom.js";
import { keysButton } from "./keys.js";
import { Run } from "./model.js";
import { themeButton } from "./theme.js";
import { Viewer } from "./viewer.js";

const $ = (id) => document.getElementById(id);
const FIRST = ["250.create.orders.3"];
const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
const waiting = new Map();
let calls = 0;

worker.onmessage = ({ data }) => {
  const { resolve, reject } = waiting.get(data.id);
  waiting.delete(data.id);
  if (data.error) reject(new Error(data.error));
  else resolve(JSON.parse(data.result));
};
worker.onerror = (event) => status(`Python could not be loaded: ${event.message || "see the browser's console"}`, true);

function call(method, argument) {
  calls += 1;
  const id = calls;
  return new Promise((resolve, reject) => {
    waiting.set(id, { resolve, reject });
    worker.postMessage({ id, method, argument });
  });
}

function status(text, isBad = false) {
  $("status").textContent = text;
  $("status").className = isBad ? "bad" : "";
}

// --- plan and address

const DEFAULTS = { seed: 1, brokers: 3, chaos: false, late_messages: false, end_ms: 2000, actions: FIRST, scenario: null, step: 0 };
const state = { ...DEFAULTS };
let scenarios = [];

function restore() {
  const address = readAddress();
  Object.assign(state, DEFAULTS, { actions: [...FIRST] });
  if (address.seed !== undefined) state.seed = Number(address.seed) || 0;
  if (address.brokers) state.brokers = Math.max(1, Math.min(9, Number(address.brokers) || 3));
  state.chaos = address.chaos === "1";
  state.late_messages = address.late === "1";
  if (address.end) state.end_ms = Math.min(60_000, Number(address.end) || 2000);
  if (address.do !== undefined) state.actions = address.do.split(",").filter(Boolean);
  else if (state.chaos) state.actions = [];
  return address;
}

function remember() {
  if (!viewer.run) return;
  const { view } = viewer.chart;
  const isGuided = state.scenario !== null;
  writeAddress({
    ...(isGuided ? { scenario: state.scenario.name, step: state.step + 1 }
      : { seed: state.seed, brokers: state.brokers, chaos: state.chaos ? 1 : "", late: state.late_messages ? 1 : "", end: state.end_ms, do: state.actions.join(","), sel: viewer.decision }),
    t: Math.round(viewer.time), p: viewer.partition, view: `${Math.round(view.start)}-${Math.round(view.end)}`,
  });
}

let pending = 0;
const viewer = new Viewer($("viewer"), {
  clock: (at) => `${Math.round(at)} ms`,
  gutter: (lane) => (typeof lane.id === "number" ? brokerButtons(lane.id) : null),
  onChange: () => {
    clearTimeout(pending);
    pending = setTimeout(remember, 150);
  },
});

// --- runs

async function run({ time, view, keepView = false } = {}) {
  status("Running…");
  const { seed, brokers, chaos, late_messages, end_ms, actions } = state;
  const began = performance.now();
  let result;
  try {
    result = await call("play", JSON.stringify({ seed, brokers, chaos, late_messages, end_ms, actions }));
  } catch (error) {
    status(error.message.trim().split("\n").at(-1), true);
    return null;
  }
  if (result.problem) {
    status(result.problem, true);
    return null;
  }
  const shown = new Run().add(result.records);
  for (let broker = 1; broker <= brokers; broker += 1) shown.brokers.add(broker);
  viewer.setRun(shown, { start: 0, end: result.end_ms, keepView });
  if (view) viewer.look(view);
  viewer.look({ time: time ?? 0 });
  $("seed").value = seed;
  $("brokers").value = brokers;
  $("chaos").checked = chaos;
  const took = Math.round(performance.now() - began);
  status(result.error ? `An invariant is violated: ${result.error}` : `${result.records.length} records, ${result.steps} steps of the controller in ${took} ms`, Boolean(result.error));
  return shown;
}

async function act(...words) {
  // A fault at the current time. It changes the past if time was moved back: later actions are dropped.
  viewer.pause();
  document.activeElement?.blur(); // so that Space pauses instead of repeating the action
  const at = Math.round(viewer.time);
  if (state.scenario) leaveGuide();
  state.actions = [...state.actions.filter((action) => state.chaos || Number(action.split(".")[0]) <= at), [at + 1, ...words].join(".")];
  state.end_ms = Math.min(60_000, Math.max(state.end_ms, at + 1500));
  const view = { ...viewer.chart.view };
  const span = Math.min(view.end - view.start, 900);
  await run({ time: at, view: { start: at - span * 0.3, end: at + span * 0.7 }, keepView: true });
  showActions();
  viewer.rate = Math.min(viewer.rate, 100);
  viewer.play();
}

function button(text, title, ...words) {
  return h("button", { title, on: { click: () => act(...words) } }, text);
}

function brokerButtons(broker) {
  return h("div", { class: "faults" },
    button("kill", `Kill broker ${broker}; its session ends after the timeout`, "kill", broker),
    button("start", `Start broker ${broker} again`, "start", broker),
    button("stop", `Controlled shutdown of broker ${broker}`, "stop", broker),
    button("bounce", `Restart broker ${broker} within 5 ms`, "bounce", broker),
    button("pause", `Pause broker ${broker} for 300 ms: longer than its session`, "pause", broker, 300),
    button("slow", `Broker ${broker} answers no control request for 800 ms`, "slow", broker, 800),
    button("expire", `End the ZooKeeper session of broker ${broker}`, "expire", broker),
    button("disk", `A log directory of broker ${broker} fails`, "disk", broker, 0));
}

let topics = 0;

function showActions() {
  const made = state.actions.filter((action) => action.split(".")[1] === "create").map((action) => action.split(".")[2]);
  const last = made.at(-1);
  fill($("cluster"),
    h("span", {}, "At the current time:"),
    h("button", { title: "Create a topic with one replica on each broker", on: { click: () => act("create", `topic${(topics += 1) + made.length}`, 2) } }, "Create topic"),
    last ? button(`Delete ${last}`, `Delete topic ${last}`, "delete", last) : null,
    button("Elect preferred leaders", "ElectLeaders for all partitions", "elect"),
    button("Depose the controller", "Delete /controller in ZooKeeper", "resign"),
    button("Pause the controller", "Pause the controller's process for 300 ms", "pause", "c", 300),
    button("ZooKeeper away", "ZooKeeper is unreachable for 200 ms", "zk", 200),
    h("button", { title: "Show one second more", on: { click: () => extend() } }, "+1 s"),
    state.actions.length ? h("button", { title: "Remove all actions", on: { click: () => restart() } }, "Reset") : null,
    h("span", { class: "done" }, (state.scenario ? [] : state.actions.slice(-5)).map((action) => h("code", {}, action.replaceAll(".", " ")))));
}

async function extend() {
  if (state.chaos) return;
  state.end_ms = Math.min(60_000, state.end_ms + 1000);
  await run({ time: viewer.time, keepView: true });
}

async function restart() {
  leaveGuide();
  Object.assign(state, { actions: state.chaos ? [] : [...FIRST], end_ms: 2000, late_messages: false });
  await run();
  showActions();
}

// --- guided scenarios

function leaveGuide() {
  if (!state.scenario) return;
  Object.assign(state, { scenario: null, step: 0 });
  showGuide();
}

async function guide(scenario, step = 0, place = null) {
  // `place`: the time and the window of a link, instead of those of the step.
  Object.assign(state, scenario.plan, { scenario, step, actions: [...scenario.plan.actions] });
  viewer.partition = place?.partition || scenario.partition;
  const shown = await run();
  if (!shown) return;
  scenario.places ||= await call("places", scenario.name);
  showActions();
  showStep(step, true, place);
}

function showStep(step, isFirst = false, place = null) {
  const { scenario } = state;
  state.step = Math.max(0, Math.min(scenario.steps.length - 1, step));
  const record = viewer.run.records[scenario.places[state.step]];
  showGuide();
  if (!record) return;
  if (place) {
    viewer.look(place);
    viewer.selectRecord(record);
    return;
  }
  const before = state.step ? viewer.run.records[scenario.places[state.step - 1]]?.at_ms ?? 0 : record.at_ms - 40;
  const span = Math.max(110, (record.at_ms - before) * 1.5 + 60);
  const window = { start: record.at_ms - span * 0.72, end: record.at_ms + span * 0.28 };
  if (isFirst) viewer.look({ ...window, time: Math.max(0, record.at_ms - span * 0.3) });
  viewer.glide(record.at_ms + Math.min(4, span * 0.02), window);
  viewer.selectRecord(record);
}

function showGuide() {
  const { scenario, step } = state;
  const menu = h("select", { "aria-label": "Guided scenario", on: { change: (event) => choose(event.target.value) } },
    h("option", { value: "" }, "Guided scenarios…"),
    scenarios.map((item, index) => h("option", { value: item.name, selected: scenario === item }, `${index + 1}. ${item.title}`)));
  if (!scenario) {
    fill(viewer.side, h("section", { class: "guide" }, menu,
      h("p", { class: "hint" }, "Choose a scenario, or break something: the buttons beside each broker act at the current time. Move the time back, and you change the past.")));
    return;
  }
  const { title, text } = scenario.steps[step];
  fill(viewer.side, h("section", { class: "guide" }, menu,
    h("p", { class: "dots" }, scenario.steps.map((item, index) => h("button", { class: index === step ? "here" : index < step ? "past" : "", title: item.title, "aria-label": `Step ${index + 1}: ${item.title}`, on: { click: () => showStep(index) } }))),
    h("h3", {}, `${step + 1}. ${title}`),
    h("p", {}, text),
    h("div", { class: "row" },
      h("button", { disabled: step === 0, title: "Previous step (p)", on: { click: () => showStep(step - 1) } }, "Back"),
      h("button", { class: "primary", disabled: step === scenario.steps.length - 1, title: "Next step (n)", on: { click: () => showStep(step + 1) } }, "Next"),
      h("span", { class: "grow" }),
      h("a", { href: `../articles.html#${scenario.subject}` }, "the code behind it"))));
}

function choose(name) {
  const scenario = scenarios.find((item) => item.name === name);
  if (scenario) guide(scenario);
  else restart();
}

document.addEventListener("keydown", (event) => {
  if (!state.scenario || /^(INPUT|SELECT)$/.test(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "n") showStep(state.step + 1);
  if (event.key === "p") showStep(state.step - 1);
});

// --- page

themeButton($("theme"), () => viewer.retheme());
keysButton($("keys"), { isGuided: true });
$("rerun").addEventListener("click", () => {
  leaveGuide();
  const chaos = $("chaos").checked;
  const isOther = chaos !== state.chaos;
  Object.assign(state, { seed: Number($("seed").value) || 0, brokers: Number($("brokers").value) || 3, chaos, late_messages: false });
  if (isOther || chaos) Object.assign(state, { actions: chaos ? [] : [...FIRST], end_ms: 2000 });
  run().then(showActions);
});
$("link").addEventListener("click", async () => {
  remember();
  try {
    await navigator.clipboard.writeText(location.href);
    status("The link is in the clipboard.");
  } catch {
    status("Copy the address of this page: it holds the seed, the actions and the time.");
  }
});

async function begin() {
  const { version } = await call("version");
  scenarios = await call("scenarios");
  document.title = `klamm ${version}: a Kafka control plane in a browser tab`;
  await show();
  document.body.dataset.ready = "1";
}

async function show() {
  // The state in the address. Another link in the same tab of the browser is shown without loading the page again.
  viewer.pause();
  const address = restore();
  showGuide();
  showActions();
  const scenario = scenarios.find((item) => item.name === address.scenario);
  if (address.p) viewer.partition = address.p;
  const [from, to] = (address.view || "").split("-").map(Number);
  const view = to > from ? { start: from, end: to } : undefined;
  const place = view && address.t ? { ...view, time: Number(address.t) || 0, partition: address.p } : null;
  if (scenario) await guide(scenario, (Number(address.step) || 1) - 1, place);
  else if (!Object.keys(address).length) await guide(scenarios.find((item) => item.name === "death"));
  else {
    await run({ time: Number(address.t) || 0, view });
    viewer.selectDecision(address.sel);
  }
}

window.addEventListener("hashchange", () => document.body.dataset.ready && show());
begin().catch((error) => status(String(error.message || error).split("\n").at(-1), true));
