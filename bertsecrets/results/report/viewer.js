(() => {
  "use strict";
  const viewer = document.querySelector(".viewer");
  const sources = [...document.querySelectorAll(".viewer-example")];
  const colours = JSON.parse(document.getElementById("viewer-colours").textContent);
  const pick = Object.fromEntries([...viewer.querySelectorAll("select")].map((s) => [s.dataset.pick, s]));
  const canvases = [...viewer.querySelectorAll("canvas")];
  const readout = viewer.querySelector(".readout");
  const LABEL_PITCH = 10;
  const palettes = Object.fromEntries(Object.entries(colours).map(([name, stops]) => [name, palette(stops)]));
  let example = null;
  let shown = null;
  let cursor = [0, 0];
  let turn = 0;

  function palette(stops) {
    const rgb = stops.map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
    return Array.from({ length: 256 }, (_, i) => {
      const place = (i / 255) * (rgb.length - 1);
      const low = Math.min(Math.floor(place), rgb.length - 2);
      return rgb[low].map((channel, c) => Math.round(channel + (rgb[low + 1][c] - channel) * (place - low)));
    });
  }

  function fill(select, names, chosen) {
    select.replaceChildren(...names.map((name, i) => new Option(name, String(i), false, i === chosen)));
  }

  function openExample(index) {
    example = JSON.parse(sources[index].textContent);
    const stages = example.stages.map((stage) => stage.name);
    const wanted = { layer: Number(viewer.dataset.layer), head: Number(viewer.dataset.head) };
    if (pick.layer.value) wanted.layer = Number(pick.layer.value);
    if (pick.head.value) wanted.head = Number(pick.head.value);
    const numbers = (count) => Array.from({ length: count }, (_, i) => String(i));
    const layers = example.stages[0].layers.length;
    fill(pick.layer, numbers(layers), Math.min(wanted.layer, layers - 1));
    fill(pick.head, numbers(example.heads), Math.min(wanted.head, example.heads - 1));
    fill(pick.before, stages, 0);
    fill(pick.after, stages, stages.length - 1);
    cursor = [0, 0];
  }

  async function unpack(stage, layer, head) {
    const bytes = Uint8Array.from(atob(example.stages[stage].layers[layer]), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const whole = new Uint8Array(await new Response(stream).arrayBuffer());
    const size = example.tokens.length ** 2;
    return Float32Array.from(whole.subarray(head * size, (head + 1) * size), (byte) => byte / 255);
  }

  async function show() {
    const mine = ++turn;
    if (typeof DecompressionStream === "undefined") {
      readout.textContent = "This browser is too old to unpack the maps; any from 2023 or later can.";
      return;
    }
    const [layer, head] = [Number(pick.layer.value), Number(pick.head.value)];
    const before = await unpack(Number(pick.before.value), layer, head);
    const after = await unpack(Number(pick.after.value), layer, head);
    // A slower answer to an earlier choice must not overwrite this one.
    if (mine !== turn) return;
    shown = { before, after, change: after.map((weight, i) => weight - before[i]) };
    const largest = (map) => map.reduce((a, b) => Math.max(a, Math.abs(b)), 0);
    shown.top = Math.max(largest(before), largest(after)) || 1;
    shown.reach = largest(shown.change) || 1;
    shown.rasters = Object.fromEntries(canvases.map((canvas) => [canvas.dataset.map, raster(canvas.dataset.map)]));
    caption();
    draw();
    viewer.dataset.state = "drawn";
  }

  function caption() {
    const names = { before: pick.before.selectedOptions[0].text, after: pick.after.selectedOptions[0].text };
    names.change = `${names.after} minus ${names.before}`;
    for (const canvas of canvases) {
      const name = canvas.dataset.map;
      const figure = canvas.closest("figure");
      figure.querySelector("figcaption").textContent = names[name];
      canvas.setAttribute(
        "aria-label",
        `Attention map of layer ${pick.layer.value}, head ${pick.head.value}: ${names[name]}. Arrow keys read cells.`
      );
      const [low, high] = name === "change" ? [-shown.reach, shown.reach] : [0, shown.top];
      const [left, right] = figure.querySelectorAll(".bar span");
      left.textContent = signed(low, name === "change");
      right.textContent = signed(high, name === "change");
      const stops = colours[name === "change" ? "change" : "weight"];
      figure.querySelector(".bar i").style.background = `linear-gradient(to right, ${stops.join(",")})`;
    }
  }

  function signed(value, plus) {
    const text = Math.abs(value).toFixed(2);
    if (Number(text) === 0) return "0";
    return (value < 0 ? "\u2212" : plus ? "+" : "") + text;
  }

  function raster(name) {
    const size = example.tokens.length;
    const small = document.createElement("canvas");
    small.width = small.height = size;
    const context = small.getContext("2d");
    const image = context.createImageData(size, size);
    shown[name].forEach((value, i) => {
      const place = name === "change" ? (value / shown.reach + 1) / 2 : value / shown.top;
      image.data.set([...palettes[name === "change" ? "change" : "weight"][Math.round(place * 255)], 255], i * 4);
    });
    context.putImageData(image, 0, 0);
    return small;
  }

  function geometry(canvas, context) {
    const width = canvas.clientWidth;
    const size = example.tokens.length;
    const widest = Math.max(...example.tokens.map((token) => context.measureText(token).width));
    const margin = Math.min(Math.ceil(widest) + 6, 90);
    const labelled = (width - margin) / size >= LABEL_PITCH;
    return { width, margin: labelled ? margin : 0, side: labelled ? width - margin : width, labelled };
  }

  function draw() {
    if (!shown) return;
    canvases.forEach(drawOne);
    const [query, key] = cursor;
    const at = query * example.tokens.length + key;
    const token = (i) => `\u201c${example.tokens[i]}\u201d (${i})`;
    const number = (value) => value.toFixed(3).replace("-", "\u2212");
    readout.textContent =
      `${token(query)} attends to ${token(key)}: ` +
      `${number(shown.before[at])} before, ${number(shown.after[at])} after, ` +
      `${signedThree(shown.change[at])} change`;
  }

  function signedThree(value) {
    const text = Math.abs(value).toFixed(3);
    return Number(text) === 0 ? "no" : (value < 0 ? "\u2212" : "+") + text;
  }

  function drawOne(canvas) {
    const ratio = window.devicePixelRatio || 1;
    const context = canvas.getContext("2d");
    const font = "11px system-ui, sans-serif";
    context.font = font;
    const { width, margin, side, labelled } = geometry(canvas, context);
    const height = side + margin;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    context.scale(ratio, ratio);
    context.font = font;
    context.imageSmoothingEnabled = false;
    context.drawImage(shown.rasters[canvas.dataset.map], margin, 0, side, side);
    const ink = getComputedStyle(canvas).color;
    const pitch = side / example.tokens.length;
    context.strokeStyle = ink;
    context.strokeRect(margin + 0.5, 0.5, side - 1, side - 1);
    if (labelled) drawTokens(context, margin, side, pitch, ink);
    const [query, key] = cursor;
    for (const [colour, line] of [["#000", 4], ["#fff", 2]]) {
      context.strokeStyle = colour;
      context.lineWidth = line;
      context.strokeRect(margin + key * pitch, query * pitch, pitch, pitch);
    }
  }

  function drawTokens(context, margin, side, pitch, ink) {
    context.fillStyle = ink;
    context.textBaseline = "middle";
    context.textAlign = "right";
    example.tokens.forEach((token, i) => {
      context.fillText(token, margin - 4, (i + 0.5) * pitch, margin - 4);
      context.save();
      context.translate(margin + (i + 0.5) * pitch, side + 4);
      context.rotate(-Math.PI / 2);
      context.fillText(token, 0, 0, margin - 4);
      context.restore();
    });
  }

  function point(event) {
    if (!shown) return;
    const canvas = event.currentTarget;
    const { margin, side } = geometry(canvas, canvas.getContext("2d"));
    const box = canvas.getBoundingClientRect();
    const size = example.tokens.length;
    const place = (offset) => Math.max(0, Math.min(size - 1, Math.floor((offset / side) * size)));
    cursor = [place(event.clientY - box.top), place(event.clientX - box.left - margin)];
    draw();
  }

  function step(event) {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const move = moves[event.key];
    if (!move || !shown) return;
    event.preventDefault();
    cursor = cursor.map((at, i) => Math.max(0, Math.min(example.tokens.length - 1, at + move[i])));
    draw();
  }

  function start() {
    fill(pick.example, sources.map((source) => source.dataset.name), 0);
    openExample(0);
    pick.example.addEventListener("change", () => { openExample(Number(pick.example.value)); show(); });
    for (const name of ["layer", "head", "before", "after"]) pick[name].addEventListener("change", show);
    for (const canvas of canvases) {
      canvas.addEventListener("pointerdown", point);
      canvas.addEventListener("pointermove", (event) => { if (event.pointerType === "mouse") point(event); });
      canvas.addEventListener("keydown", step);
    }
    window.addEventListener("resize", draw);
    window.addEventListener("beforeprint", draw);
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  }

  viewer.hidden = false;
  start();
  // Unpacking waits until the maps are about to be seen, or printed.
  const watcher = new IntersectionObserver((entries) => {
    if (entries.some((entry) => entry.isIntersecting)) {
      watcher.disconnect();
      show();
    }
  }, { rootMargin: "200px" });
  watcher.observe(viewer);
})();
