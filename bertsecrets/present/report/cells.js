// A cell of a heatmap opens its head in the viewer, of this page or of the page that has the maps.
(() => {
  "use strict";
  const viewer = document.querySelector(".viewer");
  const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

  function open(page, layer, head) {
    const two = (number) => String(number).padStart(2, "0");
    const address = `#l${two(layer)}h${two(head)}`;
    if (page) location.href = page + address;
    // The same address again is no change that the viewer would hear of.
    else if (location.hash.startsWith(address)) viewer.scrollIntoView();
    else location.hash = address;
  }

  for (const grid of document.querySelectorAll(".cells")) {
    const { page } = grid.dataset;
    if (!viewer && !page) continue;
    const [layers, heads] = [Number(grid.dataset.layers), Number(grid.dataset.heads)];
    const mark = grid.querySelector("i");
    let at = [0, 0];

    function point(layer, head) {
      at = [Math.max(0, Math.min(layers - 1, layer)), Math.max(0, Math.min(heads - 1, head))];
      grid.title = `layer ${at[0]} \u00b7 head ${at[1]}`;
      grid.setAttribute("aria-label", `${grid.title}; arrow keys choose a head of this heatmap, Enter opens it`);
      mark.style.top = `${(100 * at[0]) / layers}%`;
      mark.style.left = `${(100 * at[1]) / heads}%`;
    }

    function under(event) {
      const box = grid.getBoundingClientRect();
      const place = (offset, size, count) => Math.floor((offset / size) * count);
      point(
        place(event.clientY - box.top, box.height, layers), place(event.clientX - box.left, box.width, heads)
      );
    }

    grid.hidden = false;
    // The page's policy allows no style attribute.
    const { style } = grid;
    [style.left, style.top, style.width, style.height] = grid.dataset.place.split(" ");
    [mark.style.width, mark.style.height] = [`${100 / heads}%`, `${100 / layers}%`];
    point(0, 0);
    grid.addEventListener("pointermove", under);
    grid.addEventListener("keydown", (event) => {
      const step = STEPS[event.key];
      if (!step) return;
      event.preventDefault();
      point(at[0] + step[0], at[1] + step[1]);
    });
    grid.addEventListener("click", (event) => {
      // A click of the keyboard has no place.
      if (event.detail > 0) under(event);
      open(page, ...at);
    });
  }
})();
