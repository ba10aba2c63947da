// Two further views of the maps that the viewer unpacks: lines between tokens, and all heads side by side.
(() => {
  "use strict";
  const viewer = document.querySelector(".viewer");
  const columns = JSON.parse(document.getElementById("viewer-heads").textContent);
  const histories = JSON.parse(document.getElementById("viewer-histories").textContent);
  const canvas = viewer.querySelector("[data-lines]");
  const chips = viewer.querySelector("[data-chips]");
  const grid = viewer.querySelector("[data-grid]");
  const special = viewer.querySelector("[data-special]");
  const readout = viewer.querySelector("[data-token]");
  const hint = readout.textContent;
  const ROW = 20;
  const FAINTEST = 0.01;
  const LARGEST_CANVAS = 16000;
  let state = null;
  let also = new Set();
  let maps = new Map();
  let focus = null;
  let pinned = false;
  let turn = 0;
  let drawnGrid = "";

  const colourOf = (head) => `hsl(${Math.round((head * 360) / state.example.heads)} 70% 45%)`;
  const shownStage = () => (state.example.stages.length === 1 ? "after" : state.pick.shown.value);

  function fill(select, options) {
    select.replaceChildren(...options.map(([value, name]) => new Option(name, value)));
  }

  async function weights(layer, head) {
    const { unpack, pick } = state;
    const after = () => unpack(Number(pick.after.value), layer, head);
    if (shownStage() === "after") return after();
    const before = await unpack(Number(pick.before.value), layer, head);
    if (shownStage() === "before") return before;
    return (await after()).map((weight, i) => weight - before[i]);
  }

  // Lines between two columns of tokens.

  function offerChoices() {
    const { example, pick } = state;
    const second = example.sentences.includes(1);
    viewer.querySelectorAll("[data-pair]").forEach((label) => { label.hidden = !second; });
    viewer.querySelector("[data-marked]").hidden = !example.special.includes(true);
    const shownExample = `${pick.example.value} ${example.tokens.length}`;
    if (viewer.dataset.views === shownExample) return;
    viewer.dataset.views = shownExample;
    [focus, pinned, also] = [null, false, new Set()];
    for (const name of ["from", "to"]) {
      fill(pick[name], [["", "both sentences"], ["0", "first sentence"], ["1", "second sentence"]]);
    }
    fill(pick.shown, [["after", "after"], ["before", "before"], ["change", "change"]]);
  }

  function offerHeads() {
    const boxes = Array.from({ length: state.example.heads }, (_, head) => {
      const label = document.createElement("label");
      const box = document.createElement("input");
      box.type = "checkbox";
      box.value = String(head);
      box.checked = head === state.head || also.has(head);
      box.disabled = head === state.head;
      box.addEventListener("change", () => {
        if (box.checked) also.add(head);
        else also.delete(head);
        updateLines();
      });
      label.style.setProperty("--head", colourOf(head));
      label.append(box, String(head));
      return label;
    });
    chips.replaceChildren(...boxes);
    viewer.querySelector("[data-layer-name]").textContent = String(state.layer);
  }

  function rows(name) {
    const { example, pick } = state;
    const wanted = pick[name].value;
    const kept = (_, i) =>
      (special.checked || !example.special[i]) && (wanted === "" || example.sentences[i] === Number(wanted));
    return example.tokens.map((_, i) => i).filter((i) => kept(null, i));
  }

  async function updateLines() {
    const mine = ++turn;
    const heads = [...new Set([state.head, ...also])].sort((a, b) => a - b);
    const read = new Map();
    for (const head of heads) read.set(head, await weights(state.layer, head));
    if (mine !== turn) return;
    maps = read;
    drawLines();
    viewer.dataset.linesState = heads.join(" ");
  }

  function drawLines() {
    if (!state || canvas.parentElement.clientWidth === 0) return;
    const { example, palettes } = state;
    const [left, right] = [rows("from"), rows("to")];
    const width = Math.min(canvas.parentElement.clientWidth, 560);
    const height = Math.max(left.length, right.length, 1) * ROW;
    const ratio = Math.min(window.devicePixelRatio || 1, LARGEST_CANVAS / height);
    [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
    [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    const ink = getComputedStyle(canvas).color;
    const margin = Math.min(130, width * 0.32);
    const change = shownStage() === "change";
    const reach = Math.max(...[...maps.values()].map((map) => map.reduce((a, b) => Math.max(a, Math.abs(b)), 0)), 1e-9);
    const lit = (side, i) => focus === null || focus.side !== side || focus.token === i;
    context.lineCap = "round";
    for (const [head, map] of maps) {
      left.forEach((query, row) => {
        if (!lit("left", query)) return;
        right.forEach((key, other) => {
          if (!lit("right", key)) return;
          const weight = map[query * example.tokens.length + key];
          const strength = Math.abs(weight) / reach;
          if (strength < FAINTEST) return;
          context.globalAlpha = Math.min(1, strength);
          context.lineWidth = 1 + 2 * strength;
          context.strokeStyle = change ? `rgb(${palettes.change[weight > 0 ? 230 : 25]})` : colourOf(head);
          context.beginPath();
          context.moveTo(margin + 4, (row + 0.5) * ROW);
          context.lineTo(width - margin - 4, (other + 0.5) * ROW);
          context.stroke();
        });
      });
    }
    context.globalAlpha = 1;
    context.fillStyle = ink;
    context.textBaseline = "middle";
    const write = (side, places, x, align) => {
      context.textAlign = align;
      places.forEach((i, row) => {
        context.font = `${focus?.side === side && focus.token === i ? "bold " : ""}13px system-ui, sans-serif`;
        context.fillText(example.tokens[i], x, (row + 0.5) * ROW, margin - 2);
      });
    };
    write("left", left, margin, "right");
    write("right", right, width - margin, "left");
    const names = [...maps.keys()].join(", ");
    canvas.setAttribute(
      "aria-label",
      `Lines of layer ${state.layer}, head ${names}. Up and down read tokens, left and right change sides, Escape shows all.`
    );
    const bold = ` The boldest line is a weight of ${reach.toFixed(3)}.`;
    const signs = change ? ` Red: more attention than before, blue: less; the boldest by ${reach.toFixed(3)}.` : bold;
    readout.textContent = (focus === null ? hint : describe(left, right)) + signs;
  }

  function describe(left, right) {
    const { example, head } = state;
    const { side, token } = focus;
    const size = example.tokens.length;
    const number = (value) => value.toFixed(3).replace("-", "\u2212");
    const others = (side === "left" ? right : left)
      .map((i) => [i, maps.get(head)[side === "left" ? token * size + i : i * size + token]])
      .sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]))
      .slice(0, 3)
      .map(([i, weight]) => `\u201c${example.tokens[i]}\u201d (${i}) ${number(weight)}`);
    const verb = side === "left" ? "attends most to" : "is attended to most by";
    const what = shownStage() === "change" ? "changes most with" : verb;
    return `Head ${head}: \u201c${example.tokens[token]}\u201d (${token}) ${what} ${others.join(", ") || "no token shown"}.`;
  }

  function under(event) {
    const box = canvas.getBoundingClientRect();
    const side = event.clientX - box.left < box.width / 2 ? "left" : "right";
    const row = Math.floor((event.clientY - box.top) / ROW);
    const token = rows(side === "left" ? "from" : "to")[row];
    return token === undefined ? null : { side, token };
  }

  function press(event) {
    const { key } = event;
    if (key === "Escape") [focus, pinned] = [null, false];
    else if (key === "ArrowUp" || key === "ArrowDown") {
      const side = focus?.side ?? "left";
      const list = rows(side === "left" ? "from" : "to");
      const at = focus === null ? -1 : list.indexOf(focus.token);
      const next = Math.max(0, Math.min(list.length - 1, at + (key === "ArrowDown" ? 1 : -1)));
      if (list.length > 0) [focus, pinned] = [{ side, token: list[next] }, true];
    } else if ((key === "ArrowLeft" || key === "ArrowRight") && focus !== null) {
      focus = { side: key === "ArrowLeft" ? "left" : "right", token: focus.token };
    } else return;
    event.preventDefault();
    drawLines();
  }

  canvas.addEventListener("pointermove", (event) => {
    if (!state || pinned || event.pointerType !== "mouse") return;
    focus = under(event);
    drawLines();
  });
  canvas.addEventListener("pointerleave", () => {
    if (!state || pinned) return;
    focus = null;
    drawLines();
  });
  canvas.addEventListener("click", (event) => {
    const token = under(event);
    const same = pinned && token !== null && token.side === focus?.side && token.token === focus?.token;
    [focus, pinned] = same || token === null ? [null, false] : [token, true];
    drawLines();
  });
  canvas.addEventListener("keydown", press);
  special.addEventListener("change", () => { [focus, pinned] = [null, false]; drawLines(); });

  // All heads side by side.

  // Undefined for "attention maps", whose value is empty. A history has other cells at each stage, and one scale for all.
  function chosen() {
    const { value } = viewer.querySelector("[data-pick=colour]");
    if (!value.startsWith("h")) return columns[parseInt(value, 10)];
    const { stages } = histories[Number(value.slice(1))];
    const scale = Object.values(stages).flatMap((cells) => Object.values(cells));
    return { cells: stages[state.pick.after.selectedOptions[0].text] ?? {}, scale };
  }

  async function updateGrid() {
    const { example, pick } = state;
    const layers = example.stages[0].layers.length;
    const key = [viewer.dataset.views, pick.before.value, pick.after.value, shownStage(), pick.colour.value].join(" ");
    if (key !== drawnGrid) {
      drawnGrid = key;
      const column = chosen();
      const paint = column ? colourer(column) : null;
      legend(column, paint);
      grid.style.setProperty("--heads", String(example.heads));
      const name = (text) => {
        const label = document.createElement("span");
        label.textContent = text;
        return label;
      };
      const cells = Array.from({ length: example.heads + 1 }, (_, i) => name(i ? String(i - 1) : ""));
      for (let layer = 0; layer < layers; layer++) {
        cells.push(name(String(layer)));
        for (let head = 0; head < example.heads; head++) cells.push(cell(layer, head, column, paint));
      }
      grid.replaceChildren(...cells);
      if (!column) await drawMaps(key);
    }
    for (const button of grid.querySelectorAll("button")) {
      button.ariaCurrent = String(Number(button.dataset.layer) === state.layer && Number(button.dataset.head) === state.head);
    }
    viewer.dataset.gridState = key;
  }

  function cell(layer, head, column, paint) {
    const button = document.createElement("button");
    button.type = "button";
    [button.dataset.layer, button.dataset.head] = [String(layer), String(head)];
    const value = column?.cells[`${layer}.${head}`];
    const text = column ? `: ${value ?? "no value"}` : "";
    button.title = `layer ${layer} \u00b7 head ${head}${text}`.replace(": -", ": \u2212");
    button.setAttribute("aria-label", button.title);
    if (column) button.style.background = value == null ? "transparent" : paint.of(value);
    button.addEventListener("click", () => {
      state.goTo(layer, head);
      viewer.scrollIntoView({ block: "start" });
    });
    return button;
  }

  async function drawMaps(key) {
    const { example, palettes } = state;
    const size = example.tokens.length;
    const change = shownStage() === "change";
    for (const button of [...grid.querySelectorAll("button")]) {
      const map = await weights(Number(button.dataset.layer), Number(button.dataset.head));
      if (key !== drawnGrid) return;
      const top = map.reduce((a, b) => Math.max(a, Math.abs(b)), 0) || 1;
      const small = document.createElement("canvas");
      small.width = small.height = size;
      const image = small.getContext("2d").createImageData(size, size);
      map.forEach((value, i) => {
        const place = change ? (value / top + 1) / 2 : value / top;
        image.data.set([...palettes[change ? "change" : "weight"][Math.round(place * 255)], 255], i * 4);
      });
      small.getContext("2d").putImageData(image, 0, 0);
      button.replaceChildren(small);
    }
  }

  function colourer(column) {
    const values = (column.scale ?? Object.values(column.cells)).filter((value) => value !== null);
    if (values.some((value) => typeof value === "string")) {
      const classes = [...new Set(values)].sort();
      return { classes, of: (value) => `hsl(${Math.round((classes.indexOf(value) * 360) / classes.length)} 60% 55%)` };
    }
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const signed = low < 0 && high > 0;
    const reach = Math.max(-low, high);
    if (column.effects) {
      // White is no change; without a gain the scale ends there.
      const most = reach || 1;
      const of = (value) => `rgb(${state.palettes.effects[Math.round((value / most + 1) * 127.5)]})`;
      const stops = state.colours.effects;
      return { start: -most, end: high > 0 ? most : 0, stops: high > 0 ? stops : stops.slice(0, (stops.length + 1) / 2), of };
    }
    const [start, end] = signed ? [-reach, reach] : [low, high];
    const name = signed ? "change" : "weight";
    const place = (value) => (end > start ? (value - start) / (end - start) : 0.5);
    return { start, end, stops: state.colours[name], of: (value) => `rgb(${state.palettes[name][Math.round(place(value) * 255)]})` };
  }

  function legend(column, paint) {
    const bar = viewer.querySelector("[data-legend]");
    const list = viewer.querySelector("[data-classes]");
    viewer.querySelector("[data-scales]").hidden = Boolean(column);
    bar.hidden = !column || Boolean(paint.classes) || !Number.isFinite(paint.start);
    list.hidden = !column || !paint.classes;
    if (!bar.hidden) {
      const [left, right] = bar.querySelectorAll("span");
      [left.textContent, right.textContent] = [paint.start, paint.end].map((value) =>
        String(Number(value.toPrecision(3))).replace("-", "\u2212")
      );
      bar.querySelector("i").style.background = `linear-gradient(to right, ${paint.stops.join(",")})`;
    }
    if (!list.hidden) {
      list.replaceChildren(
        ...paint.classes.map((name) => {
          const item = document.createElement("span");
          item.className = "class";
          item.style.setProperty("--class", paint.of(name));
          item.textContent = name;
          return item;
        })
      );
    }
  }

  viewer.addEventListener("viewer:drawn", (event) => {
    state = event.detail;
    offerChoices();
    offerHeads();
    updateLines();
    updateGrid();
  });
  for (const name of ["from", "to", "shown"]) {
    viewer.querySelector(`[data-pick=${name}]`).addEventListener("change", () => {
      [focus, pinned] = [null, false];
      updateLines();
      updateGrid();
    });
  }
  viewer.querySelector("[data-pick=colour]").addEventListener("change", updateGrid);
  fill(viewer.querySelector("[data-pick=colour]"), [
    ["", "attention maps"],
    ...histories.map((history, i) => [`h${i}`, `${history.label}, at the step`]),
    ...columns.map((column, i) => [String(i), column.label]),
  ]);
  viewer.querySelector("[data-coloured]").hidden = columns.length + histories.length === 0;
  window.addEventListener("resize", drawLines);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawLines);
})();
