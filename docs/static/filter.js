// A field on the page of methods: rows that lack one of its words are hidden.
document.addEventListener("DOMContentLoaded", () => {
  const page = document.getElementById("methods");
  if (!page) return;
  const field = document.createElement("input");
  field.id = "filter";
  field.type = "search";
  field.placeholder = "Filter methods and presets: vision, mamba, positions, 2305.09828 …";
  field.setAttribute("aria-label", "Filter methods and presets");
  page.querySelector("h1").after(field);
  const rows = page.querySelectorAll("tbody tr");
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
    for (const table of page.querySelectorAll("table")) {
      table.hidden = !table.querySelector("tbody tr:not([hidden])");
    }
  });
});
