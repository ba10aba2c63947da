(() => {
  "use strict";
  const viewer = document.querySelector(".viewer");
  const sources = [...document.querySelectorAll(".viewer-example")];
  const colours = JSON.parse(document.getElementById("viewer-colours").textContent);
  const pick = Object.fromEntries([...viewer.querySelectorAll("select")].map((s) => [s.dataset.pick, s]));
  const canvases = [...viewer.querySelectorAll("canvas[data-map]")];
  const readout = viewer.querySelector(".readout");
  const link = viewer.querySelector("[data-link]");
  const histories = JSON.parse(document.getElementById("viewer-histories").textContent);
  const answers = JSON.parse(document.getElementById("viewer-answers").textContent);
  const timeline = viewer.querySelector("[data-timeline]");
  const slider = viewer.querySelector("[data-slider]");
  const LABEL_PITCH = 10;
  const palettes = Object.fromEntries(Object.entries(colours).map(([name, stops]) => [name, palette(stops)]));
  const byWord = viewer.querySelector("[data-by-word]");
  const several = viewer.querySelector("[data-several]");
  // The example with its pieces, and what is shown of it: the same, or its words.
  let pieces = null;
  let example = null;
  let shown = null;
  let cursor = [0, 0];
  let turn = 0;
  const selected = new Set();
  const layers = new Map();

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
    pieces = JSON.parse(sources[index].textContent);
    byWord.closest("label").hidden = new Set(pieces.words).size === pieces.tokens.length;
    group();
    const stages = example.stages.map((stage) => stage.name);
    const wanted = { layer: Number(viewer.dataset.layer), head: Number(viewer.dataset.head) };
    if (pick.layer.value) wanted.layer = Number(pick.layer.value);
    if (pick.head.value) wanted.head = Number(pick.head.value);
    const numbers = (count) => Array.from({ length: count }, (_, i) => String(i));
    const count = example.stages[0].layers.length;
    fill(pick.layer, numbers(count), Math.min(wanted.layer, count - 1));
    fill(pick.head, numbers(example.heads), Math.min(wanted.head, example.heads - 1));
    fill(pick.before, stages, 0);
    fill(pick.after, stages, stages.length - 1);
    layers.clear();
    viewer.dataset.stages = String(stages.length);
    // The first stage is what the others are compared with.
    timeline.hidden = stages.length < 3;
    slider.max = String(stages.length - 1);
    const rounding = viewer.querySelector("[data-rounding]");
    rounding.hidden = example.levels === 255;
    rounding.textContent = `To keep this page small, weights of this text are rounded to ${example.levels + 1} steps.`;
  }

  // Words in place of their pieces: a word attends as its pieces do on average, and gets what they get together.
  function group() {
    const words = [];
    if (byWord.checked && !byWord.closest("label").hidden) {
      pieces.words.forEach((word, i) => (words[word] ??= []).push(i));
      const text = (i, at) => (at > 0 ? pieces.tokens[i].replace(/^##/, "") : pieces.tokens[i]);
      example = {
        ...pieces,
        groups: words,
        tokens: words.map((places) => places.map(text).join("")),
        sentences: pieces.sentences.length ? words.map(([first]) => pieces.sentences[first]) : [],
        special: pieces.special.length ? words.map(([first]) => pieces.special[first]) : [],
      };
    } else example = pieces;
    cursor = [0, 0];
    selected.clear();
  }

  async function unpackLayer(stage, layer) {
    const bytes = Uint8Array.from(atob(example.stages[stage].layers[layer]), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  async function unpack(stage, layer, head) {
    const { levels, tokens } = pieces;
    const key = `${stage}.${layer}`;
    if (!layers.has(key)) layers.set(key, unpackLayer(stage, layer));
    const whole = await layers.get(key);
    const size = tokens.length ** 2;
    const map = Float32Array.from(whole.subarray(head * size, (head + 1) * size), (byte) => (byte / levels) ** 2);
    const { groups } = example;
    if (!groups) return map;
    const total = (query, key) => query.reduce((sum, q) => sum + key.reduce((s, k) => s + map[q * tokens.length + k], 0), 0);
    return Float32Array.from(groups.flatMap((query) => groups.map((key) => total(query, key) / query.length)));
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
    moment(layer, head);
    draw();
    viewer.dataset.state = "drawn";
    link.href = address();
    viewer.dispatchEvent(
      new CustomEvent("viewer:drawn", { detail: { example, layer, head, unpack, colours, palettes, pick, goTo } })
    );
  }

  // The stage on the slider, and the head's numbers at it.
  function moment(layer, head) {
    const stage = pick.after.selectedOptions[0].text;
    slider.value = pick.after.value;
    slider.setAttribute("aria-valuetext", stage);
    const numbers = histories
      .map(({ label, stages }) => [label, stages[stage]?.[`${layer}.${head}`]])
      .filter(([, value]) => value != null)
      .map(([label, value]) => `${label} ${String(value).replace("-", "\u2212")}`);
    viewer.querySelector("[data-moment]").textContent = [stage, ...numbers].join(" \u00b7 ");
  }

  // The fragment of a link to what is shown: l03h01 is layer 3 · head 1, l03h01e2 the same in the third of several
  // examples; without an example it is that of the example shown.
  function address() {
    const two = (select) => select.value.padStart(2, "0");
    return `#l${two(pick.layer)}h${two(pick.head)}${sources.length === 1 ? "" : `e${pick.example.value}`}`;
  }

  // Inside a notebook's cell the page has no address of its own.
  function remember() {
    if (location.protocol !== "about:") history.replaceState(null, "", address());
  }

  function goTo(layer, head) {
    [pick.layer.value, pick.head.value] = [String(layer), String(head)];
    remember();
    return show();
  }

  function stepHead(by) {
    const total = example.stages[0].layers.length * example.heads;
    const at = (Number(pick.layer.value) * example.heads + Number(pick.head.value) + by + total) % total;
    goTo(Math.floor(at / example.heads), at % example.heads);
  }

  function follow() {
    const match = location.hash.match(/^#l(\d+)h(\d+)(?:e(\d+))?$/);
    if (!match) return;
    const [layer, head, wanted] = match.slice(1).map((digits) => Number(digits ?? pick.example.value));
    if (wanted < sources.length && String(wanted) !== pick.example.value) {
      pick.example.value = String(wanted);
      openExample(wanted);
    }
    if (layer >= example.stages[0].layers.length || head >= example.heads) return;
    [pick.layer.value, pick.head.value] = [String(layer), String(head)];
    viewer.scrollIntoView();
    show();
  }

  function caption() {
    const place = `layer ${pick.layer.value} \u00b7 head ${pick.head.value}`;
    const answer = answers[`${pick.layer.value}.${pick.head.value}`];
    viewer.querySelector("[data-answer]").hidden = !answer;
    viewer.querySelector("[data-answer]").textContent = answer ?? "";
    const names = { before: pick.before.selectedOptions[0].text, after: pick.after.selectedOptions[0].text };
    names.change = `${names.after} minus ${names.before}`;
    for (const canvas of canvases) {
      const name = canvas.dataset.map;
      const figure = canvas.closest("figure");
      figure.querySelector("figcaption").textContent = `${place}: ${names[name]}`;
      canvas.setAttribute(
        "aria-label",
        `Attention map of ${place}: ${names[name]}. Arrow keys read cells.`
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
    const widest = Math.max(...example.tokens.map((token) => context.measureText(token).width));
    const margin = Math.min(Math.ceil(widest) + 6, 90);
    return { margin, side: width - margin };
  }

  function draw() {
    if (!shown) return;
    canvases.filter((canvas) => canvas.clientWidth > 0).forEach(drawOne);
    const [query, key] = cursor;
    const keys = selected.size ? [...selected].sort((a, b) => a - b) : [key];
    const sum = (map) => keys.reduce((total, k) => total + map[query * example.tokens.length + k], 0);
    const token = (i) => `\u201c${example.tokens[i]}\u201d (${i})`;
    const number = (value) => value.toFixed(3).replace("-", "\u2212");
    const weights =
      example.stages.length === 1
        ? number(sum(shown.after))
        : `${number(sum(shown.before))} before, ${number(sum(shown.after))} after, ` +
          `${signedThree(sum(shown.change))} change`;
    const together = keys.length > 1 ? " together" : "";
    readout.textContent = `${token(query)} attends to ${keys.map(token).join(", ")}${together}: ${weights}`;
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
    const { margin, side } = geometry(canvas, context);
    const height = side + margin;
    canvas.width = Math.round((side + margin) * ratio);
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
    const [query, key] = cursor;
    drawTokens(context, margin, side, pitch, ink);
    context.lineWidth = 2;
    for (const column of selected) context.strokeRect(margin + column * pitch, 1, pitch, side - 2);
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
    const crowded = pitch < LABEL_PITCH;
    // The first and the last label stay inside the map's edges.
    const edge = crowded ? LABEL_PITCH / 2 : 0;
    const middle = (i) => Math.max(edge, Math.min(side - edge, (i + 0.5) * pitch));
    // In long texts the token under the cursor has a label, and of the others as many as there is room for.
    const labelled = (at) => {
      let last = -Infinity;
      return example.tokens.flatMap((_, i) => {
        const room = Math.min(middle(i) - last, Math.abs(middle(i) - middle(at)));
        if (crowded && i !== at && room < LABEL_PITCH) return [];
        last = middle(i);
        return [i];
      });
    };
    const write = (at, place) => {
      for (const i of labelled(at)) {
        context.save();
        context.font = `${crowded && i === at ? "bold " : ""}11px system-ui, sans-serif`;
        place(middle(i));
        context.fillText(example.tokens[i], 0, 0, margin - 4);
        context.restore();
      }
    };
    write(cursor[0], (at) => context.translate(margin - 4, at));
    write(cursor[1], (at) => {
      context.translate(margin + at, side + 4);
      context.rotate(-Math.PI / 2);
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
    if (event.type === "pointerdown") toggle();
    draw();
  }

  // While several tokens are selected, the readout adds up what the token of the row gives them.
  function toggle() {
    if (!several.checked) return;
    if (!selected.delete(cursor[1])) selected.add(cursor[1]);
  }

  function step(event) {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const move = moves[event.key];
    if (!shown || !(move || (event.key === " " && several.checked))) return;
    event.preventDefault();
    if (!move) {
      toggle();
      draw();
      return;
    }
    cursor = cursor.map((at, i) => Math.max(0, Math.min(example.tokens.length - 1, at + move[i])));
    draw();
  }

  function start() {
    fill(pick.example, sources.map((source) => source.dataset.name), 0);
    openExample(0);
    pick.example.closest("label").hidden = sources.length === 1;
    pick.example.addEventListener("change", () => {
      openExample(Number(pick.example.value));
      remember();
      show();
    });
    for (const name of ["layer", "head"]) {
      pick[name].addEventListener("change", () => goTo(pick.layer.value, pick.head.value));
    }
    byWord.addEventListener("change", () => {
      group();
      show();
    });
    several.addEventListener("change", () => {
      selected.clear();
      draw();
    });
    for (const name of ["before", "after"]) pick[name].addEventListener("change", show);
    slider.addEventListener("input", () => {
      pick.after.value = slider.value;
      show();
    });
    for (const button of viewer.querySelectorAll("[data-step]")) {
      button.addEventListener("click", () => stepHead(Number(button.dataset.step)));
    }
    document.addEventListener("keydown", (event) => {
      const typing = event.target instanceof Element && event.target.closest("input, select, textarea");
      const by = { n: 1, p: -1 }[event.key];
      if (by && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) stepHead(by);
    });
    window.addEventListener("hashchange", follow);
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
  follow();
  // Unpacking waits until the maps are about to be seen, or printed.
  const watcher = new IntersectionObserver((entries) => {
    if (entries.some((entry) => entry.isIntersecting)) {
      watcher.disconnect();
      show();
    }
  }, { rootMargin: "200px" });
  watcher.observe(viewer);
})();
