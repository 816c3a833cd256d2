// Sorting of tables; without this script, the page has the same content.
(() => {
  "use strict";
  const value = (row, column) => {
    const cell = row.cells[column];
    if (!cell) return "";
    const key = cell.dataset.sort;
    return key === undefined ? cell.textContent.trim() : key === "" ? "" : Number(key);
  };
  const sort = (table, column, descending) => {
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [value(row, column), row]);
    rows.sort(([a], [b]) => {
      if (a === "" || b === "") return (a === "") - (b === ""); // unknown values stay last
      const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
      return descending ? -order : order;
    });
    body.append(...rows.map(([, row]) => row));
    [...table.tHead.rows[0].cells].forEach((head, index) => {
      if (index === column) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    const choice = document.createElement("select"); // for cards, which have no visible table header
    const label = document.createElement("label");
    label.className = "sorter";
    label.append("Sort by ", choice);
    choice.append(new Option("the report's order", ""));
    const planned = [...table.tBodies[0].rows];
    heads.forEach((head, column) => {
      const name = head.innerText.replace(/\s+/g, " ").trim();
      // Chromium does not repeat form controls in the table head of a printed page, so this is no button element.
      const button = document.createElement("span");
      button.setAttribute("role", "button");
      button.tabIndex = 0;
      button.append(...head.childNodes);
      head.append(button);
      const toggle = () => sort(table, column, head.getAttribute("aria-sort") === "ascending");
      button.addEventListener("click", toggle);
      button.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault(); // a space would scroll the page
        toggle();
      });
      choice.append(new Option(`${name}, ascending`, `${column} up`), new Option(`${name}, descending`, `${column} down`));
    });
    choice.addEventListener("change", () => {
      const [column, direction] = choice.value.split(" ");
      if (column) sort(table, Number(column), direction === "down");
      else table.tBodies[0].append(...planned);
    });
    table.before(label);
  }
})();
