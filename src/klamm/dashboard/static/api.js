// Requests to the viewer's own server. A failure is an answer with a problem, never an exception.

let token = "";
export const setToken = (value) => (token = value);

export async function get(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "" && value !== false) query.set(name, value === true ? "1" : String(value));
  }
  const text = query.toString();
  return send(text ? `${path}?${text}` : path);
}

export const post = (path, body) =>
  send(path, { method: "POST", headers: { "content-type": "application/json", "x-klamm-token": token }, body: JSON.stringify(body) });

async function send(path, options) {
  try {
    const answer = await fetch(path, options);
    const found = await answer.json();
    return answer.ok ? found : { ...found, problem: found.problem ?? `The server answered ${answer.status}.` };
  } catch {
    return { problem: "The server does not answer; retrying." };
  }
}
