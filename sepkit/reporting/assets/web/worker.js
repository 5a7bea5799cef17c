// Runs the model beside the page, so that the page answers while it computes.
import * as ort from "./runtime/ort.wasm.min.mjs";

ort.env.wasm.wasmPaths = new URL("./runtime/", import.meta.url).href;
// More threads would need headers that a plain file server does not send.
ort.env.wasm.numThreads = 1;
ort.env.logLevel = "fatal";

let session;

async function load(url, size) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: ${response.status}`);
  const bytes = new Uint8Array(size);
  let read = 0;
  for (const reader = response.body.getReader(); ;) {
    const { done, value } = await reader.read();
    if (done) break;
    bytes.set(value, read);
    read += value.length;
    postMessage({ kind: "loading", share: read / size });
  }
  session = await ort.InferenceSession.create(bytes, { executionProviders: ["wasm"] });
}

async function separate(mixture) {
  const outputs = await session.run({ mixture: new ort.Tensor("float32", mixture, [1, mixture.length]) });
  const { data, dims } = outputs.estimates;
  return Array.from({ length: dims[1] }, (_, i) => data.slice(i * dims[2], (i + 1) * dims[2]));
}

onmessage = async ({ data }) => {
  try {
    if (data.kind === "load") {
      await load(data.url, data.size);
      postMessage({ kind: "loaded" });
    } else {
      postMessage({ kind: "separated", estimates: await separate(data.mixture) });
    }
  } catch (error) {
    postMessage({ kind: "failed", reason: String(error?.message ?? error) });
  }
};
