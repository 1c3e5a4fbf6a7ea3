// Rows are sorted inside their section only, so that trivial rows stay apart; missing numbers always come last.
const number = cell => cell.dataset.value === undefined ? NaN : Number(cell.dataset.value);
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.querySelectorAll("th")];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    const compare = (a, b) => {
      const [left, right] = [a.cells[column], b.cells[column]];
      if (left.classList.contains("text")) return sign * left.textContent.localeCompare(right.textContent);
      const [x, y] = [number(left), number(right)];
      return isNaN(x) || isNaN(y) ? isNaN(x) - isNaN(y) : sign * (x - y);
    };
    for (const body of table.tBodies) body.append(...[...body.rows].sort(compare));
  }));
}
