// The first screen: a grid of heads that can be coloured by any number, the selected head, and commands to copy.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("overview-data").textContent);
  const root = document.getElementById("overview");
  const table = root.querySelector("table.heads");
  const buttons = [...table.querySelectorAll("button[data-head]")];
  const whole = [...table.querySelectorAll("td.whole")];
  const panel = root.querySelector("[data-panel]");
  const switcher = root.querySelector("[data-colouring]");
  const chooser = switcher.querySelector("select");
  const scale = root.querySelector("[data-scale]");
  const SVG = "http://www.w3.org/2000/svg";
  let selected = data.start;
  let turn = 0;

  const title = (head) => `layer ${head.split(".")[0]} \u00b7 head ${head.split(".")[1]}`;
  const cell = (grid, head) => grid[Number(head.split(".")[0])][Number(head.split(".")[1])];

  function colour(stops, share) {
    return stops[Math.round(Math.max(0, Math.min(1, share)) * (stops.length - 1))];
  }

  // Black or white, whichever stands out more.
  function ink(hex) {
    const [r, g, b] = [1, 3, 5].map((at) => (parseInt(hex.slice(at, at + 2), 16) / 255) ** 2.2);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000" : "#fff";
  }

  function paint() {
    const view = data.views[Number(chooser.value)];
    const known = view.value.flat().filter((value) => value !== null);
    const reach = Math.max(...known.map(Math.abs), 0) || 1;
    const [low, high] = view.scale !== "weight" ? [-reach, reach] : [Math.min(...known, Infinity), Math.max(...known, -Infinity)];
    const stops = data.stops[view.scale];
    for (const button of buttons) {
      const head = button.dataset.head;
      const [text, value] = [cell(view.text, head), cell(view.value, head)];
      const code = view.codes ? cell(view.codes, head) : "";
      button.textContent = text;
      button.parentElement.className = code;
      button.setAttribute("aria-label", `${title(head)}: ${text}${code ? `, ${data.words[code]}` : ""}`);
      const fill = view.codes || value === null ? "" : colour(stops, (value - low) / (high - low || 1));
      button.parentElement.style.background = fill;
      button.style.color = fill && ink(fill);
    }
    whole.forEach((td, layer) => {
      const [text, code] = view.layers ? view.layers[layer] : ["", ""];
      td.textContent = text;
      td.className = `whole ${code}`;
      td.title = view.layers ? `whole layer ${layer}: ${data.words[code]}` : "";
    });
    table.querySelector("[data-label]").textContent = chooser.selectedOptions[0].text;
    root.querySelector("[data-key]").hidden = !view.codes;
    scale.hidden = Boolean(view.codes) || !known.length;
    if (!scale.hidden) {
      const [left, right] = scale.querySelectorAll("span");
      [left.textContent, right.textContent] = [low, high].map((end) => String(Number(end.toPrecision(3))).replace("-", "\u2212"));
      scale.querySelector("i").style.background = `linear-gradient(to right, ${stops.join(",")})`;
    }
  }

  function select(head) {
    selected = head;
    for (const button of buttons) {
      const chosen = button.dataset.head === head;
      button.setAttribute("aria-pressed", String(chosen));
      button.tabIndex = chosen ? 0 : -1;
    }
    panel.querySelector("[data-name]").textContent = title(head);
    panel.querySelector("[data-about]").replaceChildren(
      ...(data.about[head] || []).map((line) => {
        const item = document.createElement("li");
        item.textContent = line;
        return item;
      })
    );
    const maps = panel.querySelector("[data-maps]");
    if (maps) maps.href = `#l${head.split(".").map((part) => part.padStart(2, "0")).join("h")}`;
    showExample(data.examples[head]);
  }

  async function showExample(example) {
    const box = panel.querySelector("[data-example]");
    box.hidden = !example;
    if (!example) return;
    const mine = ++turn;
    panel.querySelector("[data-sentence]").textContent =
      `The example whose prediction changes most without the head. Correct answer: ${example.label}.`;
    const rows = example.answers.map(([name, before, after]) => {
      const row = document.createElement("tr");
      row.append(...[name, before.toFixed(3), after.toFixed(3)].map((text, place) => {
        const td = document.createElement(place ? "td" : "th");
        td.textContent = text.replace("-", "\u2212");
        if (place) td.className = "number";
        return td;
      }));
      return row;
    });
    panel.querySelector("[data-answers] tbody").replaceChildren(...rows);
    const map = panel.querySelector("[data-map]");
    if (typeof DecompressionStream === "undefined") return;
    const bytes = Uint8Array.from(atob(example.map), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const weights = [...new Uint8Array(await new Response(stream).arrayBuffer())].map((byte) => (byte / 255) ** 2);
    if (mine === turn) map.replaceChildren(drawing(example.tokens, weights));
  }

  function element(name, attributes, text = "") {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text) node.textContent = text;
    return node;
  }

  function short(token) {
    const letters = [...token];
    return letters.length > 12 ? `${letters.slice(0, 11).join("")}\u2026` : token;
  }

  function drawing(tokens, weights) {
    const size = tokens.length;
    const pitch = Math.max(7, Math.min(20, 300 / size));
    const margin = Math.max(...tokens.map((token) => [...short(token)].length)) * 6.5 + 8;
    const side = margin + size * pitch + 2;
    const top = Math.max(...weights);
    const strongest = weights.indexOf(top);
    // The last slanted label reaches beyond the map.
    const width = side + margin / 2;
    const svg = element("svg", {
      width, height: side, viewBox: `0 0 ${width} ${side}`, role: "img",
      "aria-label": `Attention map of ${title(selected)}; largest weight ${top.toFixed(2)}, from ` +
        `\u201c${tokens[Math.floor(strongest / size)]}\u201d to \u201c${tokens[strongest % size]}\u201d`,
    });
    const every = pitch < 10 ? 2 : 1;
    tokens.forEach((token, i) => {
      if (i % every) return;
      const at = margin + (i + 0.5) * pitch;
      svg.append(
        element("text", { x: margin - 4, y: at, "text-anchor": "end", "dominant-baseline": "central" }, short(token)),
        element("text", { transform: `translate(${at},${margin - 4}) rotate(-60)` }, short(token))
      );
    });
    weights.forEach((weight, i) => {
      const [query, key] = [Math.floor(i / size), i % size];
      const square = element("rect", {
        x: margin + key * pitch, y: margin + query * pitch, width: pitch - 0.5, height: pitch - 0.5,
        fill: colour(data.stops.weight, weight / (top || 1)),
      });
      square.append(element("title", {}, `${tokens[query]} \u2192 ${tokens[key]}: ${weight.toFixed(3)}`));
      svg.append(square);
    });
    return svg;
  }

  function move(event) {
    const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!by) return;
    const [layer, head] = selected.split(".").map(Number);
    const next = buttons.find((button) => button.dataset.head === `${layer + by[0]}.${head + by[1]}`);
    event.preventDefault();
    if (!next) return;
    select(next.dataset.head);
    next.focus();
  }

  for (const button of buttons) {
    button.addEventListener("click", () => select(button.dataset.head));
    button.addEventListener("keydown", move);
  }
  switcher.hidden = data.views.length < 2;
  table.querySelector("[data-label]").classList.toggle("unseen", !switcher.hidden);
  chooser.addEventListener("change", paint);
  paint();
  select(selected);
})();
