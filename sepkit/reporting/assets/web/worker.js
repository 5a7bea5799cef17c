// Runs the model beside the page, so that the page answers while it computes.
import * as ort from "./runtime/ort.wasm.min.mjs";

ort.env.wasm.wasmPaths = new URL("./runtime/", import.meta.url).href;
// More threads would need headers that a plain file server does not send.
ort.env.wasm.numThreads = 1;
ort.env.logLevel = "fatal";

let session, causal;

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

// A causal graph takes whole strides and a state, zeros at first, and its estimates are late by the padding on the left.
function inputs(mixture) {
  if (!causal) return { mixture: new ort.Tensor("float32", mixture, [1, mixture.length]) };
  const frames = Math.ceil((mixture.length + causal.kernel_size) / causal.stride) - 1;
  const padded = new Float32Array(frames * causal.stride).fill(causal.signal_mean);
  padded.set(mixture);
  const feeds = { mixture: new ort.Tensor("float32", padded, [1, padded.length]) };
  for (const { name, shape, type } of causal.state) {
    const size = shape.reduce((product, length) => product * length, 1);
    feeds[name] = new ort.Tensor(type, type === "float64" ? new Float64Array(size) : new Float32Array(size), shape);
  }
  return feeds;
}

async function separate(mixture) {
  const { estimates } = await session.run(inputs(mixture), ["estimates"]);
  const { data, dims } = estimates, late = causal ? causal.kernel_size - causal.stride : 0;
  return Array.from({ length: dims[1] }, (_, i) => data.slice(i * dims[2] + late, i * dims[2] + late + mixture.length));
}

onmessage = async ({ data }) => {
  try {
    if (data.kind === "load") {
      causal = data.causal;
      await load(data.url, data.size);
      postMessage({ kind: "loaded" });
    } else {
      postMessage({ kind: "separated", estimates: await separate(data.mixture) });
    }
  } catch (error) {
    postMessage({ kind: "failed", reason: String(error?.message ?? error) });
  }
};
