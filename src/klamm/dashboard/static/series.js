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

export function upperBound(items, at, key = (item) => item.at) {
  // The first entry after a time. Not lowerBound of a little more: beside a date in milliseconds, a little is nothing.
  let low = 0;
  let high = items.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (key(items[middle]) <= at) low = middle + 1;
    else high = middle;
  }
  return low;
}

export class Series {
  // Entries {at, ...} in the order of time. Records of several brokers may arrive a little out of order.
  constructor() {
    this.items = [];
    this.largest = 0; // of the sizes, for a chart's scale
    this._peaks = new Map(); // width of a stretch -> its number -> the largest and the last size in it
  }

  push(item) {
    const items = this.items;
    if (item.size > this.largest) this.largest = item.size;
    if (!items.length || items[items.length - 1].at <= item.at) items.push(item);
    else items.splice(upperBound(items, item.at), 0, item);
    for (const [width, peaks] of this._peaks) peak(peaks, width, item);
  }

  count(from, to) {
    return upperBound(this.items, to) - upperBound(this.items, from);
  }

  // Forget entries before a time, except the one that holds at that time.
  forget(before) {
    this.items.splice(0, Math.max(0, upperBound(this.items, before) - 1));
    this._peaks.clear();
  }

  at(time) {
    const index = upperBound(this.items, time) - 1;
    return index < 0 ? null : this.items[index];
  }

  get last() {
    return this.items.length ? this.items[this.items.length - 1] : null;
  }

  *between(from, to, end, least = 0) {
    // Segments [start, stop) with their entry, clipped to a window. Of entries closer than `least`, the last is yielded.
    const { items } = this;
    let index = Math.max(0, upperBound(items, from) - 1);
    while (index < items.length && items[index].at <= to) {
      const start = Math.max(items[index].at, from);
      const next = least ? Math.max(index + 1, upperBound(items, start + least) - 1) : index + 1;
      yield [items[index], start, Math.min(next < items.length ? items[next].at : end, to)];
      index = next;
    }
  }

  *peaks(from, to, least) {
    // Stretches [start, stop) of a window, each at least `least` wide, with the largest size in each.
    const width = 2 ** Math.ceil(Math.log2(least));
    let peaks = this._peaks.get(width);
    if (!peaks) {
      this._peaks.set(width, (peaks = new Map()));
      for (const item of this.items) peak(peaks, width, item);
    }
    let before = this.at(Math.floor(from / width) * width)?.size ?? 0;
    for (let index = Math.floor(from / width); index * width <= to; index += 1) {
      const found = peaks.get(index);
      yield [Math.max(before, found?.largest ?? 0), index * width, (index + 1) * width];
      before = found?.last ?? before;
    }
  }
}

function peak(peaks, width, { at, size }) {
  const index = Math.floor(at / width);
  const found = peaks.get(index);
  if (!found) peaks.set(index, { largest: size, last: size, at });
  else {
    found.largest = Math.max(found.largest, size);
    if (at >= found.at) Object.assign(found, { last: size, at });
  }
}

// Sort the items that were appended behind a sorted part. Costs the new ones and those that they pass.
export function settle(items, sorted, key) {
  if (sorted >= items.length) return;
  const added = items.splice(sorted).sort((a, b) => key(a) - key(b));
  const passed = items.splice(upperBound(items, key(added[0]), key));
  let index = 0;
  for (const item of added) {
    while (index < passed.length && key(passed[index]) <= key(item)) items.push(passed[index++]);
    items.push(item);
  }
  while (index < passed.length) items.push(passed[index++]);
}

export function seriesIn(map, key) {
  let found = map.get(key);
  if (!found) map.set(key, (found = new Series()));
  return found;
}
