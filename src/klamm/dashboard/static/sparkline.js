// A small line of the last values of one number. The page keeps them: it has seen what it shows.

const SVG = "http://www.w3.org/2000/svg";
const KEPT = 150;
const [WIDTH, HEIGHT] = [96, 20];

export class Past {
  constructor() {
    this.values = new Map();
  }

  add(key, value) {
    if (typeof value !== "number" || !Number.isFinite(value)) return;
    const list = this.values.get(key) ?? [];
    list.push(value);
    if (list.length > KEPT) list.shift();
    this.values.set(key, list);
    if (this.values.size > 3_000) this.values.delete(this.values.keys().next().value);
  }

  line(key, title = "") {
    const list = this.values.get(key) ?? [];
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    svg.setAttribute("class", "spark");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", `${title}: ${list.length ? `last ${list.at(-1)}, most ${Math.max(...list)}` : "no values yet"}`);
    const most = Math.max(...list, 1e-9);
    const x = (index) => (list.length < 2 ? WIDTH : (index / (list.length - 1)) * (WIDTH - 2) + 1);
    const y = (value) => HEIGHT - 2 - (value / most) * (HEIGHT - 4);
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", list.map((value, index) => `${index ? "L" : "M"}${x(index).toFixed(1)} ${y(value).toFixed(1)}`).join(""));
    svg.append(path);
    return svg;
  }
}
