"use strict";
(() => {
  const panel = document.getElementById("panel");
  const spans = Array.from(document.querySelectorAll(".answer .t"));
  const number = new Map(spans.map((span, place) => [span, place]));
  let data = null, active = null, kept = false;

  const unpacked = (async () => {
    const packed = Uint8Array.from(atob(document.getElementById("data").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    data = await new Response(stream).json();
    document.documentElement.dataset.ready = "yes";
  })();

  const element = (name, text, className) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  };

  const number_of = (thousandths, scale, digits) => (thousandths < 0 ? "none" : (thousandths / scale).toFixed(digits));

  function fill(place) {
    const { window: size, best: width } = data, depth = data.depth[place], first = place * size * width;
    const [from, to] = [data.tops[first], data.tops[first + depth * width]].map((word) => data.words[word]);
    const title = element("h3", `depth ${depth}: `);
    title.append(element("code", to), from === to ? "" : " instead of ", from === to ? "" : element("code", from));
    const table = element("table"), head = element("tr");
    for (const name of ["depth", "entropy", "best tokens, %"]) head.append(element("th", name));
    table.append(head);
    for (let d = 0; d < size; d++) {
      const row = element("tr", undefined, d === depth ? "chosen" : "");
      row.append(element("td", d), element("td", number_of(data.entropy[place * size + d], 1000, 3)));
      const best = element("td");
      for (let rank = 0; rank < width; rank++) {
        const at = first + d * width + rank, one = element("span", undefined, "best");
        one.append(element("code", data.words[data.tops[at]]), " ");
        one.append(element("i", number_of(data.probabilities[at], 10, 1)));
        best.append(one, " ");
      }
      row.append(best);
      table.append(row);
    }
    panel.replaceChildren(title, table);
  }

  function show(span) {
    if (data === null || span === undefined) return;
    hide();
    active = span;
    span.classList.add("active");
    fill(number.get(span));
    panel.hidden = false;
    panel.scrollTop = 0;
    const box = span.getBoundingClientRect(), own = panel.getBoundingClientRect();
    const below = box.bottom + 8, above = box.top - own.height - 8;
    panel.style.left = `${Math.max(8, Math.min(box.left, document.documentElement.clientWidth - own.width - 8))}px`;
    panel.style.top = `${below + own.height > window.innerHeight && above > 0 ? above : below}px`;
  }

  function hide() {
    if (active) active.classList.remove("active");
    active = null;
    panel.hidden = true;
  }

  const token = (event) => (event.target.closest ? event.target.closest(".answer .t") : null);
  document.addEventListener("pointerover", (event) => {
    if (kept || event.pointerType === "touch") return;
    const span = token(event);
    if (span) show(span);
    else if (!panel.contains(event.target)) hide();
  });
  document.addEventListener("click", (event) => {
    const span = token(event);
    if (span) {
      kept = !(kept && span === active);
      show(span);
    } else if (!panel.contains(event.target)) {
      kept = false;
      hide();
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      kept = false;
      hide();
      return;
    }
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key], answer = document.activeElement;
    if (step === undefined || !answer.classList.contains("answer")) return;
    event.preventDefault();
    const here = active && answer.contains(active) ? number.get(active) + step : number.get(answer.firstElementChild);
    const next = spans[here];
    if (next && answer.contains(next)) {
      next.scrollIntoView({ block: "nearest" });
      kept = true;
      show(next);
    }
  });
  unpacked.catch((error) => {
    panel.textContent = `The tokens' details could not be read: ${error}`;
    panel.hidden = false;
  });
})();
