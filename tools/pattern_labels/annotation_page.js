"use strict";
const content = JSON.parse(document.getElementById("content").textContent);
const find = (id) => document.getElementById(id);
const SIDE = 600, MARGIN = 14;
let order, at, annotator, number, labels, key;

function begin(event) {
  event.preventDefault();
  annotator = find("annotator").value.trim();
  number = find("pass").value;
  order = content.orders[number];
  key = `bertsecrets-patterns/${content.set}/${number}/${annotator}`;
  labels = {};
  try {
    labels = JSON.parse(localStorage.getItem(key)) || {};
  } catch (error) {
    find("warning").hidden = false;
  }
  find("start").hidden = true;
  find("work").hidden = false;
  at = Math.max(order.findIndex((place) => !(content.maps[place].id in labels)), 0);
  show();
}

function show() {
  const map = content.maps[order[at]];
  const label = labels[map.id];
  draw(map);
  const seen = order.map((place) => labels[content.maps[place].id]).filter(Boolean);
  const done = seen.filter((label) => label.pattern).length;
  const state = !label ? "" : label.pattern ? `: ${label.pattern}` : ": unsure";
  const end = seen.length === order.length ? " All seen: download the CSV." : "";
  find("progress").textContent = `Map ${at + 1} of ${order.length}${state} · ${done} labelled.${end}`;
  document.querySelectorAll("#patterns button").forEach((button) => {
    button.setAttribute("aria-pressed", String(Boolean(label) && label.pattern === button.dataset.pattern));
  });
}

function draw(map) {
  const canvas = find("picture"), length = map.length, bytes = atob(map.ink);
  // Every weight is a square of whole pixels, for maps of any length.
  const size = Math.max(1, Math.floor(SIDE / length)), side = size * length;
  canvas.width = canvas.height = side + MARGIN + 1;
  const pen = canvas.getContext("2d");
  pen.strokeStyle = "#999";
  pen.strokeRect(MARGIN - .5, MARGIN - .5, side + 1, side + 1);
  for (let query = 0; query < length; query++) {
    for (let attended = 0; attended < length; attended++) {
      pen.fillStyle = content.palette[bytes.charCodeAt(query * length + attended)];
      pen.fillRect(MARGIN + attended * size, MARGIN + query * size, size, size);
    }
  }
  if (map.separator === null) return;
  const middle = MARGIN + (map.separator + .5) * size, edge = MARGIN - 2;
  pen.fillStyle = "#000";
  for (const corners of [
    [[middle, edge], [middle - 5, 1], [middle + 5, 1]],
    [[edge, middle], [1, middle - 5], [1, middle + 5]],
  ]) {
    pen.beginPath();
    corners.forEach(([x, y]) => pen.lineTo(x, y));
    pen.fill();
  }
}

function set(pattern) {
  labels[content.maps[order[at]].id] = { pattern, at: new Date().toISOString() };
  try {
    localStorage.setItem(key, JSON.stringify(labels));
  } catch (error) {
    find("warning").hidden = false;
  }
  move(1);
}

function move(by) {
  at = Math.min(Math.max(at + by, 0), order.length - 1);
  show();
}

function next() {
  const unlabelled = (place) => !(labels[content.maps[place].id] || {}).pattern;
  const ahead = order.findIndex((place, position) => position > at && unlabelled(place));
  const target = ahead >= 0 ? ahead : order.findIndex(unlabelled);
  if (target >= 0) at = target;
  show();
}

function table() {
  const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const rows = Object.entries(labels)
    .filter(([, label]) => label.pattern)
    .map(([id, label]) => [id, label.pattern, annotator, number, label.at]);
  return [["map", "pattern", "annotator", "pass", "at"], ...rows].map((row) => row.map(quoted).join(",") + "\n").join("");
}

function download() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([table()], { type: "text/csv" }));
  link.download = `labels-${annotator.replace(/[^\p{L}\p{N}]+/gu, "-")}-pass${number}.csv`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

content.patterns.forEach((pattern, place) => {
  const button = document.createElement("button");
  button.type = "button";
  button.dataset.pattern = pattern.name;
  const digit = document.createElement("kbd"), rule = document.createElement("small");
  digit.textContent = place + 1;
  rule.textContent = pattern.rule;
  button.append(digit, ` ${pattern.name}`, rule);
  button.addEventListener("click", () => set(pattern.name));
  find("patterns").append(button);
});

const KEYS = {
  u: () => set(""),
  n: next,
  ArrowLeft: () => move(-1),
  Backspace: () => move(-1),
  ArrowRight: () => move(1),
};
document.addEventListener("keydown", (event) => {
  if (find("work").hidden || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  const pattern = /^[1-9]$/.test(event.key) ? content.patterns[event.key - 1] : undefined;
  const action = pattern ? () => set(pattern.name) : KEYS[event.key];
  if (!action) return;
  event.preventDefault();
  action();
});
find("start").addEventListener("submit", begin);
find("unsure").addEventListener("click", KEYS.u);
find("back").addEventListener("click", KEYS.Backspace);
find("forward").addEventListener("click", KEYS.ArrowRight);
find("next").addEventListener("click", next);
find("download").addEventListener("click", download);
