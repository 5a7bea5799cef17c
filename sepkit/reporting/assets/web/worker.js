// Runs the model beside the page, so that the page answers while it computes.
import * as ort from "./runtime/ort.wasm.min.mjs";
import { decide, recordingFeatures, runInViews, withoutSwaps } from "./prediction.js";
import { standardize, standardizeRunning } from "./sound.js";

ort.env.wasm.wasmPaths = new URL("./runtime/", import.meta.url).href;
// More threads would need headers that a plain file server does not send.
ort.env.wasm.numThreads = 1;
ort.env.logLevel = "fatal";

let model, session, embed = null;

// Open a graph; `told` hears which share of it is there.
async function opened(url, size, told = () => {}) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: ${response.status}`);
  const bytes = new Uint8Array(size);
  let read = 0;
  for (const reader = response.body.getReader(); ;) {
    const { done, value } = await reader.read();
    if (done) break;
    bytes.set(value, read);
    read += value.length;
    told(read / size);
  }
  return ort.InferenceSession.create(bytes, { executionProviders: ["wasm"], logSeverityLevel: 4 });
}

async function load(described) {
  model = described;
  session = await opened(model.file, model.bytes, (share) => postMessage({ kind: "loading", share }));
  if (model.encoder) embed = await encoder(model.encoder);
}

// What gives the embedding of each window of speech.
async function encoder({ file, bytes, sample_rate, fingerprint }) {
  const graph = await opened(file, bytes);
  const ofWindows = async (windows) => {
    const length = windows[0].length, samples = new Float32Array(windows.length * length);
    windows.forEach((window, i) => samples.set(window, i * length));
    const { embeddings } = await graph.run({ waveforms: new ort.Tensor("float32", samples, [windows.length, length]) }, ["embeddings"]);
    const size = embeddings.dims[1];
    return windows.map((_, i) => Float64Array.from(embeddings.data.subarray(i * size, (i + 1) * size)));
  };
  return Object.assign(ofWindows, { rate: sample_rate, fingerprint });
}

// A causal graph takes whole strides and a state, zeros at first, and its estimates are late by the padding on the left.
function inputs(mixture, frames) {
  const causal = model.causal;
  if (!causal) return { mixture: new ort.Tensor("float32", mixture, [1, mixture.length]) };
  const padded = new Float32Array(frames * causal.stride).fill(causal.signal_mean);
  padded.set(mixture);
  const feeds = { mixture: new ort.Tensor("float32", padded, [1, padded.length]) };
  for (const { name, shape, type } of causal.state) {
    const size = shape.reduce((product, length) => product * length, 1);
    feeds[name] = new ort.Tensor(type, type === "float64" ? new Float64Array(size) : new Float32Array(size), shape);
  }
  return feeds;
}

async function run(mixture) {
  const causal = model.causal, late = causal ? causal.kernel_size - causal.stride : 0;
  const frames = causal && Math.ceil((mixture.length + causal.kernel_size) / causal.stride) - 1;
  const { standardized, factor, factors } = atModelLevel(mixture);
  const found = await session.run(inputs(standardized, frames), ["estimates", ...(model.scored ? ["scores"] : []), ...Object.values(model.features)]);
  const { data, dims } = found.estimates;
  const estimates = Array.from({ length: dims[1] }, (_, i) => data.slice(i * dims[2] + late, i * dims[2] + late + mixture.length));
  const features = Object.entries(model.features).map(([name, output]) => {
    const values = [...found[output].data];
    // A causal graph gives sums over frames.
    if (causal && name === "mask_spread_db") return [name, values.map((value, i) => spreadDb(value, estimates[i]))];
    return [name, causal ? values.map((value) => value / frames) : values];
  });
  estimates.forEach((estimate) => estimate.forEach((sample, t) => { estimate[t] = sample * (factor ?? factors[t]); }));
  return { estimates, scores: model.scored ? found.scores.data : null, features: Object.fromEntries(features) };
}

// runners.level.ModelLevel
function atModelLevel(mixture) {
  return model.running_level ? standardizeRunning(mixture, model.deviation, model.sample_rate) : standardize(mixture, model.deviation);
}

function spreadDb(sum, estimate) {
  const ratio = Math.max(sum, 0) / estimate.reduce((energy, sample) => energy + sample * sample, 0);
  return Math.min(60, Math.max(-60, 10 * Math.log10(ratio)));
}

async function separate(mixture) {
  const { standardized, factor } = standardize(mixture, model.deviation);
  const rate = model.sample_rate, inViews = (samples) => runInViews(run, samples, model.speeds, rate);
  const output = await inViews(standardized);
  if (model.speeds.length && !model.scored) output.estimates = await withoutSwaps(embed, standardized, output.estimates, rate);
  const features = model.quality && (await recordingFeatures(inViews, standardized, output, rate));
  const decided = await decide(model.quality, standardized, output, features, rate, embed);
  return { ...decided, estimates: decided.estimates.map((estimate) => estimate.map((sample) => sample * factor)) };
}

onmessage = async ({ data }) => {
  try {
    if (data.kind === "load") {
      await load(data.model);
      postMessage({ kind: "loaded" });
    } else {
      postMessage({ kind: "separated", ...(await separate(data.mixture)) });
    }
  } catch (error) {
    postMessage({ kind: "failed", reason: String(error?.message ?? error) });
  }
};
