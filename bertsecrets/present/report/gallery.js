"use strict";
// The choices are also in the address, as #task=mrpc&model=minilm, so that a link can carry them.
(() => {
  const picks = [...document.querySelectorAll("[data-pick]")];
  const pages = [...document.querySelectorAll(".gallery li")];
  const count = document.querySelector("[data-count]");
  const filter = () => {
    for (const page of pages) {
      page.hidden = picks.some((pick) => pick.value && page.dataset[pick.dataset.pick] !== pick.value);
    }
    count.textContent = `${pages.filter((page) => !page.hidden).length} of ${pages.length} pages`;
  };
  const read = () => {
    const chosen = new URLSearchParams(location.hash.slice(1));
    for (const pick of picks) {
      const value = chosen.get(pick.dataset.pick) ?? "";
      pick.value = [...pick.options].some((option) => option.value === value) ? value : "";
    }
    filter();
  };
  for (const pick of picks) {
    pick.addEventListener("change", () => {
      const chosen = picks.filter((each) => each.value).map((each) => [each.dataset.pick, each.value]);
      history.replaceState(null, "", `#${new URLSearchParams(chosen)}`);
      filter();
    });
  }
  addEventListener("hashchange", read);
  document.querySelector(".controls").hidden = false;
  read();
})();
