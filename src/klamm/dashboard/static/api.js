// Requests to the viewer's own server. A failure is an answer with a problem, never an exception.

// An answer replaces rows and buttons. A click is lost if its target is replaced between press and release, so an answer
// that arrives then waits for the release.
let isPressed = false;
let waiting = [];
addEventListener("pointerdown", () => (isPressed = true), true);
for (const end of ["pointerup", "pointercancel", "blur"]) {
  addEventListener(end, () => {
    isPressed = false;
    setTimeout(() => { // after the click, which follows the release
      for (const proceed of waiting) proceed();
      waiting = [];
    });
  }, true);
}
const released = () => (isPressed ? new Promise((resolve) => waiting.push(resolve)) : null);

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
    await released();
    return answer.ok ? found : { ...found, problem: found.problem ?? `The server answered ${answer.status}.` };
  } catch {
    return { problem: "The server does not answer; retrying." };
  }
}
