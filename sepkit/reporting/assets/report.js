"use strict";

// Tables: a heading sorts by its column, once more the other way round. Cells without a value stay last.
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const heading = button.parentElement;
    const body = heading.closest("table").tBodies[0];
    const column = heading.cellIndex;
    const numeric = heading.classList.contains("number");
    const first = numeric ? "descending" : "ascending";
    const second = numeric ? "ascending" : "descending";
    const order = heading.getAttribute("aria-sort") === first ? second : first;
    for (const other of heading.parentElement.cells) other.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    const key = (row) => row.cells[column].dataset.key;
    const compare = (a, b) => (numeric ? Number(a) - Number(b) : a.localeCompare(b, "en", { numeric: true }));
    const rows = [...body.rows].sort((a, b) => {
      const [left, right] = [key(a), key(b)];
      if (left === undefined || right === undefined) return (left === undefined) - (right === undefined);
      return sign * compare(left, right);
    });
    body.append(...rows);
  });
}

// Players: one at a time. Within an example the next one goes on where the last one was, so that one can switch.
let playing = null;
for (const player of document.querySelectorAll("audio")) {
  player.addEventListener("play", () => {
    if (playing && playing !== player && !playing.paused) {
      playing.pause();
      if (playing.closest(".example") === player.closest(".example")) player.currentTime = playing.currentTime;
    }
    playing = player;
  });
}
