(() => {
  "use strict";
  const viewer = document.querySelector(".viewer");
  const COMPARE = {
    "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b, "=": (a, b) => a === b,
  };

  // Pages print a true minus sign; what stands behind ± is an error. An undefined number is NaN.
  function numeric(text) {
    const value = text.split("±")[0].replaceAll(",", "").replace("\u2212", "-").replace("%", "").trim();
    return value === "" || value === "\u2013" ? NaN : Number(value);
  }

  for (const joint of document.querySelectorAll(".joint")) {
    const body = joint.querySelector("tbody");
    const headings = [...joint.querySelectorAll("thead th")];
    const find = joint.querySelector("[data-find]");
    const names = headings.map((heading) => `${heading.dataset.group ?? ""} ${heading.textContent}`.toLowerCase());
    const rows = [...body.rows].map((row, order) => ({
      row, order, texts: [...row.cells].map((cell) => cell.textContent), layer: Number(row.dataset.layer),
      head: Number(row.dataset.head),
    }));
    let sorted = { column: -1, down: false };
    const unknown = [];

    function cell(entry, column) {
      if (column === 0) return entry.order;
      const { rank } = entry.row.cells[column].dataset;
      return rank === undefined ? numeric(entry.texts[column]) : rank === "" ? NaN : Number(rank);
    }

    function sort(column) {
      const isRanked = headings[column].dataset.key === "verdict";
      const isText = column > 0 && !isRanked && !headings[column].classList.contains("number");
      // The first click on numbers shows the largest ones; text, heads and verdicts (the most needed) start from the front.
      sorted = { column, down: sorted.column === column ? !sorted.down : column > 0 && !isText && !isRanked };
      const sign = sorted.down ? -1 : 1;
      rows.sort((a, b) => {
        if (isText) return sign * a.texts[column].localeCompare(b.texts[column]) || a.order - b.order;
        const [x, y] = [cell(a, column), cell(b, column)];
        // Undefined numbers stay at the end in either direction.
        if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y) || a.order - b.order;
        return sign * (x - y) || a.order - b.order;
      });
      headings.forEach((heading, i) => {
        if (i === column) heading.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
        else heading.removeAttribute("aria-sort");
      });
      body.append(...rows.map((entry) => entry.row));
    }

    function predicate(term) {
      const condition = term.match(/^(.+?)\s*(<=|>=|<|>|=)\s*([-\u2212+]?[\d.]+)$/);
      if (!condition) return (entry) => entry.texts.some((text) => text.toLowerCase().includes(term));
      const [, name, operator, limit] = condition;
      const value = numeric(limit);
      if (name === "layer" || name === "head") return (entry) => COMPARE[operator](entry[name], value);
      const columns = names.flatMap((heading, i) => (i > 0 && heading.includes(name) ? [i] : []));
      if (!columns.length) unknown.push(name);
      return (entry) => columns.some((column) => COMPARE[operator](cell(entry, column), value));
    }

    function filter() {
      unknown.length = 0;
      const tests = find.value.toLowerCase().split(",").map((term) => term.trim()).filter(Boolean).map(predicate);
      let count = 0;
      for (const entry of rows) {
        entry.row.hidden = !tests.every((test) => test(entry));
        count += entry.row.hidden ? 0 : 1;
      }
      const reason = unknown.length ? ` No heading contains \u201c${unknown.join("\u201d or \u201c")}\u201d.` : count ? "" : " No head matches.";
      joint.querySelector("[data-count]").textContent = `${count} of ${rows.length} heads.${reason}`;
    }

    function show(heading, shown) {
      const column = headings.indexOf(heading);
      heading.hidden = !shown;
      for (const { row } of rows) row.cells[column].hidden = !shown;
    }

    headings.forEach((heading, column) => {
      const button = heading.querySelector("button");
      button.disabled = false;
      button.addEventListener("click", () => sort(column));
      if (heading.dataset.shown === "false") show(heading, false);
    });
    for (const box of joint.querySelectorAll("fieldset input")) {
      box.addEventListener("change", () => {
        for (const heading of headings) if (heading.dataset.group === box.value) show(heading, box.checked);
      });
    }
    find.addEventListener("input", filter);
    for (const link of body.querySelectorAll("a")) {
      if (!viewer && link.getAttribute("href").startsWith("#")) link.removeAttribute("href");
    }
    joint.querySelector(".joint-controls").hidden = false;
    sort(headings[1]?.dataset.key === "verdict" ? 1 : 0);
    filter();
  }
})();
