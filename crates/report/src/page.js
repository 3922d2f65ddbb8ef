"use strict";
// A click on a column header sorts its table: largest number or first name first, then reversed.
for (const table of document.querySelectorAll("table.sort")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const value = (row) => {
        const cell = row.cells[column];
        return "v" in cell.dataset ? parseFloat(cell.dataset.v.replace("inf", "Infinity")) : cell.textContent;
      };
      const order = (a, b) => {
        const [x, y] = [value(a), value(b)];
        return typeof x === "number" ? x - y : x.localeCompare(y);
      };
      const numbers = table.tBodies[0].rows.length > 0 && typeof value(table.tBodies[0].rows[0]) === "number";
      const was = head.getAttribute("aria-sort");
      const down = was === null ? numbers : was === "ascending";
      const rows = [...table.tBodies[0].rows].sort((a, b) => (down ? order(b, a) : order(a, b)));
      table.tBodies[0].append(...rows);
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      heads.forEach((other) => other.classList.toggle("by", other === head));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
    });
  });
}
// Play one recording at a time.
document.addEventListener("play", (event) => {
  for (const audio of document.querySelectorAll("audio")) if (audio !== event.target) audio.pause();
}, true);
