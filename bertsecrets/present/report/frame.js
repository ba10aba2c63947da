// What every page has: commands to copy, and folds that open for links and for print.
(() => {
  "use strict";
  async function copy(button) {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      // Pages opened from a file may not write to the clipboard; a selected text can still be copied.
      getSelection().selectAllChildren(code);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  }

  // A link to something inside a fold opens it; heads are shown by the viewer.
  function reveal() {
    const target = /^#l\d+h\d+/.test(location.hash)
      ? document.getElementById("viewer")
      : location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let fold = target && target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  }

  for (const button of document.querySelectorAll("[data-copy]")) {
    button.hidden = false;
    button.addEventListener("click", () => copy(button));
  }
  window.addEventListener("hashchange", reveal);
  const folded = new Set();
  window.addEventListener("beforeprint", () => {
    for (const fold of document.querySelectorAll("details.fold:not([open])")) {
      folded.add(fold);
      fold.open = true;
    }
  });
  window.addEventListener("afterprint", () => {
    for (const fold of folded) fold.open = false;
    folded.clear();
  });
  reveal();
})();
