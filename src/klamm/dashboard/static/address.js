// The address holds the state: a link shows another reader what one sees.

export function readAddress() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

export function writeAddress(fields) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(fields)) {
    if (value !== null && value !== undefined && value !== "" && value !== false) parameters.set(name, String(value));
  }
  const text = parameters.toString().replaceAll("%2C", ",");
  history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
}
