// The viewer of a live cluster, or of records that the server has loaded: records arrive as server-sent events.

import { readAddress, writeAddress } from "./address.js";
import { showCluster } from "./cluster.js";
import { showRequests } from "./requests.js";
import { Run } from "./model.js";
import { themeButton } from "./theme.js";
import { Viewer } from "./viewer.js";

const $ = (id) => document.getElementById(id);
const address = readAddress();
const FIRST_WINDOW_MS = 20_000;
const STATUS_EVERY_MS = 3_000;
let about = { is_live: false, title: "", end_ms: null };
let isFollowing = true;
let tab = "control";
let run = new Run();
let first = null;

const clock = (at, step) => {
  if (!about.is_live && about.end_ms !== null) return `${Math.round(at)} ms`;
  const text = new Date(at).toLocaleTimeString([], { hour12: false });
  return step < 1000 ? `${text}.${String(Math.floor(((at % 1000) + 1000) % 1000)).padStart(3, "0")}` : text;
};

const viewer = new Viewer($("viewer"), {
  clock,
  onChange: () => {
    if (viewer.time < viewer.bounds.end - 1) follow(false);
    remember();
  },
});

let pending = 0;
function remember() {
  clearTimeout(pending);
  pending = setTimeout(() => {
    const { view } = viewer.chart;
    writeAddress({ tab, p: viewer.partition, ...(isFollowing ? {} : { t: Math.round(viewer.time), view: `${Math.round(view.start)}-${Math.round(view.end)}` }) });
  }, 200);
}

function follow(wanted) {
  isFollowing = wanted && about.is_live;
  $("live").setAttribute("aria-pressed", String(isFollowing));
  if (isFollowing) toEnd();
}

function toEnd() {
  const span = Math.min(viewer.chart.view.end - viewer.chart.view.start, 60_000);
  viewer.chart.view = { start: run.end - span * 0.92, end: run.end + span * 0.08 };
  viewer.chart.time = run.end;
  viewer.look({ time: run.end });
}

function show() {
  const isFirst = first === null;
  first ??= run.start;
  const selected = viewer.chart.selected;
  viewer.setRun(run, { start: first, end: about.end_ms ?? run.end, keepView: !isFirst });
  if (selected && !isFirst) viewer.chart.selected = selected;
  if (isFirst) place();
  else if (isFollowing) toEnd();
}

function place() {
  if (address.p) viewer.partition = address.p;
  const [from, to] = (address.view || "").split("-").map(Number);
  if (address.t && to > from) {
    isFollowing = false;
    viewer.look({ start: from, end: to, time: Number(address.t) });
  } else if (about.is_live) {
    viewer.chart.view = { start: run.end - FIRST_WINDOW_MS, end: run.end };
    toEnd();
  } else viewer.look({ time: viewer.bounds.end });
  $("live").setAttribute("aria-pressed", String(isFollowing));
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
    if (run.records.length) show();
    $("status").textContent = `${run.records.length} records`;
    $("status").className = "";
    document.body.dataset.records = String(run.records.length);
  }, first === null ? 300 : 150);
}

function connect() {
  const events = new EventSource("api/records");
  events.onmessage = (event) => receive(JSON.parse(event.data));
  events.addEventListener("state", (event) => {
    const { problem } = JSON.parse(event.data);
    if (problem) {
      $("status").textContent = problem;
      $("status").className = "bad";
    }
    if (!about.is_live) events.close();
    document.body.dataset.ready = "1";
  });
  events.onerror = () => {
    $("status").textContent = "The server does not answer; retrying.";
    $("status").className = "bad";
  };
}

// --- tabs

let refreshing = 0;
async function refresh() {
  clearTimeout(refreshing);
  if (tab !== "control" && about.is_live) {
    let status = { problem: "The server does not answer; retrying." };
    try {
      status = await (await fetch("api/status")).json();
    } catch {
      // shown as a problem
    }
    if (tab === "requests") showRequests($("requests"), status);
    else {
      showCluster($("cluster"), status, run, (partition) => {
        viewer.choose(partition);
        open("control");
      });
    }
  }
  refreshing = setTimeout(refresh, STATUS_EVERY_MS);
}

function open(name) {
  tab = name;
  for (const button of $("tabs").children) button.setAttribute("aria-selected", String(button.dataset.tab === name));
  for (const [id, shown] of [["cluster", "cluster"], ["requests", "requests"], ["viewer", "control"]]) $(id).hidden = name !== shown;
  if (name === "control") viewer.chart.request();
  else refresh();
  remember();
}

$("tabs").addEventListener("click", (event) => {
  const name = event.target.dataset.tab;
  if (name) open(name);
});
$("live").addEventListener("click", () => follow(!isFollowing));
document.addEventListener("keydown", (event) => {
  if (/^(INPUT|SELECT)$/.test(event.target.tagName) || event.ctrlKey || event.metaKey) return;
  if (event.key === "l") follow(true);
  if (event.key === "1" && about.is_live) open("cluster");
  if (event.key === "2") open("control");
  if (event.key === "3" && about.is_live) open("requests");
});
themeButton($("theme"), () => viewer.retheme());

about = await (await fetch("api/about")).json();
$("title").textContent = about.title;
document.title = `klamm: ${about.title}`;
$("live").hidden = !about.is_live;
$("tabs").hidden = !about.is_live;
isFollowing = about.is_live;
open(about.is_live && ["cluster", "requests"].includes(address.tab) ? address.tab : "control");
connect();
