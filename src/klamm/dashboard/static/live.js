// The viewer of a live cluster, or of records that the server has loaded: records arrive as server-sent events.

import { readAddress, writeAddress } from "./address.js";
import { get, setToken } from "./api.js";
import { showCluster } from "./cluster.js";
import { fill } from "./dom.js";
import { Drill } from "./drill.js";
import { Groups } from "./groups.js";
import { keysButton } from "./keys.js";
import { hint } from "./parts.js";
import { Pipelines } from "./pipelines.js";
import { showRequests } from "./requests.js";
import { Run } from "./model.js";
import { traces } from "./slow_requests.js";
import { themeButton } from "./theme.js";
import { Topics } from "./topics.js";
import { Transactions } from "./transactions.js";
import { Viewer } from "./viewer.js";

const $ = (id) => document.getElementById(id);
let address = readAddress();
const FIRST_WINDOW_MS = 20_000;
const STATUS_EVERY_MS = 3_000;
let about = { is_live: false, title: "", end_ms: null, most_records: Infinity };
let isFollowing = true;
let tab = "control";
let run = new Run();
let first = null;

const clock = (at, step) => {
  if (!about.is_live && about.end_ms !== null) return `${Math.round(at)} ms`;
  const text = new Date(at).toLocaleTimeString([], { hour12: false });
  return step < 1000 ? `${text}.${String(Math.floor(((at % 1000) + 1000) % 1000)).padStart(3, "0")}` : text;
};

let drill = null;
const viewer = new Viewer($("viewer"), {
  clock,
  gutter: (lane) => drill?.gutter(lane) ?? null,
  onChange: () => {
    if (viewer.time < viewer.bounds.end - 1) follow(false);
    remember();
  },
});

let pending = 0;
let isPlaced = false; // the address is not written before it has been read
function remember(isStep = false) {
  clearTimeout(pending);
  if (!isPlaced) return;
  const write = () => {
    const { view } = viewer.chart;
    const fields = { control: () => ({ p: viewer.partition, sel: viewer.decision, ...(isFollowing ? {} : { t: Math.round(viewer.time), view: `${Math.round(view.start)}-${Math.round(view.end)}` }) }) }[tab] ?? pages[tab]?.state?.bind(pages[tab]);
    writeAddress({ tab, ...fields?.() }, isStep);
  };
  if (isStep) write();
  else pending = setTimeout(write, 200);
}

function follow(wanted) {
  isFollowing = wanted && about.is_live;
  $("live").setAttribute("aria-pressed", String(isFollowing));
  if (isFollowing) toEnd(60_000);
}

// Move the window to the newest records. Its length stays, so that Fit shows everything and later records too.
function toEnd(most = Infinity) {
  const span = Math.min(viewer.chart.view.end - viewer.chart.view.start, most);
  viewer.chart.view = { start: run.end - span * 0.92, end: run.end + span * 0.08 };
  viewer.chart.time = run.end;
  viewer.look({ time: run.end });
}

function show() {
  const isFirst = first === null;
  first = isFirst ? run.start : Math.min(first, run.start); // an older record of another broker may arrive later
  const selected = viewer.chart.selected;
  viewer.setRun(run, { start: first, end: about.end_ms ?? run.end, keepView: !isFirst });
  if (selected && !isFirst) viewer.chart.selected = selected;
  if (isFirst) place();
  else if (isFollowing) toEnd();
}

function place() {
  if (address.p && run.partitions.has(address.p)) viewer.choose(address.p);
  const [from, to] = (address.view || "").split("-").map(Number);
  if (address.t && to > from) {
    isFollowing = false;
    viewer.look({ start: from, end: to, time: Number(address.t) });
  } else if (about.is_live) {
    viewer.chart.view = { start: run.end - FIRST_WINDOW_MS, end: run.end };
    toEnd();
  } else viewer.look({ time: viewer.bounds.end });
  viewer.selectDecision(address.sel);
  $("live").setAttribute("aria-pressed", String(isFollowing));
}

function placeBack() {
  if (!address.sel) viewer.select(null);
  if (address.t || !about.is_live) place();
  else {
    if (address.p && run.partitions.has(address.p)) viewer.choose(address.p);
    viewer.selectDecision(address.sel);
    if (!isFollowing) follow(true);
  }
}

// --- records

let arrived = [];
let isShowing = false;
function receive(records) {
  arrived.push(...records);
  if (isShowing) return;
  isShowing = true;
  setTimeout(() => {
    isShowing = false;
    run.add(arrived);
    arrived = [];
    forget();
    if (run.records.length) show();
    if (isComplete) placeAgain();
    $("status").textContent = notice();
    $("status").className = "";
    document.body.dataset.records = String(run.records.length);
  }, first === null ? 300 : 150);
}

function forget() {
  // A tenth more than the most, so that forgetting is rare.
  if (!about.is_live || run.records.length <= about.most_records * 1.1) return;
  run.forget(about.most_records);
  first = run.start;
}

// The stream counts every record that the server has read; it has sent only those that it still had.
const stream = { position: 0, received: 0 };
const count = (value) => value.toLocaleString("en");
function notice() {
  const lost = Math.max(0, stream.position - stream.received) + run.forgotten;
  return `${count(run.records.length)} records${lost ? `; ${count(lost)} older ones are not shown` : ""}`;
}

let isComplete = false;
let isPlacedAgain = false;
function placeAgain() {
  // Once all records of the past are there: those of the address may not have been among the first ones.
  if (isPlacedAgain) return;
  isPlacedAgain = true;
  if (address.t || address.sel) place();
  else if (address.p && address.p !== viewer.partition && run.partitions.has(address.p)) viewer.choose(address.p);
}

function connect() {
  const events = new EventSource("api/records");
  events.onmessage = (event) => {
    const records = JSON.parse(event.data);
    stream.position = Number(event.lastEventId);
    stream.received += records.length;
    receive(records);
  };
  events.addEventListener("state", (event) => {
    const { problem } = JSON.parse(event.data);
    if (problem) {
      $("status").textContent = problem;
      $("status").className = "bad";
    }
    if (!about.is_live) events.close();
    isComplete = true;
    if (!isShowing && first !== null) placeAgain();
    document.body.dataset.ready = "1";
  });
  events.onerror = () => {
    $("status").textContent = "The server does not answer; retrying.";
    $("status").className = "bad";
  };
}

// --- offsets of the chosen partition, which the control log does not have

const OFFSETS_EVERY_MS = 1_000;
async function observe() {
  const partition = viewer.partition;
  const cut = partition.lastIndexOf("-");
  if (tab === "control" && isFollowing && cut > 0 && first !== null && !document.hidden) {
    const found = await get("api/cluster/replicas", { topic: partition.slice(0, cut), partition: partition.slice(cut + 1) });
    if (!found.problem && viewer.partition === partition && isFollowing) {
      run.observe(partition, found);
      show();
    }
  }
  setTimeout(observe, OFFSETS_EVERY_MS);
}

// --- tabs

const TABS = [...$("tabs").children].map((button) => button.dataset.tab);
let pages = {};

class StatusPage {
  // Cluster and Requests show the same answer. `part` is a part of the page that has a state of its own.
  constructor(root, show, part = null) {
    this.root = root;
    this.show = show;
    this.part = part;
  }

  state() {
    return this.part?.state() ?? {};
  }

  open(fields) {
    if (fields.tab) this.part?.restore(fields); // from an address, not from a click on the tab
    if (!this.root.childElementCount) fill(this.root, hint("Asking the brokers…"));
    return this.refresh();
  }

  async refresh() {
    this.show(await get("api/status"));
  }
}

function makePages() {
  const onState = (isStep) => remember(isStep);
  const openPartition = (partition) => {
    viewer.choose(partition);
    open("control", {}, true);
  };
  const openTopic = (topic, fields = {}) => open("topics", { topic, show: "records", ...fields }, true);
  const openGroup = (group) => open("groups", { group }, true);
  const context = { onState, about, openPartition, openTopic, openGroup };
  traces.onState = onState;
  pages = {
    cluster: new StatusPage($("cluster"), (status) => showCluster($("cluster"), status, run, openPartition)),
    requests: new StatusPage($("requests"), (status) => showRequests($("requests"), status), traces),
    topics: new Topics($("topics"), context),
    groups: new Groups($("groups"), context),
    transactions: new Transactions($("transactions"), context),
    pipelines: new Pipelines($("pipelines"), context),
  };
}

let refreshing = 0;
async function refresh() {
  clearTimeout(refreshing);
  const shown = pages[tab];
  if (shown && !document.hidden) await shown.refresh();
  if (shown === pages[tab]) schedule();
}

function schedule() {
  clearTimeout(refreshing);
  refreshing = setTimeout(refresh, STATUS_EVERY_MS);
}

function open(name, fields = {}, isStep = false) {
  if (tab !== name) pages[tab]?.close?.();
  tab = name;
  for (const button of $("tabs").children) button.setAttribute("aria-selected", String(button.dataset.tab === name));
  [...$("tabs").children].find((button) => button.dataset.tab === name).scrollIntoView({ block: "nearest", inline: "nearest" });
  for (const id of TABS) $(id === "control" ? "viewer" : id).hidden = name !== id;
  $("live").hidden = !about.is_live || name !== "control";
  document.body.dataset.tab = name;
  if (name === "control") viewer.chart.request();
  else Promise.resolve(pages[name].open(fields)).then(() => tab === name && schedule());
  remember(isStep);
}

$("tabs").addEventListener("click", (event) => {
  const name = event.target.dataset.tab;
  if (name) open(name, {}, true);
});
$("tabs").addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step) return;
  event.preventDefault();
  event.stopPropagation();
  const next = TABS[(TABS.indexOf(tab) + step + TABS.length) % TABS.length];
  open(next, {}, true);
  [...$("tabs").children].find((button) => button.dataset.tab === next).focus();
});
$("live").addEventListener("click", () => follow(!isFollowing));
document.addEventListener("keydown", (event) => {
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey || !about.is_live) return;
  if (event.key === "l" && tab === "control") follow(true);
  if (event.key === "Escape") pages[tab]?.escape?.();
  const records = tab === "topics" && pages.topics.topic && pages.topics.show === "records" ? pages.topics.records : null;
  if (event.key === "t") records?.tail(!records.isLive);
  if (event.key === "r") records?.read();
  if (TABS[event.key - 1]) open(TABS[event.key - 1], {}, true);
});
window.addEventListener("popstate", () => {
  // Back, or another link in the same tab of the browser.
  address = readAddress();
  const name = about.is_live && TABS.includes(address.tab) ? address.tab : "control";
  if (name === "control" && first !== null) placeBack();
  open(name, address);
});
themeButton($("theme"), () => viewer.retheme());

about = await (await fetch("api/about")).json();
setToken(about.token);
$("title").textContent = $("title").title = about.title;
document.title = `klamm: ${about.title}`;
$("tabs").hidden = !about.is_live;
isFollowing = about.is_live;
keysButton($("keys"), { isLive: about.is_live });
if (about.is_live) makePages();
if (about.has_drill) drill = new Drill(viewer, receive);
isPlaced = true;
if (about.is_live) observe();
open(about.is_live && TABS.includes(address.tab) ? address.tab : "control", address);
connect();
