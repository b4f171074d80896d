"use strict";
(() => {
  const root = document.documentElement, body = document.body, tip = document.getElementById("tip");

  const recall = (key) => { try { return localStorage.getItem(key); } catch { return null; } };
  const keep = (key, value) => { try { localStorage.setItem(key, value); } catch { /* a page from a file may not */ } };

  const kept = recall("balcal-theme");
  if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    keep("balcal-theme", root.dataset.theme);
  });

  for (const button of document.querySelectorAll("[data-view-to]")) {
    button.addEventListener("click", () => {
      body.dataset.view = button.dataset.viewTo;
      for (const other of document.querySelectorAll("[data-view-to]"))
        other.setAttribute("aria-pressed", String(other === button));
    });
  }

  const show = (event) => {
    const about = event.target.closest?.("[data-tip]");
    if (!about) { tip.hidden = true; return; }
    tip.textContent = about.dataset.tip;
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, innerWidth - width - 8);
    const above = event.clientY - height - 14;
    tip.style.left = Math.max(8, left) + "px";
    tip.style.top = (above > 8 ? above : event.clientY + 18) + "px";
  };
  for (const kind of ["pointermove", "pointerdown"]) document.addEventListener(kind, show);
  for (const kind of ["scroll", "blur"]) addEventListener(kind, () => { tip.hidden = true; });
  root.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") tip.hidden = true; });

  for (const act of document.querySelectorAll(".act")) {
    const steps = JSON.parse(act.dataset.steps), slider = act.querySelector("input"), mark = act.querySelector(".now");
    const part = (name) => act.querySelector(`[data-part=${name}]`), percent = (x, d = 1) => (100 * x).toFixed(d) + "\u00a0%";
    const move = () => {
      const [from, covered, right, low, high, x, wrong] = steps[Number(slider.value)];
      part("threshold").textContent = from >= 0.9995 ? String(Number(from.toFixed(7))) : from.toFixed(3);
      part("coverage").textContent = percent(covered);
      part("accuracy").textContent = percent(right);
      part("interval").textContent = `[${(100 * low).toFixed(1)}, ${(100 * high).toFixed(1)}]`;
      part("wrong").textContent = wrong.toLocaleString("en");
      mark.setAttribute("x1", x);
      mark.setAttribute("x2", x);
      slider.setAttribute("aria-valuetext", `confidence from ${part("threshold").textContent} on`);
    };
    slider.addEventListener("input", move);
    for (const button of act.querySelectorAll("[data-step]"))
      button.addEventListener("click", () => { slider.value = button.dataset.step; move(); });
    move();
  }

  const value = (row, column) => {
    const cell = row.cells[column], text = cell.dataset.sort ?? cell.textContent.trim(), number = Number(text);
    return text !== "" && !Number.isNaN(number) ? number : text.toLowerCase();
  };
  const before = (a, b) => typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1;
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      head.tabIndex = 0;
      const sort = () => {
        const falling = head.getAttribute("aria-sort") === "ascending";
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", falling ? "descending" : "ascending");
        const rows = [...table.tBodies[0].rows];
        rows.sort((a, b) => before(value(a, column), value(b, column)) * (falling ? -1 : 1));
        table.tBodies[0].append(...rows);
      };
      head.addEventListener("click", sort);
      head.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); }
      });
    });
  }
})();
