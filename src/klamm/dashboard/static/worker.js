// Runs klamm's controller and its simulator under Pyodide, apart from the page so that it stays fluent.

import { loadPyodide } from "./pyodide/pyodide.mjs";

const ready = start();

async function start() {
  const [python, archive] = await Promise.all([
    loadPyodide({ indexURL: new URL("./pyodide/", import.meta.url).href }),
    fetch(new URL("./klamm.zip", import.meta.url)).then((response) => response.arrayBuffer()),
  ]);
  python.unpackArchive(archive, "zip", { extractDir: "/klamm" });
  python.runPython(`
import logging, sys
sys.path.insert(0, "/klamm")
logging.disable(logging.CRITICAL)
from klamm import __version__
from klamm.sim.scenarios import places, scenarios
from klamm.sim.scripted import play
`);
  const version = python.runPython("__version__");
  return { python, version };
}

onmessage = async ({ data: { id, method, argument } }) => {
  try {
    const { python, version } = await ready;
    if (method === "version") postMessage({ id, result: JSON.stringify({ version }) });
    else postMessage({ id, result: python.globals.get(method)(...(argument === undefined ? [] : [argument])) });
  } catch (error) {
    postMessage({ id, error: String(error.message || error) });
  }
};
