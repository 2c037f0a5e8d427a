// Values that change over time, and searches in sorted arrays.

export function lowerBound(items, at, key = (item) => item.at) {
  let low = 0;
  let high = items.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (key(items[middle]) < at) low = middle + 1;
    else high = middle;
  }
  return low;
}

export function upperBound(items, at) {
  // The first entry after a time. Not lowerBound of a little more: beside a date in milliseconds, a little is nothing.
  let low = 0;
  let high = items.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (items[middle].at <= at) low = middle + 1;
    else high = middle;
  }
  return low;
}

export class Series {
  // Entries {at, ...} in the order of time. Records of several brokers may arrive a little out of order.
  constructor() {
    this.items = [];
    this.largest = 0; // of the sizes, for a chart's scale
  }

  push(item) {
    const items = this.items;
    if (item.size > this.largest) this.largest = item.size;
    if (!items.length || items[items.length - 1].at <= item.at) items.push(item);
    else items.splice(upperBound(items, item.at), 0, item);
  }

  at(time) {
    const index = upperBound(this.items, time) - 1;
    return index < 0 ? null : this.items[index];
  }

  get last() {
    return this.items.length ? this.items[this.items.length - 1] : null;
  }

  *between(from, to, end) {
    // Segments [start, stop) with their entry, clipped to a window.
    let index = Math.max(0, upperBound(this.items, from) - 1);
    for (; index < this.items.length && this.items[index].at <= to; index += 1) {
      const stop = index + 1 < this.items.length ? this.items[index + 1].at : end;
      yield [this.items[index], Math.max(this.items[index].at, from), Math.min(stop, to)];
    }
  }
}

export function seriesIn(map, key) {
  let found = map.get(key);
  if (!found) map.set(key, (found = new Series()));
  return found;
}
