// Shows what has all words of the query, headings first.
const field = document.querySelector("input[type=search]"), found = document.getElementById("found");
field.addEventListener("input", () => {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  const rank = (e) => {
    const title = (e.page + " " + e.title).toLowerCase(), all = title + " " + e.text.toLowerCase();
    return words.every((w) => title.includes(w)) ? 2 : words.every((w) => all.includes(w)) ? 1 : 0;
  };
  const hits = words.length ? entries.filter(rank).sort((a, b) => rank(b) - rank(a)).slice(0, 20) : [];
  found.hidden = !hits.length;
  found.replaceChildren(...hits.map((e) => {
    const item = document.createElement("li"), link = document.createElement("a");
    link.href = field.dataset.root + e.url;
    link.textContent = e.page === e.title ? e.title : e.page + ": " + e.title;
    item.append(link);
    return item;
  }));
});
