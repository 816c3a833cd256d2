// Tables can be sorted: the page reads the same without this script.
(() => {
  "use strict";
  const value = (row, column) => {
    const cell = row.cells[column];
    if (!cell) return "";
    const told = cell.dataset.sort;
    return told === undefined ? cell.textContent.trim() : told === "" ? "" : Number(told);
  };
  const sort = (table, column, descending) => {
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [value(row, column), row]);
    rows.sort(([a], [b]) => {
      if (a === "" || b === "") return (a === "") - (b === ""); // what is unknown stays last
      const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
      return descending ? -order : order;
    });
    body.append(...rows.map(([, row]) => row));
    [...table.tHead.rows[0].cells].forEach((head, at) => {
      if (at === column) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    const choice = document.createElement("select"); // where rows are cards there are no heads to press
    const label = document.createElement("label");
    label.className = "sorter";
    label.append("Sort by ", choice);
    choice.append(new Option("the plan's order", ""));
    const planned = [...table.tBodies[0].rows];
    heads.forEach((head, column) => {
      const name = head.innerText.replace(/\s+/g, " ").trim();
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        sort(table, column, head.getAttribute("aria-sort") === "ascending");
      });
      choice.append(new Option(`${name}, ascending`, `${column} up`), new Option(`${name}, descending`, `${column} down`));
    });
    choice.addEventListener("change", () => {
      const [column, way] = choice.value.split(" ");
      if (column) sort(table, Number(column), way === "down");
      else table.tBodies[0].append(...planned);
    });
    table.before(label);
  }
})();
