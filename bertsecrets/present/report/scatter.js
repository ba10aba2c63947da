// All heads as points: any two numbers of the first screen's grid as axes, in the colours that the grid has now.
(() => {
  "use strict";
  const box = document.getElementById("scatter");
  const views = JSON.parse(document.getElementById("overview-data").textContent).views;
  const chooser = document.querySelector("#overview [data-colouring] select");
  const buttons = [...document.querySelectorAll("#overview button[data-head]")];
  const axes = ["x", "y"].map((name) => box.querySelector(`[data-axis="${name}"]`));
  const picture = box.querySelector("svg");
  const SVG = "http://www.w3.org/2000/svg";
  const [WIDTH, HEIGHT, MARGIN] = [640, 360, 34];

  const number = (head, axis) => {
    const [layer, at] = head.split(".").map(Number);
    return views[Number(axis.value)].value[layer][at];
  };

  function element(name, attributes, text = "") {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.textContent = text;
    return node;
  }

  function draw() {
    if (!box.open) return;
    const known = buttons.filter((button) => axes.every((axis) => number(button.dataset.head, axis) !== null));
    const ends = axes.map((axis) => {
      const values = known.map((button) => number(button.dataset.head, axis));
      return [Math.min(...values), Math.max(...values)];
    });
    const place = (head, at) => {
      const [low, high] = ends[at];
      const share = high > low ? (number(head, axes[at]) - low) / (high - low) : 0.5;
      return at ? HEIGHT - MARGIN - share * (HEIGHT - 2 * MARGIN) : MARGIN + share * (WIDTH - 2 * MARGIN);
    };
    const points = known.map((button) => {
      const head = button.dataset.head;
      const point = element("circle", {
        cx: place(head, 0),
        cy: place(head, 1),
        r: button.getAttribute("aria-pressed") === "true" ? 9 : 6,
        fill: getComputedStyle(button.parentElement).backgroundColor,
        "data-point": head,
      });
      point.append(element("title", {}, `layer ${head.replace(".", " \u00b7 head ")}`));
      point.addEventListener("click", () => button.click());
      return point;
    });
    // The selected head lies on top.
    points.sort((one, other) => one.getAttribute("r") - other.getAttribute("r"));
    const short = (value) => String(Number(value.toPrecision(3))).replace("-", "\u2212");
    const labels = known.length
      ? [
          element("text", { x: MARGIN, y: HEIGHT - 8 }, short(ends[0][0])),
          element("text", { x: WIDTH - MARGIN, y: HEIGHT - 8, "text-anchor": "end" }, `${short(ends[0][1])} \u2192`),
          element("text", { x: 4, y: HEIGHT - MARGIN }, short(ends[1][0])),
          element("text", { x: 4, y: MARGIN - 10 }, `\u2191 ${short(ends[1][1])}`),
        ]
      : [element("text", { x: MARGIN, y: HEIGHT / 2 }, "No head has both numbers.")];
    picture.replaceChildren(...labels, ...points);
  }

  if (views.length > 1) {
    for (const axis of axes) axis.replaceChildren(...[...chooser.options].map((option) => option.cloneNode(true)));
    // The first number after the changes of score is another measure's, where there is one.
    const other = views.findIndex((view) => !view.codes && view.scale !== "effects");
    axes[0].value = String(other > 0 ? other : 1);
    axes[1].value = "0";
    for (const axis of axes) axis.addEventListener("change", draw);
    box.addEventListener("toggle", draw);
    chooser.addEventListener("change", draw);
    const watcher = new MutationObserver(draw);
    for (const button of buttons) watcher.observe(button, { attributeFilter: ["aria-pressed"] });
    box.hidden = false;
    draw();
  }
})();
