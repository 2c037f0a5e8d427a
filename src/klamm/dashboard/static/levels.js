// Items counted per stretch of time, at every width that a chart has asked for. A chart of many items draws stretches:
// it costs its pixels, and an arriving item costs one stretch per width.

export class Levels {
  // `at`, `way`, `length` and `isRefused` are functions of an item. Items of one way can stand for each other. An item
  // whose time is null is not counted; it is added when it has one.
  constructor({ at, way, length = () => 0, isRefused = () => false }) {
    Object.assign(this, { at, way, length, isRefused, _levels: new Map() });
  }

  add(item) {
    for (const [width, level] of this._levels) this._count(level, width, item);
  }

  // The item has become longer.
  lengthen(item) {
    for (const [width, level] of this._levels) {
      const stretch = level.get(Math.floor(this.at(item) / width))?.get(this.way(item));
      if (stretch && this.length(item) > this.length(stretch.item)) stretch.item = item;
    }
  }

  // The item, already counted, has been refused, or it has been accepted after all.
  judge(item) {
    const change = this.isRefused(item) ? 1 : -1;
    for (const [width, level] of this._levels) {
      const stretch = level.get(Math.floor(this.at(item) / width))?.get(this.way(item));
      if (!stretch) continue;
      stretch.refused += change;
      stretch.accepted -= change;
      if (change > 0) stretch.bad ??= item;
    }
  }

  // Items were forgotten: count again when a chart asks.
  clear() {
    this._levels.clear();
  }

  // The stretches between two times, each at least `least` wide: {index, way, accepted, refused, item, bad}.
  // `item` is the longest; `bad` is a refused one. `items` are all items, for a width that no chart has asked for yet.
  between(items, from, to, least) {
    const width = 2 ** Math.ceil(Math.log2(least));
    const level = this._levels.get(width) ?? this._build(width, items);
    const found = [];
    for (let index = Math.floor(from / width); index <= Math.floor(to / width); index += 1) {
      const ways = level.get(index);
      if (ways) for (const stretch of ways.values()) found.push(stretch);
    }
    return { found, width };
  }

  _build(width, items) {
    const level = new Map();
    const finer = Math.max(...[...this._levels.keys()].filter((other) => other < width));
    if (Number.isFinite(finer)) this._merge(level, width, this._levels.get(finer), finer);
    else for (const item of items) if (this.at(item) !== null) this._count(level, width, item);
    this._levels.set(width, level);
    return level;
  }

  _merge(level, width, finer, finerWidth) {
    for (const [index, ways] of finer) {
      for (const stretch of ways.values()) {
        const into = this._stretch(level, Math.floor((index * finerWidth) / width), stretch.way, stretch.item);
        into.accepted += stretch.accepted;
        into.refused += stretch.refused;
        if (this.length(stretch.item) > this.length(into.item)) into.item = stretch.item;
        into.bad ??= stretch.bad;
      }
    }
  }

  _count(level, width, item) {
    const stretch = this._stretch(level, Math.floor(this.at(item) / width), this.way(item), item);
    if (this.isRefused(item)) {
      stretch.refused += 1;
      stretch.bad ??= item;
    } else stretch.accepted += 1;
    if (this.length(item) > this.length(stretch.item)) stretch.item = item;
  }

  _stretch(level, index, way, item) {
    let ways = level.get(index);
    if (!ways) level.set(index, (ways = new Map()));
    let stretch = ways.get(way);
    if (!stretch) ways.set(way, (stretch = { index, way, accepted: 0, refused: 0, item, bad: null }));
    return stretch;
  }
}
