// Tables that are sorted by a click on the head of a column: numbers from the highest, texts from the first.
"use strict";

for (const table of document.querySelectorAll(".sortable table")) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const numeric = head.classList.contains("number");
      const [first, second] = numeric ? ["descending", "ascending"] : ["ascending", "descending"];
      const order = head.ariaSort === first ? second : first;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.ariaSort = order;
      const sign = order === "ascending" ? 1 : -1;
      const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const compare = numeric ? (one, other) => one - other : (one, other) => one.localeCompare(other, "en", { numeric: true });
      body.append(...[...body.rows].sort((one, other) => sign * compare(value(one), value(other))));
    });
  });
}
