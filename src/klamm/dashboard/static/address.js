// The address holds the state: a link shows another reader what one sees.

export function readAddress() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

// `isStep`: the reader went somewhere, so the browser's Back returns.
export function writeAddress(fields, isStep = false) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(fields)) {
    if (value !== null && value !== undefined && value !== "" && value !== false) parameters.set(name, String(value));
  }
  const text = parameters.toString().replaceAll("%2C", ",");
  const address = text ? `#${text}` : location.pathname + location.search;
  if (address === location.hash) return;
  if (isStep) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
}
